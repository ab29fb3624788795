"""Many draws of the releases of one or more windows, and what they tell two neighbours apart by.

Draws come from the code that clients run. To have very many, copies of a window lie side by side
in one call of `privatise`, all of whose steps treat every number by itself. `one_by_one` takes the
whole way from records to a payload instead, and `few_at_a_time` keeps the look-up of short vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from pipeline.linalg import upper_is_diagonal
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy import accounting as gdp
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays, Row
from pipeline.release import query as query_module
from pipeline.release.model import Model
from pipeline.release.privatise import privatise
from pipeline.release.query import Exact, MatrixPart, Part, Query, VectorPart
from pipeline.release.task import Task
from pipeline.stream.release import release_of
from pipeline.types import Integers, Matrix, Vector
from tests.attacks.bounds import Scores, epsilon_bound, mu_bound, strongest
from tests.attacks.studies import Attack, Window
from tests.wire import numbers_of

#: Makes the generator of noise for one side and one window of an attack.
Streams = Callable[[int], SecureStream]
#: Copies that keep every vector short: long ones are looked up in another way.
FEW = 64
Draw = Callable[[Task, Window, Model, int, SecureStream], Integers]


class Tape(SecureStream):
    """A stream that can be played again: what the fault of one noise for two windows comes to."""

    def __init__(self, source: SecureStream) -> None:
        super().__init__()
        self._source, self._parts, self._at = source, list[NDArray[np.uint64]](), 0

    def rewound(self) -> Tape:
        """Return to the start."""
        self._at = 0
        return self

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """Return the next numbers, those of the first time where there was one."""
        if self._at == len(self._parts):
            self._parts.append(self._source.uint64(count).copy())
        part = self._parts[self._at]
        assert len(part) == count, "what is played again must be asked for in the same way"
        self._at += 1
        return part


@dataclass(frozen=True, slots=True)
class Finding:
    """Lower bounds of the epsilon that was kept.

    Attributes
    ----------
    claimed
        By the form of guarantee that is claimed: by way of mu for Gaussian noise, pure for Laplace.
    events
        From the probabilities of one event at the claimed delta, whatever the mechanism.
    """

    claimed: float
    events: float


def copies_of(task: Task, window: Window, model: Model, draws: int) -> Query:
    """Return the query of a window so many times, side by side in each part."""

    def copies(part: Part) -> Part:
        assert isinstance(part, VectorPart | MatrixPart)
        sums = part.sums
        many = Exact(np.tile(sums.integers, draws), np.tile(sums.exponents, draws))
        return replace(part, sums=many)

    asked = task.query(Arrays(*window), model)
    return Query(asked.model, {name: copies(part) for name, part in asked.parts.items()})


@contextmanager
def together(task: Task, draws: int) -> Iterator[None]:
    """Let the program take so many copies side by side, of which it knows nothing."""
    diagonal = np.tile(upper_is_diagonal(task.size), draws)
    original = Channel.round

    def once(self: Channel, integers: Integers, exponents: Integers) -> Integers:
        size = len(integers) // draws
        return np.tile(original(self, integers[:size], exponents[:size]), draws)

    with (
        mock.patch.object(query_module, "upper_is_diagonal", return_value=diagonal),
        # copies of a window round alike
        mock.patch.object(Channel, "round", once),
    ):
        yield


def side_by_side(
    task: Task, window: Window, model: Model, draws: int, stream: SecureStream
) -> Integers:
    """Release a window so many times at once, shape (draws, numbers)."""
    with together(task, draws):
        noised = privatise(task, copies_of(task, window, model, draws), stream)
    return np.hstack([part.reshape(draws, -1) for part in noised.parts.values()])


def few_at_a_time(
    task: Task, window: Window, model: Model, draws: int, stream: SecureStream
) -> Integers:
    """Release a window so many times, FEW at once."""
    counts = [min(FEW, draws - first) for first in range(0, draws, FEW)]
    return np.vstack([side_by_side(task, window, model, count, stream) for count in counts])


def one_by_one(
    task: Task, window: Window, model: Model, draws: int, stream: SecureStream
) -> Integers:
    """Release a window so many times, each from its records to a payload, and read the payloads."""
    rows = [Row(x, float(y), 0) for x, y in zip(*window, strict=True)]
    payloads = [
        release_of(task, rows, model, stream, client="a", ledger="l", seq=0) for _ in range(draws)
    ]
    return np.array([numbers_of(task, p) for p in payloads])


def scales_of(task: RenewableTask, version: int) -> Vector:
    """Return the scale of what is drawn for each number of a release, up to a factor."""
    lengths = {field.name: field.length for field in task.layout.at(version)}
    pure = task.study.privacy.delta is None

    def of(channel: Channel) -> float:
        return channel.noise.standard_deviation / (np.sqrt(2) if pure else 1)

    found = []
    for name, channel in task.channels(version).parts.items():
        scale = np.full(lengths[name], of(channel))
        if name in ("curvature", "middle"):
            scale[~upper_is_diagonal(task.size)] = of(channel.off_diagonal())
        found.append(scale)
    return np.concatenate(found)


def centre(task: Task, window: Window, model: Model) -> Vector:
    """Return what a release of this window holds before noise, in the order of the payload."""
    rounded = []
    for part in task.query(Arrays(*window), model).parts.values():
        assert isinstance(part, VectorPart | MatrixPart)
        channel = part.diagonal if isinstance(part, MatrixPart) else part.channel
        rounded.append(channel.round(part.sums.integers, part.sums.exponents))
    return np.concatenate(rounded).astype(float)


def measure(attack: Attack, draws: int, streams: Streams, *, draw: Draw = side_by_side) -> Finding:
    """Draw the releases of both neighbours, and bound what they tell apart.

    Parameters
    ----------
    streams
        By number: those of the left side are even, those of the right side odd.
    """
    task = attack.task
    seen, centres = [], []
    for side, windows in enumerate((attack.left, attack.right)):
        numbers = [side if attack.twins else 2 * i + side for i in range(len(windows))]
        # one stream for each number: the real generator gives no noise twice by itself
        tapes = {number: Tape(streams(number)) for number in numbers}
        releases = [
            draw(task, window, attack.model, draws, tapes[number].rewound())
            for window, number in zip(windows, numbers, strict=True)
        ]
        seen.append(np.hstack(releases).astype(float))
        centres.append(np.concatenate([centre(task, w, attack.model) for w in windows]))
    views = View(seen[0], *centres), View(seen[1], *centres)
    learnt = np.vstack([seen[0][: draws // 3] - centres[0], seen[1][: draws // 3] - centres[1]])
    statistics = [fisher(views, learnt)]
    if task.study.privacy.delta is None:
        scale = np.maximum(np.abs(learnt).mean(axis=0), 0.5)
        statistics.append(Scores(*(laplace_ratio(view, scale) for view in views)))
    return finding(statistics, task.study.privacy.delta)


def finding(statistics: list[Scores], delta: float | None) -> Finding:
    """Bound epsilon in both ways."""
    events = strongest(statistics, epsilon_bound(delta or 0.0))
    if delta is None:
        return Finding(events, events)
    mu = strongest(statistics, mu_bound())
    return Finding(gdp.epsilon_of(mu, delta), events)


@dataclass(frozen=True, slots=True)
class View:
    """What an adversary has before it.

    Attributes
    ----------
    seen
        Released numbers, shape (draws, numbers).
    left, right
        What they would be before noise under each neighbour, shape (numbers,), or a row for each
        draw where that depends on earlier releases.
    """

    seen: Matrix
    left: Matrix | Vector
    right: Matrix | Vector


def fisher(views: tuple[View, View], learnt: Matrix) -> Scores:
    """Return the best linear statistic; under Gaussian noise it is the best of all.

    Parameters
    ----------
    learnt
        Draws of the noise, shape (some, numbers). Its covariance is learnt whole, so that noise
        which repeats gives itself away.
    """
    # one lattice unit more, lest a number without any noise make the matrix singular
    covariance = learnt.T @ learnt / len(learnt) + np.eye(learnt.shape[1])
    direction = np.linalg.solve(covariance, views[0].left - views[0].right)
    return Scores(*(view.seen @ direction for view in views))


def gaussian_ratio(view: View, scale: Vector) -> Vector:
    """Return the logarithm of the ratio of two normal densities, shape (draws,)."""
    middle = (view.left + view.right) / 2
    found: Vector = ((view.seen - middle) * (view.left - view.right) / scale**2).sum(axis=1)
    return found


def laplace_ratio(view: View, scale: Vector) -> Vector:
    """Return the logarithm of the ratio of two Laplace densities, shape (draws,)."""
    further = np.abs(view.seen - view.right) - np.abs(view.seen - view.left)
    found: Vector = (further / scale).sum(axis=1)
    return found
