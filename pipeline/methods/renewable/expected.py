"""What a stream of a study is expected to give, before there are data: from public numbers alone.

The stream is followed from model to model, each by its mean and its variance about what it aims at,
along the eigenvectors of the population's curvature: a step of Newton's method from the mean of the
models before it, by the rules of `solution`, with the chance of the records and the noise of the
releases that it rests on. Two models go together by the releases that both rest on. So the distance
of the models from an estimate is known on average, and with it how far linearised scores bend.
Derived in docs/methods/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, ndtr

from pipeline.errors import NumericError
from pipeline.estimators.population import Population, even_points, minimiser_of, rows_of
from pipeline.losses import Regression
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import releases_needed
from pipeline.methods.renewable.solution import (
    CAUTION,
    FARTHEST,
    HIDE,
    LONGEST_STEP,
    SECOND_ORDER,
    SURELY_KNOWN,
    Directions,
    hides,
    moves,
    noise_of,
    raise_to_noise,
    rate_of_bend,
)
from pipeline.privacy import memory
from pipeline.study.model import Privacy, Stream, Study, Window
from pipeline.study.reference import Seen
from pipeline.types import Matrix, Vector

#: Pairs of records that stand for the population, and numbers that they hold at most.
PAIRS, NUMBERS = 2**10, 2**20
#: So many of the records that were seen stand for it, spread evenly over them.
SAMPLED = 2**14


@dataclass(frozen=True, slots=True)
class Reference:
    """What a record is like on average.

    target: Coefficients in encoded units, shape (d,).
    design, responses, weights, mass: Records (1, x) of shape (n, d), with what each weighs, and
        which share of the population it stands for, (n,) each.
    curvature, middle: Of one record, shape (d, d): without the ridge, and about the mean score.
    values, vectors: Eigenvalues of curvature and ridge, shape (d,), and their vectors, (d, d).
    turned: The design along the vectors, shape (n, d).
    """

    target: Vector
    design: Matrix
    responses: Vector
    weights: Vector
    mass: Vector
    curvature: Matrix
    middle: Matrix
    values: Vector
    vectors: Matrix
    turned: Matrix


def reference_of(task: RenewableTask, seen: Seen | None = None) -> Reference:
    """Return the population of a study: the same for all budgets and windows.

    seen: As `Method.plan` takes it.
    """
    privacy = Privacy(mechanism="none")
    if task.study.noised:
        privacy = Privacy(mechanism="insecure-simulation", epsilon=1.0, delta=1e-6, seed=0)
    plain = msgspec.structs.replace(
        task.study, privacy=privacy, window=Window(records=1), stream=Stream(), trust=None
    )
    return _reference(msgspec.json.encode(plain), seen)


@lru_cache(maxsize=16)
def _reference(written: bytes, seen: Seen | None) -> Reference:
    task = RenewableTask(msgspec.json.decode(written, type=Study))
    population, size = Population.of(task, seen=seen), task.size
    most = PAIRS if seen is None else min(SAMPLED, len(seen.features))
    count = max(2**8, 2 * size, min(most, NUMBERS // size))
    rows, mass = rows_of(population, even_points(len(task.encoding.names) + 1, count))
    try:
        target = minimiser_of(population, rows, mass)
    except NumericError:
        target = population.truth
    design, at = rows.design, rows.design @ target
    weights = np.ones(len(mass)) if rows.weights is None else np.array(rows.weights)
    slopes = weights * task.loss.slope(at, rows.responses)
    curved = weights * task.loss.curvature(at, rows.responses)
    curvature = (design * (mass * curved)[:, None]).T @ design
    pulled = design.T @ (mass * slopes)
    middle = (design * (mass * slopes**2)[:, None]).T @ design - np.outer(pulled, pulled)
    values, vectors = np.linalg.eigh(curvature + np.diag(task.penalty))
    return Reference(
        target, design, rows.responses, weights, mass, curvature, middle, values, vectors,
        design @ vectors,
    )  # fmt: skip


#: A plan takes a model each time that slots have grown by this share, one window at least.
PART = 0.05
#: No plan looks further ahead.
MOST_RECORDS = 1e12
#: Newest epochs that an estimate may rest on.
EPOCHS = 8
#: Below this mean square distance of predictors a score is as good as linear.
NEAR = 0.01
#: How far the logarithm of the bend varies from stream to stream, over sqrt(2 / directions).
SCATTER = 0.62
#: By how much of its size noise lowers most of the eigenvalues that are alike.
USUALLY = 0.6
#: Estimates whose records differ by this share are as good as independent.
APART = 0.1
#: Shares of all streams: of those that have had intervals at first, and of those that have them to
#: stay, which a plan looks for until so many times the records.
HALF, LASTING, AHEAD = 0.5, 0.8, 2.0
#: Coefficients that have no interval at so many times the first ones come late.
LATE = 1.5
#: Nodes of the quadrature over the chance of a model.
NODES, WEIGHTS = (np.array(part) for part in hermegauss(3))


class Windows:
    """The windows of all clients, who are alike.

    clients: C, how many there are; >= 1.
    begun: Slots that are released at the public start; what methods take and return is behind them.
    """

    def __init__(self, task: RenewableTask, clients: int) -> None:
        self._growth, self._clients, self._remembers = task.growth, clients, task.remembers
        releases = task.study.stream.publish.releases
        self.begun = task.slots * min(releases, (task.most_at_start or releases) * clients)
        self._ends = task.growth.ends.astype(np.float64)

    def next_window(self, slots: float) -> int:
        """Return the slots of a client's next window, where all together have released so many."""
        return self._growth.next_window(int(slots / self._clients))

    def come(self, slots: float) -> float:
        """Return how many records have come by then. Open windows are half full."""
        return self.begun + slots + self._clients * self.next_window(slots) / 2

    def released(self, records: float) -> float:
        """Return how many slots are released where so many records have come: a window at least."""
        slots = max(records - self.begun, 0.0)
        # an open window is a part of what its client has released, so that this settles
        for _ in range(4):
            open_ones = self._clients * self.next_window(slots) / 2
            slots = max(records - self.begun - open_ones, float(self._growth.records))
        return float(slots)

    def number(self, slots: float | Vector) -> Vector:
        """Return how many windows each client has released by then, with a part of the open one."""
        own = np.asarray(slots) / self._clients
        beyond = np.maximum(own - self._ends[-1], 0.0) / self._growth.largest
        return np.asarray(np.interp(own, self._ends, np.arange(len(self._ends))) + beyond)

    def releases(self, since: Vector, slots: float) -> Vector:
        """Return how many releases there are between two numbers of slots, shape (n,)."""
        return self._clients * (self.number(slots) - self.number(since))

    def noise(self, since: float, slots: float) -> float:
        """Return V, the variance of their noise in units of one release that remembers nothing."""
        first, last = self.number(np.array([since, slots]))
        ends = self.covariance(np.array([last, first, last]), np.array([last, first, first]))
        return float(ends[0] + ends[1] - 2 * ends[2])

    def covariance(self, one: Vector, other: Vector) -> Vector:
        """Return the covariance of the noise in the first so many windows of each client, (n,).

        Clients are spread evenly over their windows, and keep their places.

        one, other: As `number` returns them, shape (n,) each.
        """
        if not self._remembers:
            return self._clients * np.minimum(one, other)
        first, last = one.astype(np.int64), other.astype(np.int64)
        begun, ended = one - first, other - last
        fewer, more = np.minimum(begun, ended), np.maximum(begun, ended)
        both = memory.covariance_of_sums(
            np.array([first, first + (begun > ended), first + 1]),
            np.array([last, last + (ended > begun), last + 1]),
        )
        found: Vector = (1 - more) * both[0] + (more - fewer) * both[1] + fewer * both[2]
        return self._clients * found


def noise_size(task: RenewableTask, records: float, clients: int) -> float:
    """Return s, the spectral size of the curvature's noise in an estimate of so many records."""
    windows = Windows(task, clients)
    slots = windows.released(records)
    return noise_of(task).of_curvature(max(windows.noise(0.0, slots), 1.0), slots)


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a stream; numbers of records are None beyond `MOST_RECORDS`.

    first: After how many half of all streams have had an estimate with an interval for every second
        slope. Such intervals may be gone again in the next one.
    lasting: From how many on four of five streams have them.
    whole: From how many on every coefficient has one.
    late: Which coefficients have none at `LATE` times the first, shape (d,).
    variances: Of the coefficients at the size that was asked for, shape (d,).
    """

    first: float | None
    lasting: float | None
    whole: float | None
    late: NDArray[np.bool_]
    variances: Vector


def expect(
    task: RenewableTask, records: float, clients: int, most: float = MOST_RECORDS,
    seen: Seen | None = None,
) -> Expected:  # fmt: skip
    """Return what is expected of a noised stream of so many records.

    most: On how many an estimate rests at most.
    seen: As `Method.plan` takes it.
    """
    first: float | None = None
    lasting: float | None = None
    whole: float | None = None
    late, without, before = np.zeros(task.size, dtype=bool), 1.0, 0.0
    variances = late.astype(np.float64)
    for number, stage in enumerate(stages(task, clients, seen)):
        now = stage.records
        if now <= records or not number:
            # the first of all stages stands for what is smaller
            variances = stage.variances
        found = bool(first and whole and lasting) and now > AHEAD * (lasting or now)
        if now > most or (now > records and found):
            break
        if stage.ready:
            apart = math.log(now / before) / APART if before else 1.0
            without *= (1 - min(stage.ready, 0.9999)) ** apart
            before = now
        if first is None and without <= HALF:
            first = now
        if first and now <= LATE * first:
            late = stage.unknown
        lasting = None if stage.ready < LASTING else lasting or now
        whole = None if stage.unknown.any() else whole or now
    return Expected(first, lasting, whole, late, variances)


@dataclass(frozen=True, slots=True)
class Stage:
    """What is expected of an estimate.

    records: How many have come, with those in open windows.
    variances: Of the coefficients, with what unknown directions hide, shape (d,).
    unknown: Which of them have no interval for that, shape (d,).
    ready: Chance that the estimate is ready, in [0, 1].
    """

    records: float
    variances: Vector
    unknown: NDArray[np.bool_]
    ready: float


def stages(task: RenewableTask, clients: int, seen: Seen | None = None) -> Iterator[Stage]:
    """Yield what is expected of the estimate at each model of a noised stream, without end."""
    return _course(msgspec.json.encode(task.study), clients, seen).stages()


@lru_cache(maxsize=32)
def _course(written: bytes, clients: int, seen: Seen | None) -> _Course:
    task = RenewableTask(msgspec.json.decode(written, type=Study))
    return _Course(task, clients, reference_of(task, seen))


class _Model(NamedTuple):
    """The newest model, of which no releases have come.

    sums: Its deviation from the target along the eigenvectors, and what a record's score and the
        ridge are expected to be there, (d,) each; curvature of a record there over that at the
        target; its mean square distance. Shape (2 d + 2,).
    deviation: Root of the mean square of predictors by its chance.
    records, noise: Roots of the shares of that which are by chance of the records and by noise, for
        a slot that it rests on and for a unit of that noise.
    since, until: Slots behind the public start that it rests on; none of the first.
    begun, ended: Windows of each client by then.
    """

    sums: Vector
    deviation: float
    records: float = 0.0
    noise: float = 0.0
    since: float = 0.0
    begun: float = 0.0
    until: float = 0.0
    ended: float = 0.0


class _Estimates(NamedTuple):
    """Estimates, each from all releases since the first model of an epoch; the oldest first.

    mean, spread: Of their deviations from the target along the eigenvectors, shape (k, d) each.
    rests: Records, noise, since and begun, as of a model, shape (k, 4).
    rough: Variances of the coefficients, shape (k, d).
    hidden: What unknown directions usually hide of them, and what they may, shape (2, k, d).
    bent, error, moving: As in `Solution`, of each; few: whether intervals need more releases.
    near: Below which bend each is ready; 0 where it is not for other reasons.
    scatter: How far the logarithm of its bend varies from stream to stream.
    """

    mean: Matrix
    spread: Matrix
    rests: Matrix
    rough: Matrix
    hidden: NDArray[np.float64]
    bent: list[float]
    error: list[float]
    moving: list[bool]
    few: list[bool]
    near: list[float]
    scatter: list[float]

    def within(self, place: int, most: float) -> float:
        """Return the chance that linearised scores bend an estimate by so much at most."""
        bent, scatter = self.bent[place], self.scatter[place]
        if bent <= 0 or most <= 0:
            return float(most > 0)
        return float(ndtr(math.log(most / bent) / scatter + scatter / 2))

    def best(self) -> tuple[int, float]:
        """Return which rests on as many of the newest epochs as make the error smaller.

        Or, where these have too few releases, the newest that usually gives intervals. Also the
        chance that a stream's is ready: where models bend it less, it takes one more.
        """
        best = len(self.bent) - 1
        ready = self.within(best, self.near[best])
        for place in reversed(range(best)):
            slower = self.moving[place] and not self.moving[best]
            room = self.error[best] - self.error[place] + CAUTION**2 * self.bent[place] ** 2
            taken = 0.0 if slower else self.within(place, math.sqrt(max(room, 0.0)) / CAUTION)
            ready = (1 - taken) * ready + min(taken, self.within(place, self.near[place]))
            if slower or self.error[place] > self.error[best]:
                break
            best = place
        if self.few[best]:
            others = [at for at in range(best) if self.within(at, self.near[at]) > HALF]
            best = max(others, default=best)
            ready = max(ready, self.within(best, self.near[best]))
        return best, ready


class _Course:
    """Follows a stream. Vectors are along the eigenvectors of curvature and ridge.

    Models go together by the records that both rest on, and by less noise where it remembers, as
    later releases take back what is in earlier ones. Most is kept as sums since an epoch's first.
    """

    def __init__(self, task: RenewableTask, clients: int, ref: Reference) -> None:
        self._task, self._noise, self._windows = task, noise_of(task), Windows(task, clients)
        self._ref = ref
        turn, self._loadings = ref.vectors, ref.vectors.T**2
        self._at = ref.design @ ref.target
        self._target = turn.T @ ref.target
        self._middle = np.diag(turn.T @ ref.middle @ turn)
        self._curvature = np.maximum(np.diag(turn.T @ ref.curvature @ turn), 0.0)
        #: Weighs variances to the mean square of predictors, records by their curvature.
        self._weight = max(float(ref.curvature[0, 0]), 1e-9)
        self._weights = self._curvature / self._weight
        self._rate = rate_of_bend(task, ref.curvature, ref.target)
        self._squares = ref.turned.T**2 @ ref.mass
        self._score, self._bend = self._of_records(*np.zeros((2, task.size)))
        self._longest = LONGEST_STEP / task.norm_bound
        self._slots, self._epoch = 0.0, -1
        self._newest = self._model(*self._first())
        #: Of m models: records and noise as of `_Model`, each times its deviation and the slots
        #: that are folded there; since, begun, until, ended; covariance of the noise that they rest
        #: on with that of all releases. Shape (7, m).
        self._models = np.empty((7, 0))
        #: Of k first models of an epoch: their places among all; slots, and each client's windows,
        #: before their releases. Of all models since then, times the slots that are folded there:
        #: the mean square by chance; what records, and noise but for that above, they have in
        #: common with all releases since then; what `_Model.sums` has. Shape (k, 5 + 2 d + 2).
        self._places, self._starts = list[int](), np.empty((0, 5 + 2 * task.size + 2))
        self._stages, self._lock = list[Stage](), Lock()

    def stages(self) -> Iterator[Stage]:
        """As `stages`."""
        for number in count():
            with self._lock:
                if number == len(self._stages):
                    try:
                        self._stages.append(self._next())
                    except BaseException:  # who asks again must not go on behind half a step
                        _course.cache_clear()
                        raise
            yield self._stages[number]

    def _next(self) -> Stage:
        windows, before = self._windows, self._slots
        epoch = memory.epoch_of(int(windows.begun + before), self._task.slots)
        if epoch > self._epoch:
            self._epoch = epoch
            self._begin()
        amount = max(PART * (windows.begun + before), windows.next_window(before))
        self._fold(amount)
        self._slots = slots = before + amount
        found = self._estimates(slots)
        best, ready = found.best()
        rests = (*found.rests[best].tolist(), slots, float(windows.number(slots)))
        self._newest = self._model(found.mean[best], found.spread[best], *rests)
        rough, (usual, most) = found.rough[best], found.hidden[:, best]
        return Stage(windows.come(slots), rough + usual, most > HIDE * rough, ready)

    def _begin(self) -> None:
        """Begin an epoch with the newest model."""
        self._places.append(self._models.shape[1])
        begun = np.zeros((1, self._starts.shape[1]))
        begun[0, :2] = self._slots, self._newest.ended
        self._starts = np.append(self._starts, begun, axis=0)
        if len(self._places) > EPOCHS:
            # what is older is as good as nothing of all records
            _, least, *_ = self._places
            self._places = [place - least for place in self._places[1:]]
            self._models, self._starts = self._models[:, least:], self._starts[1:]

    def _fold(self, amount: float) -> None:
        """Take the releases at the newest model."""
        new, at = self._newest, amount * self._newest.deviation
        records, noise, since, begun, until, ended, later = self._models
        starts, numbers, common, by_records, by_noise = self._starts.T[:5]
        firsts, models = len(numbers), len(begun)
        one = np.concatenate([begun, ended, numbers, numbers])
        other = np.repeat([new.begun, new.ended], [2 * models + firsts, firsts])
        parts = np.cumsum([models, models, firsts])
        before, until_it, first, last = np.split(self._windows.covariance(one, other), parts)
        shared = np.maximum(until - np.maximum(since, new.since), 0.0)
        both = new.records * records * shared + new.noise * noise * (later + before - until_it)
        common += at * (2 * self._since(both) + at)
        by_records += at * new.records * np.maximum(new.until - np.maximum(new.since, starts), 0.0)
        by_noise += at * new.noise * (first - last)
        self._starts[:, 5:] += amount * new.sums
        added = np.array([at * new.records, at * new.noise, *new[4:], 0.0])
        self._models = np.append(self._models, added[:, None], axis=1)

    def _since(self, each: Vector) -> Vector:
        """Return sums of what each model has since the first ones of each epoch, shape (k,)."""
        return np.asarray(np.append(np.cumsum(each[::-1])[::-1], 0.0)[self._places])

    def _estimates(self, slots: float) -> _Estimates:
        """Return the estimates at so many slots. Numbers of each have the shape (k, 1)."""
        noise, size, weights = self._noise, self._task.size, self._weights[:, None]
        starts, _, common, by_records, by_noise = self._starts.T[:5, :, None]
        count, variance = slots - starts, self._variances(slots)
        pairs = list(zip(variance.ravel().tolist(), count.ravel().tolist(), strict=True))
        sizes = np.array([[noise.of_curvature(*pair)] for pair in pairs])
        chance = np.array([[noise.of_gradient(*pair) ** 2] for pair in pairs])
        sums, common = self._starts[:, 5:] / count, common / count**2
        mean, score, bend, square = np.split(sums, [size, -2, -1], axis=1)
        values = self._ref.values + (bend - 1) * self._curvature
        _, drawn, raised = raise_to_noise(values, sizes)
        way = (score + drawn * (self._target + mean)) / raised
        noisy = chance / raised**2
        spread = bend * self._middle / count / raised**2 + noisy
        # mean squares of predictors by chance: of the estimate, of the mean model, of the way
        own = spread @ weights
        share = np.minimum(noisy @ weights / own, 1.0)
        records, of_noise = np.sqrt((1 - share) / count), np.sqrt(share / variance)
        by_noise = by_noise + self._since(self._models[1] * self._models[6])[:, None]
        both = np.sqrt(own) * (records * by_records + of_noise * by_noise) / count
        apart, by_chance = np.maximum(common - 2 * both + own, 0.0), spread / own
        whole = way @ self._ref.vectors.T
        squares = way**2 + apart * by_chance
        moved = _total(squares * (np.maximum(values, 0.0) + SURELY_KNOWN * sizes)) / self._weight
        cut = np.maximum(_cut(_total(squares), self._longest, size), _cut(moved, FARTHEST, size))
        way, apart = cut * way, cut**2 * apart
        squares = way**2 + apart * by_chance
        turned = sizes**2 / (2 * size) * (_total(squares) + squares)
        spread = cut**2 * (spread + turned / raised**2) + (1 - cut) ** 2 * common * by_chance
        scatter = np.maximum(square - mean**2 @ weights - common, 0.0)
        # to one more step beyond, but for a loss whose curvature jumps
        times = 1 if self._task.loss.name == "gdwd" else 4
        bent = SECOND_ORDER * self._rate * (scatter + times * (way**2 @ weights + apart))
        mean, rough = mean - way, spread @ self._loadings
        # noise drives eigenvalues that are alike apart, the least one by about its size
        lower = values - np.reshape([USUALLY, 1.0], (2, 1, 1)) * sizes * math.sqrt(1 - 1 / size)
        hidden = hides(self._task, Directions(
            self._ref.curvature, lower, self._ref.vectors, sizes[:, 0], self._target + mean, spread,
            chance + np.maximum(lower, 0.0) / count,
        ))  # fmt: skip
        much = hidden[0] > HIDE * rough
        moving = (moves(whole, cut * whole, rough) & ~much).any(axis=1)
        few = self._windows.releases(self._starts[:, 0], slots) < releases_needed(self._task) - 0.5
        late = few | moving | (np.count_nonzero(much[:, 1:], axis=1) > size // 2)
        # the least one is of a coefficient that hides nothing
        near = np.where(late, 0.0, np.sqrt(rough.min(axis=1)))
        # as many independent squares as directions carry the variance
        each = spread * self._weights
        varies = SCATTER * np.sqrt(2 * _total(each**2)) / _total(each)
        error = _total(each) + CAUTION**2 * bent**2
        return _Estimates(
            mean, spread, np.hstack([records, of_noise, self._starts[:, :2]]), rough, hidden,
            bent.ravel().tolist(), error.ravel().tolist(), moving.tolist(), few.tolist(),
            near.tolist(), varies.ravel().tolist(),
        )  # fmt: skip

    def _variances(self, slots: float) -> Vector:
        """Return V of the sums since each epoch's first model, (k, 1), and keep that of models."""
        *_, begun, _, ended, later = self._models
        numbers, end, models = self._starts[:, 1], self._windows.number(slots), len(later)
        one = np.concatenate([ended, begun, numbers, numbers, [end]])
        other = np.concatenate([np.full(2 * models + len(numbers), end), numbers, [end]])
        found = self._windows.covariance(one, other)
        later[:] = found[:models] - found[models : 2 * models]
        across, own = found[2 * models : -1].reshape(2, -1, 1)
        return np.asarray(found[-1] + own - 2 * across)

    def _model(self, mean: Vector, spread: Vector, *rest: float) -> _Model:
        """Return a model by its mean and its variance, (d,) each, with the rest of its numbers."""
        score, bend = self._ref.values * mean, 1.0
        distance = float(mean**2 @ self._weights)
        chance = float(spread @ self._weights)
        if distance + chance > NEAR:
            found, curvature = self._of_records(mean, spread)
            penalty, turn = self._task.penalty, self._ref.vectors
            score = found - self._score + turn.T @ (penalty * (turn @ mean))
            bend = curvature / max(self._bend, 1e-9)
        sums = np.concatenate([mean, score, [bend, distance + chance]])
        return _Model(sums, math.sqrt(chance), *rest)

    def _of_records(self, mean: Vector, spread: Vector) -> tuple[Vector, float]:
        """Return the expected score and curvature of a record at a model, shape (d,)."""
        ref, task, middle = self._ref, self._task, self._at + self._ref.turned @ mean
        points = middle[:, None] + math.sqrt(float(self._squares @ spread)) * NODES
        responses, share = np.repeat(ref.responses, len(NODES)), ref.mass * ref.weights
        slopes, bends = (
            share * (of(points.ravel(), responses).reshape(points.shape) @ WEIGHTS) / WEIGHTS.sum()
            for of in (task.loss.slope, task.loss.curvature)
        )
        return ref.turned.T @ slopes, float(bends.sum())

    def _first(self) -> tuple[Vector, Vector]:
        """Return mean deviation and variance of `estimate_private` at the start, (d,) each."""
        task, ref, turn, slots = self._task, self._ref, self._ref.vectors, self._windows.begun
        deviation = task.initial_channels.gradient.standard_deviation
        deviation /= math.sqrt(slots * task.slots)
        point, variance = np.zeros(task.size), np.zeros(task.size)
        if isinstance(task.loss, Regression):
            slopes = task.loss.start_slope(ref.responses)
            middle = float(ref.mass @ slopes)
            spread = math.hypot(deviation, math.sqrt(float(ref.mass @ slopes**2) / slots))
            ends = [task.loss.intercept_of(middle + sign * spread, spread) for sign in (-1, 1)]
            point[0], variance[0] = sum(ends) / 2, ((ends[1] - ends[0]) / 2) ** 2
        else:
            slopes = ref.weights * task.loss.slope(np.zeros(len(ref.mass)), ref.responses)
            held = task.loss.start_curvature * task.norm_bound**2 / task.size + task.penalty
            point = -(ref.design.T @ (ref.mass * slopes)) / held
            squares = ref.design.T**2 @ (ref.mass * slopes**2)
            variance = (squares / slots + 2 * deviation**2) / held**2
            cut = _cut(float(point @ point + variance.sum()), self._longest, len(point))
            point, variance = cut * point, cut**2 * variance
        return turn.T @ (point - ref.target), turn.T**2 @ variance


def _total(each: Matrix) -> Matrix:
    """Return the sums of the rows, shape (k, 1)."""
    return np.asarray(each.sum(axis=1, keepdims=True))


def _cut(squares: float | Vector, longest: float, size: int) -> Vector:
    """Return which part is left of steps that are no longer than `longest`, in (0, 1].

    squares: Their mean square lengths before, those of chi-squared variables of so many degrees.
    """
    most = size * longest**2 / np.maximum(squares, 1e-300)
    return np.asarray(np.sqrt(chdtr(size + 2, most) + most / size * chdtrc(size, most)))
