"""Faults that an implementation could have, planted one at a time; and hostile models."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from pipeline.messages.model import LARGEST_WEIGHT
from pipeline.methods.renewable import client as client_module
from pipeline.methods.renewable import client as summarise_module
from pipeline.methods.renewable.client import BoundedSums, Channels, RenewableTask
from pipeline.privacy import sensitivity
from pipeline.privacy.mechanism import Channel, LaplaceMechanism, Noise
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteGaussian, DiscreteLaplace
from pipeline.privacy.sensitivity import Bounds, Neighbours, Order
from pipeline.release.model import COEFFICIENT_LIMIT, Model
from pipeline.release.task import Task
from pipeline.types import Integers, Matrix, Vector
from tests.attacks.studies import (
    GROUP,
    Attack,
    Mechanism,
    Window,
    attack_of,
    knee,
    window_of,
)

BOTH: tuple[Mechanism, ...] = ("discrete-gaussian", "discrete-laplace")


@dataclass(frozen=True, slots=True)
class Bug:
    """A fault.

    Attributes
    ----------
    plant
        Changes the program for a while; tasks are made and releases drawn meanwhile.
    releases
        Kinds of release that show it.
    change
        What the fault does to the attack itself: which windows go out, and under which task.
    harmless
        Whether it adds too much noise: the attack then learns clearly less.
    """

    name: str
    plant: Callable[[], AbstractContextManager[object]]
    releases: tuple[str, ...]
    mechanisms: tuple[Mechanism, ...] = BOTH
    neighbours: Neighbours = "zero-out"
    change: Callable[[Attack], Attack] = lambda attack: attack
    harmless: bool = False

    def attack(self, release: str, mechanism: Mechanism) -> Attack:
        """Return the attack on a release, with what the fault changes; call it while planted."""
        return self.change(attack_of(release, mechanism, self.neighbours))


def _halved(noise: Noise) -> Noise:
    if isinstance(noise, DiscreteGaussian):
        return DiscreteGaussian(noise.sigma / 2)
    assert isinstance(noise, DiscreteLaplace)
    return DiscreteLaplace(noise.scale / 2)


def _half_the_noise() -> AbstractContextManager[object]:
    original = Channel.noised

    def noised(self: Channel, *values: Any) -> tuple[Integers, Integers | None]:
        return original(replace(self, noise=_halved(self.noise)), *values)

    return mock.patch.object(Channel, "noised", noised)


def _no_clip() -> AbstractContextManager[object]:
    def unclipped(features: Matrix, task: Task) -> Matrix:
        return features

    return mock.patch.object(summarise_module, "clipped_to_norm", unclipped)


def _packed_sensitivity() -> AbstractContextManager[object]:
    original = sensitivity.of_curvature

    def packed(bounds: Bounds, curvature: float, neighbours: Neighbours, order: Order) -> float:
        # every entry of the upper triangle counted once; l2^2 numbers of size one in a record
        share = math.sqrt((1 + 1 / bounds.l2**2) / 2)
        return share * original(bounds, curvature, neighbours, order)

    return mock.patch.object(sensitivity, "of_curvature", packed)


def _factor_twice() -> AbstractContextManager[object]:
    original = Channel.off_diagonal
    return mock.patch.object(Channel, "off_diagonal", lambda self: original(original(self)))


def _no_factor() -> AbstractContextManager[object]:
    return mock.patch.object(Channel, "off_diagonal", lambda self: self)


class Silence(DiscreteGaussian):
    """Noise that is always zero."""

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return zeros."""
        return np.zeros(count, dtype=np.int64)


def _bare_counts() -> AbstractContextManager[object]:
    original = RenewableTask._channels

    def bare(self: RenewableTask, shares: dict[str, float], slope: float) -> Channels:
        made = original(self, shares, slope)
        assert made.counts is not None
        return replace(made, counts=replace(made.counts, noise=Silence(1.0)))

    return mock.patch.object(RenewableTask, "_channels", bare)


def _second_norm() -> AbstractContextManager[object]:
    return mock.patch.object(LaplaceMechanism, "order", 2)


@contextlib.contextmanager
def _heavy_weights() -> Iterator[None]:
    original = summarise_module.summarise_bounded

    def uncut(
        task: RenewableTask, features: Matrix, responses: Vector, model: Model
    ) -> BoundedSums:
        # the channels keep the public maximum, the sums know of none
        loose = copy.copy(task)
        loose.largest_weight = LARGEST_WEIGHT
        return original(loose, features, responses, model)

    with mock.patch.object(client_module, "summarise_bounded", uncut):
        yield


def _sent_again(attack: Attack) -> Attack:
    return replace(attack, left=attack.left * 2, right=attack.right * 2)


def _beside_an_empty_window(attack: Attack) -> Attack:
    empty = (window_of(attack.task),)
    return replace(attack, left=attack.left + empty, right=attack.right + empty, twins=True)


def _heavier(attack: Attack) -> Attack:
    heavy = round(LARGEST_WEIGHT * 1024)
    return replace(attack, model=replace(attack.model, weights=(heavy, heavy)))


def _copied(attack: Attack) -> Attack:
    """Put GROUP records of a user where the task counts one."""

    def copies(windows: tuple[Window, ...]) -> tuple[Window, ...]:
        return tuple((np.repeat(x, GROUP, axis=0), np.repeat(y, GROUP)) for x, y in windows)

    return replace(attack, left=copies(attack.left), right=copies(attack.right))


def _replaced(attack: Attack) -> Attack:
    """Attack a replacement where the task hides an absence."""
    x, y = attack.left[0]
    return replace(attack, right=((x, -y),))


STEPS = ("step", "start", "step, mostly curvature")
CURVED = ("step, mostly curvature",)
GAUSSIAN: tuple[Mechanism, ...] = ("discrete-gaussian",)
LAPLACE: tuple[Mechanism, ...] = ("discrete-laplace",)
BUGS = {
    bug.name: bug
    for bug in (
        Bug("half the noise", _half_the_noise, STEPS),
        Bug("records not clipped", _no_clip, ("step, clipped", "start, clipped")),
        Bug("sensitivity without the svec factor", _packed_sensitivity, CURVED, GAUSSIAN),
        Bug("svec factor twice in the noise", _factor_twice, CURVED),
        Bug("svec factor missing in the noise", _no_factor, CURVED, harmless=True),
        Bug("counts without noise", _bare_counts, ("step", "start")),
        Bug("Laplace scale from the L2 norm", _second_norm, STEPS, LAPLACE),
        Bug("a window noised and sent twice", nullcontext, STEPS, change=_sent_again),
        Bug("the same noise in two windows", nullcontext, STEPS, change=_beside_an_empty_window),
        Bug("class weights not cut", _heavy_weights, ("step, weighted",), change=_heavier),
        Bug("records of a user counted as one", nullcontext, STEPS, change=_copied),
        Bug("a replacement read as an absence", nullcontext, ("step", "start"), change=_replaced),
    )
}  # fmt: skip


class Undefined(Model):
    """A model whose coefficients are no numbers; the wire refuses such a one."""

    @property
    def coefficients(self) -> Vector:
        """Return NaN."""
        return np.full(len(self.lattice), np.nan)


class Endless(Model):
    """A model whose coefficients are infinite; the wire refuses such a one."""

    @property
    def coefficients(self) -> Vector:
        """Return minus infinity."""
        return np.full(len(self.lattice), -np.inf)


HEAVY = (10**15, 10**15)


def _all(kind: type[Model], value: int) -> Callable[[Task], Model]:
    return lambda task: kind(1, np.full(task.size, value, dtype=np.int64), HEAVY)


HOSTILE: dict[str, Callable[[Task], Model]] = {
    "coefficients at their limit": _all(Model, -COEFFICIENT_LIMIT),
    "coefficients beyond it": _all(Model, -(2**62)),
    "coefficients NaN": _all(Undefined, 0),
    "coefficients infinite": _all(Endless, 0),
    "weights beyond the maximum": lambda task: replace(knee(task), weights=HEAVY),
    "weights below zero": lambda task: replace(knee(task), weights=(HEAVY[0], -HEAVY[1])),
}


def hostile(name: str, mechanism: Mechanism) -> Attack:
    """Return the attack on the weighted study with a hostile model."""
    attack = attack_of("step, weighted", mechanism, "zero-out")
    return replace(attack, model=HOSTILE[name](attack.task))
