"""Whole streams: all releases, all models and the last estimate, each model made of earlier noise.

Records alternate between two extremes, and windows have an odd number of slots. So a record that
is inserted with a slot of its own turns every later window into its opposite, while one that takes
or leaves an existing slot changes a single release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from unittest import mock

import numpy as np

from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Encoder, Row, stack
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.stream import in_process as offline
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.stream.release import release_of
from pipeline.types import Matrix, Vector
from tests.attacks.bounds import Scores
from tests.attacks.studies import GROUP, Mechanism, task_of
from tests.attacks.windows import (
    Finding,
    Streams,
    View,
    centre,
    finding,
    gaussian_ratio,
    laplace_ratio,
    scales_of,
)
from tests.builders import cut
from tests.wire import numbers_of

#: Slots of one window: odd, and many enough that models stay near zero, where slopes are full.
SLOTS = 51
#: Windows for each model: the third window is the first at a model that was made of noise.
PUBLISH = 2
#: The change happens in this window.
CHANGED = 2
#: A larger claim than that of one release: whole streams are slow to draw, so there are fewer.
EPSILON: dict[Mechanism, float] = {"discrete-gaussian": 8.0, "discrete-laplace": 2.0}
SPLIT = "gradient = 0.9, curvature = 0.05, counts = 0.05"

Change = Literal["zero-out", "replace-one", "user zero-out", "add-remove"]
CHANGES: tuple[Change, ...] = get_args(Change)
Slots = list[Row | None]


@dataclass(frozen=True, slots=True)
class StreamAttack:
    """Two streams of one client, slot by slot, that differ by one change."""

    task: RenewableTask
    left: Slots
    right: Slots


@dataclass(frozen=True, slots=True)
class Sighting:
    """One run as everybody sees it: releases with their models, and the last estimate."""

    releases: list[tuple[Model, Vector]]
    coefficients: Vector


@dataclass(frozen=True, slots=True)
class StreamFinding:
    """Lower bounds over a whole stream.

    Attributes
    ----------
    everything
        From all releases, models and the estimate together.
    estimate
        From the last estimate alone.
    """

    everything: Finding
    estimate: Finding


def stream_attack(change: Change, mechanism: Mechanism, windows: int) -> StreamAttack:
    """Return two neighbouring streams of so many windows.

    For "add-remove", which no study may declare, the task is that of "zero-out".
    """
    users = change == "user zero-out"
    task = task_of(
        mechanism,
        "replace-one" if change == "replace-one" else "zero-out",
        p=1,
        epsilon=EPSILON[mechanism],
        records=SLOTS,
        publish=PUBLISH,
        split=SPLIT,
        user_records=GROUP if users else None,
    )
    encoder = Encoder(task.study)
    yes, no = (encoder.encode({"x0": 1.0, "y": response}) for response in ("1", "0"))
    # the last window is one short, so that an inserted record makes no further one
    left: Slots = [(yes, no)[i % 2] for i in range(windows * SLOTS - 1)]
    right = list(left)
    at = CHANGED * SLOTS
    if change == "add-remove":
        right.insert(at, no if left[at] is yes else yes)
    elif change == "replace-one":
        right[at] = no if left[at] is yes else yes
    else:
        for i in range(GROUP if users else 1):
            right[at + i * SLOTS] = None
    return StreamAttack(task, left, right)


def sightings(
    task: RenewableTask, slots: Slots, draws: int, stream: SecureStream
) -> list[Sighting]:
    """Run a stream so many times, from slots to the last estimate, and watch."""
    windows = list(cut(slots, task.slots))
    seen: list[Sighting] = []
    for _ in range(draws):
        releases: list[tuple[Model, Vector]] = []

        def tapped(
            task: Task,
            rows: Sequence[Row | None],
            model: Model,
            noise: SecureStream | None,
            *,
            client: str,
            ledger: str,
            seq: int,
            releases: list[tuple[Model, Vector]] = releases,
        ) -> bytes:
            del noise  # every draw has its own
            payload = release_of(task, rows, model, stream, client=client, ledger=ledger, seq=seq)
            sums = numbers_of(task, payload)
            releases.append((model, sums.astype(float)))
            return payload

        run = OfflineRun(task)
        with mock.patch.object(offline, "release_of", tapped):
            for first in range(0, len(windows), PUBLISH):
                if first:
                    run.move()
                # in any batches the sums are the same bits
                run.fold_all([
                    ("client", run.release("client", window, run.model))
                    for window in windows[first : first + PUBLISH]
                ])  # fmt: skip
        # nobody is sent a model behind the last window
        seen.append(Sighting(releases, estimate_of(task, run.partitions).coefficients))
    return seen


def measure_stream(
    attack: StreamAttack,
    draws: int,
    streams: Streams,
    left: Sequence[Sighting] = (),
) -> StreamFinding:
    """Draw both streams, and bound what tells them apart.

    The adversary knows both streams of records, so at every model that it sees it can work out
    what each would have sent: the ratio of likelihoods, and no statistic is better. An estimate
    made of releases adds nothing to them; a discriminant that is learnt from both shows it.

    Parameters
    ----------
    left
        Sightings of the left stream, at least `draws`, where the caller has them.
    """
    task, delta = attack.task, attack.task.study.privacy.delta
    one = left[:draws] or sightings(task, attack.left, draws, streams(0))
    two = sightings(task, attack.right, draws, streams(1))
    law = laplace_ratio if delta is None else gaussian_ratio
    ratios = Scores(*(law(*view_of(attack, seen)) for seen in (one, two)))
    estimates = [np.array([seen.coefficients for seen in side]) for side in (one, two)]
    both = learnt(
        np.column_stack([ratios.left, estimates[0]]), np.column_stack([ratios.right, estimates[1]])
    )
    return StreamFinding(finding([ratios, both], delta), finding([learnt(*estimates)], delta))


def view_of(attack: StreamAttack, seen: Sequence[Sighting]) -> tuple[View, Vector]:
    """Return the releases in which the neighbours differ, and the scale of their noise."""
    task = attack.task
    pairs = zip(cut(attack.left, task.slots), cut(attack.right, task.slots), strict=True)
    differing = [(i, one, two) for i, (one, two) in enumerate(pairs) if one != two]
    released, left, right = [], [], []
    for sighting in seen:
        models = [(sighting.releases[i][0], one, two) for i, one, two in differing]
        released.append(np.concatenate([sighting.releases[i][1] for i, _, _ in differing]))
        left.append(np.concatenate([_centre(task, one, model) for model, one, _ in models]))
        right.append(np.concatenate([_centre(task, two, model) for model, _, two in models]))
    scales = [scales_of(task, seen[0].releases[i][0].version) for i, _, _ in differing]
    return View(np.array(released), np.array(left), np.array(right)), np.concatenate(scales)


def learnt(left: Matrix, right: Matrix) -> Scores:
    """Return Fisher's discriminant of some numbers, learnt on a third of the draws."""
    learn = len(left) // 3
    known = left[:learn], right[:learn]
    covariance = np.cov(known[0].T) + np.cov(known[1].T)
    covariance += 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    direction = np.linalg.solve(covariance, known[0].mean(axis=0) - known[1].mean(axis=0))
    return Scores(left @ direction, right @ direction)


def _centre(task: RenewableTask, rows: Sequence[Row | None], model: Model) -> Vector:
    return centre(task, stack([row for row in rows if row is not None], task.size - 1)[:2], model)
