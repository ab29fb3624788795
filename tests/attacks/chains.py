"""Attacks on a chain: the releases of one client whose noise remembers those before it.

The adversary knows the coefficients of the memory, all models and all other records. It turns what
it sees back into independent draws, in eight of which the record moved what they were added to,
and weighs them by the ratio of the two likelihoods: no statistic is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from unittest import mock

import numpy as np

from pipeline.methods.renewable import client as task_module
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy import memory
from pipeline.privacy.memory import Chain
from pipeline.privacy.randomness import SecureStream
from pipeline.release.privatise import Answer, privatise_behind
from pipeline.release.query import Query
from pipeline.study.model import Split
from pipeline.types import Matrix, Vector
from tests.attacks.bounds import mu_bound
from tests.attacks.studies import task_of, window_of, worst
from tests.attacks.windows import Streams, centre, copies_of, scales_of, together

#: Windows of a chain, and the place of the one with the record.
WINDOWS, RECORD = 24, 2
#: A fork goes on behind so many windows.
FORKED = 2
#: Chains that are drawn side by side.
TOGETHER = 2000
#: A bound of mu is too high with this probability.
ALARM = 0.01
#: Each alone is less than the budget; one record uses up 1.6 times of it.
BROKEN = Split(gradient=0.9, curvature=1.34, middle=0.05, counts=0.05)


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """What an attack on chains measures, as mu of one record.

    Attributes
    ----------
    promised
        By the study.
    measured
        An estimate of what was kept, as likely above it as below.
    least
        A lower bound, too high with probability ALARM.
    """

    promised: float
    measured: float
    least: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of chains.

    Attributes
    ----------
    plant
        Changes the program while its channels are made.
    forked
        Whether an old copy of the client's database releases the last windows again.
    """

    name: str
    plant: Callable[[], AbstractContextManager[object]] = nullcontext
    forked: bool = False


@contextmanager
def _broken_shares() -> Iterator[None]:
    with (
        mock.patch.object(task_module, "split_of", return_value=BROKEN),
        mock.patch.object(RenewableTask, "_spent", return_value=1.0),
    ):
        yield


def _no_norm() -> AbstractContextManager[object]:
    return mock.patch.object(memory, "NORM", 1.0)


FAULTS = (
    Fault("draws without the norm of the memory", _no_norm),
    Fault("a copy goes on behind the second window", forked=True),
    Fault("shares that one record can use up twice", _broken_shares),
)


def measure_chains(chains: int, streams: Streams, fault: Fault | None = None) -> ChainFinding:
    """Draw so many chains with a record and as many without it, and bound what tells them apart.

    Parameters
    ----------
    streams
        By number: those with the record are even, those without it odd.
    """
    fault = fault or Fault("")
    with fault.plant():
        task = task_of(
            "discrete-gaussian", "zero-out", p=1, loss="logistic", noise_memory=7, growth=0.1
        )
        # made while the fault is there
        assert all(part.remembers for part in task.update_channels.parts.values())
    sides = [
        np.concatenate([
            _ratios(task, min(TOGETHER, chains - at), streams(2 * at + side), fault, held=not side)
            for at in range(0, chains, TOGETHER)
        ])
        for side in (0, 1)
    ]  # fmt: skip
    said = [np.array([np.count_nonzero(side > 0)]) for side in sides]
    found, least = (float(mu_bound(alarm)(*said, chains)[0]) for alarm in (1.0, ALARM))
    return ChainFinding(task.budget.per_record, found, least)


def _ratios(
    task: RenewableTask, chains: int, stream: SecureStream, fault: Fault, *, held: bool
) -> Vector:
    """Draw chains; return the logarithm of each one's ratio of likelihoods, up to a factor."""
    model = worst(task)
    full, empty = window_of(task, (np.ones(task.size - 1), 1.0)), window_of(task)
    moved = centre(task, full, model) - centre(task, empty, model)
    queries = [
        copies_of(task, full if held and place == RECORD else empty, model, chains)
        for place in range(WINDOWS)
    ]
    with together(task, chains):
        before, chain = _released(task, queries[:FORKED], stream, Chain(), chains)
        behind = [
            _released(task, queries[FORKED:], stream, chain, chains)[0]
            for _ in range(1 + fault.forked)
        ]
    weights = moved / scales_of(task, 1) ** 2
    # half way from no record to one
    middle = sum(c * c for c in memory.COEFFICIENTS) * (moved @ weights) / 2
    found: Vector = sum(
        (_weighed([*before, *after]) @ weights - middle for after in behind), np.zeros(chains)
    )
    return found


def _released(
    task: RenewableTask, queries: list[Query], stream: SecureStream, chain: Chain, chains: int
) -> tuple[list[Matrix], Chain]:
    """Return the numbers of releases behind a chain, each of shape (chains, numbers)."""
    released = []
    for query in queries:
        answer, chain = privatise_behind(task, query, stream, chain)
        released.append(_numbers(answer, chains))
    return released, chain


def _numbers(answer: Answer, chains: int) -> Matrix:
    return np.hstack([part.reshape(chains, -1) for part in answer.parts.values()]).astype(float)


def _weighed(released: list[Matrix]) -> Matrix:
    """Return the sum of the eight draws that met the record, each by how far it moved them.

    What was added to a draw and the draw itself are a sum of releases, up to half a unit.
    """
    total = np.zeros_like(released[0])
    for place, moved in enumerate(memory.COEFFICIENTS, RECORD):
        for behind, coefficient in enumerate(memory.COEFFICIENTS[: place + 1]):
            total += moved * coefficient * released[place - behind]
    return total
