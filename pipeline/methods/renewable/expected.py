"""What a study can expect: a public reference population, and its intervals.

What a stream of a study is expected to give, before there are data: from public numbers alone.

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
    HIDE,
    LONGEST_STEP,
    SECOND_ORDER,
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


def reference_of(task: RenewableTask, seen: Seen | None = None) -> Reference:
    """Return the population of a study: the same for all budgets and windows.

    seen: As `Method.plan` takes it.
    """
    budget = {"epsilon": 1.0, "delta": 1e-6, "seed": 0}
    privacy = (
        Privacy(mechanism="insecure-simulation", **budget)  # type: ignore[arg-type]
        if task.study.noised
        else Privacy(mechanism="none")
    )
    plain = msgspec.structs.replace(
        task.study, privacy=privacy, window=Window(records=1), stream=Stream(), trust=None
    )
    return _reference(msgspec.json.encode(plain), seen)


@lru_cache(maxsize=8)
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
        target, design, rows.responses, weights, mass, curvature, middle, values, vectors
    )


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

    begun: Slots that are released at the public start.
    """

    def __init__(self, task: RenewableTask, clients: int) -> None:
        self._growth, self._clients, self._remembers = task.growth, clients, task.remembers
        releases = task.study.stream.publish.releases
        self.begun = task.slots * min(releases, (task.most_at_start or releases) * clients)
        self._ends = task.growth.ends.astype(np.float64)

    def next_window(self, slots: float) -> int:
        """Return the slots of a client's next window, where all together have released so many.

        slots: Here and below those behind the public start.
        """
        return self._growth.next_window(int(slots / self._clients))

    def come(self, slots: float) -> float:
        """Return how many records have come by then. Open windows are half full."""
        return self.begun + slots + self._clients * self.next_window(slots) / 2

    def released(self, records: float) -> float:
        """Return how many slots are released where so many records have come: a window at least."""
        slots = float(max(records - self.begun, 0.0))
        # an open window is a part of what its client has released, so that this settles
        for _ in range(4):
            later = records - self.begun - self._clients * self.next_window(slots) / 2
            slots = max(later, float(self._growth.records))
        return float(slots)

    def number(self, slots: float | Vector) -> Vector:
        """Return how many windows each client has released by then, with a part of the open one."""
        own = np.asarray(slots) / self._clients
        beyond = np.maximum(own - self._ends[-1], 0.0) / self._growth.largest
        found: Vector = np.interp(own, self._ends, np.arange(len(self._ends))) + beyond
        return found

    def releases(self, since: float, slots: float) -> float:
        """Return how many releases there are between two numbers of slots."""
        return float(self._clients * (self.number(slots) - self.number(since)))

    def noise(self, since: float, slots: float) -> float:
        """Return V, the variance of their noise in units of one release that remembers nothing."""
        return float(self.together(since, slots, since, slots))

    def together(
        self, since: float | Vector, until: float | Vector, other: float, last: float
    ) -> Vector:
        """Return the covariance of the noise of the releases between two pairs of numbers of slots.

        Clients are spread evenly over their windows, and keep their places.
        """
        ends = np.empty((4, *np.shape(since)))
        ends[0], ends[1], ends[2], ends[3] = since, until, other, last
        numbers = self.number(ends)
        found = self._both(numbers[[1, 0, 1, 0]], numbers[[3, 2, 2, 3]])
        total: Vector = self._clients * (found[0] + found[1] - found[2] - found[3])
        return total

    def _both(self, one: Vector, other: Vector) -> Vector:
        """Return the mean covariance of a client's noise in so many windows, and in so many."""
        if not self._remembers:
            return np.minimum(one, other)
        first, last = one.astype(np.int64), other.astype(np.int64)
        begun, ended = one - first, other - last
        fewer, more = np.minimum(begun, ended), np.maximum(begun, ended)
        both = memory.covariance_of_sums(
            np.array([first, first + (begun > ended), first + 1]),
            np.array([last, last + (ended > begun), last + 1]),
        )
        found: Vector = (1 - more) * both[0] + (more - fewer) * both[1] + fewer * both[2]
        return found


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
    return _Course(task, clients, reference_of(task, seen)).run()


class _Estimate(NamedTuple):
    """An estimate from the releases at some newest models, along the eigenvectors.

    since: Slots behind the public start from which on they count.
    slots, noise: How many these are, and V of their sums.
    mean, spread: Of its deviation from the target, shape (d,) each.
    shares: As `records` and `noise` of the models.
    values, size: Eigenvalues of curvature and ridge, shape (d,), and s.
    bent, error, moving: As in `Solution`.
    """

    since: float
    slots: float
    noise: float
    mean: Vector
    spread: Vector
    shares: tuple[float, float]
    values: Vector
    size: float
    bent: float
    error: float
    moving: bool = False


class _Models:
    """The models so far, as deviations from the target along the eigenvectors.

    means, scores: Of k models, and what a record's score and the ridge are expected to be there,
        shape (k, d) each.
    bends: Curvature of a record there over that at the target, shape (k,).
    deviations: Root mean square of predictors by their chance, shape (k,).
    records, noise: Roots of the shares of their variance that are by chance of the records and by
        noise, for a slot that they rest on and for a unit of that noise, shape (k,).
    since, until: Slots behind the public start that they rest on, shape (k,); none of the first.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._vectors, self._numbers = list[tuple[Vector, Vector]](), list[tuple[float, ...]]()

    def add(self, mean: Vector, score: Vector, *numbers: float) -> None:
        """Add a model, with its bend, deviation, records, noise, since and until."""
        self._vectors.append((mean, score))
        self._numbers.append(numbers)
        self.means, self.scores = np.array(self._vectors).swapaxes(0, 1)
        self.bends, self.deviations, *rest = np.array(self._numbers).T
        self.records, self.noise, self.since, self.until = rest

    def __len__(self) -> int:
        return len(self._numbers)

    def covariances(
        self, own: float, records: float, noise: float, since: float, until: float, both: Vector
    ) -> Vector:
        """Return covariances of the last n with another estimate, as mean squares of predictors.

        Records go together by those that both rest on; noise that remembers by less, as later
        releases take back what is in earlier ones.

        own: Its deviation; the next four as of the models.
        both: Covariance of the noise that each of them and it rest on, shape (n,).
        """
        last = slice(len(self) - len(both), None)
        shared = np.minimum(self.until[last], until) - np.maximum(self.since[last], since)
        parts = records * self.records[last] * np.maximum(shared, 0.0)
        parts += noise * self.noise[last] * both
        found: Vector = own * self.deviations[last] * parts
        return found


class _Course:
    """Follows a stream. Vectors are along the eigenvectors of curvature and ridge."""

    def __init__(self, task: RenewableTask, clients: int, ref: Reference) -> None:
        self._task, self._noise, self._windows = task, noise_of(task), Windows(task, clients)
        self._ref = ref
        turn, self._loadings = ref.vectors, ref.vectors**2
        self._design, self._at = ref.design @ turn, ref.design @ ref.target
        self._target = turn.T @ ref.target
        self._middle = np.diag(turn.T @ ref.middle @ turn)
        self._curvature = np.maximum(np.diag(turn.T @ ref.curvature @ turn), 0.0)
        #: Weighs variances to the mean square of predictors, records by their curvature.
        self._weights = self._curvature / max(float(ref.curvature[0, 0]), 1e-9)
        self._rate = rate_of_bend(task, ref.curvature, ref.target)
        self._squares = self._design.T**2 @ ref.mass
        nothing = np.zeros(task.size)
        self._score, self._bend = self._of_records(nothing, nothing)
        self._longest = LONGEST_STEP / task.norm_bound
        self._models = _Models(self._windows)
        #: Slots of the releases at each model.
        self._folded = list[float]()
        #: Models that are the first of their epoch: where their releases begin, and what all models
        #: since then have in common.
        self._starts, self._common = dict[int, float](), dict[int, float]()

    def run(self) -> Iterator[Stage]:
        """As `stages`."""
        slots, epoch, begun, models = 0.0, -1, self._windows.begun, self._models
        self._add(*self._first(), 0.0, 0.0, 0.0, 0.0)
        while True:
            newest = memory.epoch_of(int(begun + slots), self._task.slots)
            if newest > epoch:
                epoch, self._starts[len(models) - 1] = newest, slots
                self._common[len(models) - 1] = 0.0
                if len(self._common) > EPOCHS:
                    # what is older is as good as nothing of all records
                    self._common.pop(min(self._common))
            amount = max(PART * (begun + slots), self._windows.next_window(slots))
            slots += amount
            self._fold(amount)
            best, ready = self._best(slots)
            yield self._stage(best, slots, ready)
            self._add(best.mean, best.spread, *best.shares, best.since, slots)

    def _fold(self, amount: float) -> None:
        """Take the releases at the newest model."""
        models = self._models
        own, oldest = models.deviations[-1], min(self._common)
        records, noise = models.records[-1], models.noise[-1]
        since, until = models.since[-1], models.until[-1]
        shared = self._windows.together(models.since[oldest:], models.until[oldest:], since, until)
        both = models.covariances(own, records, noise, since, until, shared)[:-1]
        both *= self._folded[oldest:]
        for first in self._common:
            together = float(both[first - oldest :].sum())
            self._common[first] += amount * (2 * together + amount * own**2)
        self._folded.append(amount)

    def _best(self, slots: float) -> tuple[_Estimate, float]:
        """Return the estimate from as many of the newest epochs as make the error smaller.

        Also the chance that a stream's is ready. Streams whose models bend it less than usual take
        another epoch where this one does not, and the other way round.
        """
        newest, *older = sorted(self._common, reverse=True)
        best = self._estimate(newest, slots)
        ready = self._within(best, self._near(best))
        for first in older:
            found = self._estimate(first, slots)
            slower = found.moving and not best.moving
            room = best.error - found.error + CAUTION**2 * found.bent**2
            taken = 0.0 if slower else self._within(found, math.sqrt(max(room, 0.0)) / CAUTION)
            ready = (1 - taken) * ready + min(taken, self._within(found, self._near(found)))
            if slower or found.error > best.error:
                break
            best = found
        return best, ready

    def _estimate(self, first: int, slots: float) -> _Estimate:
        """Return the estimate from the releases at the models from `first` on."""
        models, since = self._models, self._starts[first]
        count = slots - since
        share = np.array(self._folded[first:]) / count
        means, deviations = models.means[first:], models.deviations[first:]
        mean, bend = share @ means, float(share @ models.bends[first:])
        both = self._windows.together(
            np.append(models.since[first:], since), np.append(models.until[first:], slots),
            since, slots,
        )  # fmt: skip
        noise = float(both[-1])
        size = self._noise.of_curvature(noise, count)
        values = self._ref.values + (bend - 1) * self._curvature
        _, drawn, raised = raise_to_noise(values, size)
        way = (share @ models.scores[first:] + drawn * (self._target + mean)) / raised
        by_noise = self._noise.of_gradient(noise, count) ** 2 / raised**2
        spread = bend * self._middle / count / raised**2 + by_noise
        # mean squares of predictors by chance: of the estimate, of the mean model, of the way
        own, common = float(spread @ self._weights), self._common[first] / count**2
        noisy = float(by_noise @ self._weights) / own
        shares = math.sqrt((1 - noisy) / count), math.sqrt(noisy / noise)
        both = models.covariances(math.sqrt(own), *shares, since, slots, both[:-1])
        apart, by_chance = max(common - 2 * float(share @ both) + own, 0.0), spread / own
        whole = self._ref.vectors @ way
        cut = _cut(float(way @ way + apart * by_chance.sum()), self._longest, len(way))
        way, apart = cut * way, cut**2 * apart
        squares = way**2 + apart * by_chance
        turned = size**2 / (2 * len(way)) * (squares.sum() + squares)
        spread = cut**2 * (spread + turned / raised**2) + (1 - cut) ** 2 * common * by_chance
        scatter = share @ (deviations**2 + means**2 @ self._weights) - mean**2 @ self._weights
        scatter = max(float(scatter) - common, 0.0)
        # to one more step beyond, but for a loss whose curvature jumps
        times = 1 if self._task.loss.name == "gdwd" else 4
        distance = scatter + times * (float(way**2 @ self._weights) + apart)
        bent = SECOND_ORDER * self._rate * distance
        error = float(spread @ self._weights) + CAUTION**2 * bent**2
        rough = self._loadings @ spread
        far = moves(whole, cut * whole, rough)
        found = _Estimate(
            since, count, noise, mean - way, spread, shares, values, size, bent, error
        )
        if far.any() and (far & (self._hides(found, USUALLY) <= HIDE * rough)).any():
            found = found._replace(moving=True)
        return found

    def _hides(self, found: _Estimate, part: float) -> Vector:
        """Return what unknown directions may hide of each coefficient, shape (d,).

        Noise drives eigenvalues that are alike apart, the least one by about its size.

        part: Of that by which they count as lower.
        """
        apart = found.size * math.sqrt(1 - 1 / len(found.values))
        values, own = found.values - part * apart, self._target + found.mean
        by_noise = self._noise.of_gradient(found.noise, found.slots) ** 2
        chance = by_noise + np.maximum(values, 0.0) / found.slots
        ref = self._ref
        return hides(self._task, Directions(
            ref.curvature, values, ref.vectors, found.size, own, found.spread, chance
        ))  # fmt: skip

    def _near(self, found: _Estimate) -> float:
        """Return below which bend an estimate is ready; 0 where it is not for other reasons."""
        rough, usual = self._loadings @ found.spread, self._hides(found, USUALLY)
        few = self._windows.releases(found.since, found.since + found.slots)
        if few < releases_needed(self._task) - 0.5 or found.moving:
            return 0.0
        if np.count_nonzero(usual[1:] > HIDE * rough[1:]) > len(rough) // 2:
            return 0.0
        # the least one is of a coefficient that hides nothing
        return math.sqrt(float(rough.min()))

    def _within(self, found: _Estimate, most: float) -> float:
        """Return the chance that linearised scores bend an estimate by so much at most."""
        if found.bent <= 0 or most <= 0:
            return float(most > 0)
        # as many independent squares as directions carry the variance
        chance = found.spread * self._weights
        scatter = SCATTER * math.sqrt(2 * float(chance @ chance)) / float(chance.sum())
        return float(ndtr(math.log(most / found.bent) / scatter + scatter / 2))

    def _stage(self, found: _Estimate, slots: float, ready: float) -> Stage:
        rough, usual = self._loadings @ found.spread, self._hides(found, USUALLY)
        unknown = self._hides(found, 1.0) > HIDE * rough
        return Stage(self._windows.come(slots), rough + usual, unknown, ready)

    def _add(self, mean: Vector, spread: Vector, *numbers: float) -> None:
        """Add a model by its mean and its variance, (d,) each, with the rest of its numbers."""
        score, bend = self._ref.values * mean, 1.0
        if float((mean**2 + spread) @ self._weights) > NEAR:
            found, curvature = self._of_records(mean, spread)
            penalty, turn = self._task.penalty, self._ref.vectors
            score = found - self._score + turn.T @ (penalty * (turn @ mean))
            bend = curvature / max(self._bend, 1e-9)
        deviation = math.sqrt(float(spread @ self._weights))
        self._models.add(mean, score, bend, deviation, *numbers)

    def _of_records(self, mean: Vector, spread: Vector) -> tuple[Vector, float]:
        """Return the expected score and curvature of a record at a model, shape (d,)."""
        ref, task, middle = self._ref, self._task, self._at + self._design @ mean
        points = middle[:, None] + math.sqrt(float(self._squares @ spread)) * NODES
        responses, share = np.repeat(ref.responses, len(NODES)), ref.mass * ref.weights
        slopes, bends = (
            share * (of(points.ravel(), responses).reshape(points.shape) @ WEIGHTS) / WEIGHTS.sum()
            for of in (task.loss.slope, task.loss.curvature)
        )
        return self._design.T @ slopes, float(bends.sum())

    def _first(self) -> tuple[Vector, Vector]:
        """Return the mean deviation of the first model and its variance, shape (d,) each.

        As `private_estimate` makes it of the releases at the public start.
        """
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


def _cut(square: float, longest: float, size: int) -> float:
    """Return which part is left of steps that are no longer than `longest`, in (0, 1].

    square: Their mean square length before, that of a chi-squared variable of so many degrees.
    """
    most = size * longest**2 / max(square, 1e-300)
    return math.sqrt(float(chdtr(size + 2, most) + most / size * chdtrc(size, most)))
