"""What a stream of a study is expected to give, before there are data: from public numbers alone.

A public population stands for the records (`pipeline/estimators/population.py`). The stream is
followed from model to model, each by its mean and its variance about what it aims at, in the
eigenvectors of the population's curvature: a step of Newton's method from the mean of the models
before it, by the rules of `solution`, with the chance of the records and the noise of the releases
that it rests on. Two models go together by the releases that both rest on. So the distance of the
models from an estimate is known on average, and with it how far linearised scores bend. Derived in
docs/methods/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, ndtr

from pipeline.errors import NumericError
from pipeline.estimators.objective import Rows
from pipeline.estimators.population import Population, even_points, minimiser_of, rows_of
from pipeline.losses import Regression
from pipeline.methods.renewable.readiness import releases_needed
from pipeline.methods.renewable.solution import (
    CAUTION,
    HIDE,
    LONGEST_STEP,
    SECOND_ORDER,
    Noise,
    hides,
    noise_of,
    raise_to_noise,
    rate_of_bend,
)
from pipeline.methods.renewable.task import RenewableTask
from pipeline.privacy import memory
from pipeline.study import Study
from pipeline.study.release_tables import Privacy, Stream, Window
from pipeline.types import Matrix, Vector

#: A plan takes a model each time that slots have grown by this share, one window at least.
PART = 0.05
#: No plan looks further ahead.
MOST_RECORDS = 1e12
#: Pairs of records that stand for the population, and numbers that they hold at most.
PAIRS, NUMBERS = 2**11, 2**20
#: Below this mean square distance of predictors a score is as good as linear.
NEAR = 0.01
#: How far the logarithm of the bend varies from stream to stream, over sqrt(2 / directions).
SCATTER = 0.68
#: Estimates whose slots differ by this share are as good as independent.
APART = 0.1
#: Shares of all streams: of those that have had intervals at first, and of those that have them
#: for good, which a plan looks for until so many times the slots.
HALF, LASTING, AHEAD = 0.5, 0.8, 2.0
#: Nodes of the quadrature over the scatter of a model.
NODES, WEIGHTS = hermegauss(5)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Reference:
    """The public population, at what the estimate aims at.

    target: Coefficients in encoded units, shape (d,).
    rows, mass: Records with their weights, and the share of the population that each stands for.
    curvature, middle: Of one record, shape (d, d): without the ridge, and about the mean score.
    values, vectors: Eigenvalues of curvature and ridge, shape (d,), and their vectors, (d, d).
    """

    target: Vector
    rows: Rows
    mass: Vector
    curvature: Matrix
    middle: Matrix
    values: Vector
    vectors: Matrix


@dataclass(frozen=True, slots=True)
class Stage:
    """What is expected of an estimate after some record slots.

    records: How many have come, with those in open windows and those at the public start.
    size: s, the spectral size of the curvature's noise.
    variances: Of the coefficients, with what unknown directions hide, shape (d,).
    unknown: Which of them have no interval for that, shape (d,).
    ready: Chance that the estimate is ready, in [0, 1].
    """

    records: float
    size: float
    variances: Vector
    unknown: NDArray[np.bool_]
    ready: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a stream; numbers of records are None beyond `MOST_RECORDS`.

    first: After how many half of all streams have had an estimate with an interval for every second
        slope. Such intervals may be gone again in the next one.
    lasting: From how many on four of five streams have them.
    whole: From how many on every coefficient has one.
    late: Which coefficients have none at `first`, shape (d,).
    variances: Of the coefficients at the size that was asked for, shape (d,).
    """

    first: float | None
    lasting: float | None
    whole: float | None
    late: NDArray[np.bool_]
    variances: Vector


def expect(
    task: RenewableTask, records: float, clients: int, most: float = MOST_RECORDS
) -> Expected:
    """Return what is expected of a noised stream of so many records.

    most: On how many an estimate rests at most.
    """
    first = lasting = whole = None
    late, without, before = np.zeros(task.size, dtype=bool), 1.0, 0.0
    variances: Vector | None = None
    for stage in stages(task, clients):
        now = stage.records
        if now <= records or variances is None:
            # the first of all stages stands for what is smaller
            variances = stage.variances
        if now > records and first and whole and lasting and now > AHEAD * lasting:
            break
        if now > most:
            break
        if stage.ready:
            apart = math.log(now / before) / APART if before else 1.0
            without *= (1 - min(stage.ready, 0.9999)) ** apart
            before = now
        if first is None and without <= HALF:
            first, late = now, stage.unknown
        lasting = None if stage.ready < LASTING else lasting or now
        whole = None if stage.unknown.any() else whole or now
    if variances is None:
        raise ValueError("a stream has no stage")
    return Expected(first, lasting, whole, late, variances)


def start_slots(task: RenewableTask, clients: int) -> int:
    """Return how many slots are released at the public start."""
    releases = task.study.stream.publish.releases
    return task.slots * min(releases, (task.most_at_start or releases) * clients)


def noise_size(task: RenewableTask, records: float, clients: int) -> float:
    """Return s, the spectral size of the curvature's noise in an estimate of so many records."""
    windows = Windows(task, clients)
    slots = windows.released(records - start_slots(task, clients))
    return noise_of(task).of_curvature(max(windows.noise(0.0, slots), 1.0), slots)


class Windows:
    """The windows of all clients, who are alike.

    clients: C, how many there are.
    """

    def __init__(self, task: RenewableTask, clients: int) -> None:
        self._growth, self._clients, self._remembers = task.growth, clients, task.remembers
        ends, size = [0], 0
        while size < self._growth.largest:
            size = self._growth.next_window(ends[-1])
            ends.append(ends[-1] + size)
        self._ends = np.array(ends, dtype=np.float64)

    def next_window(self, slots: float) -> int:
        """Return the slots of a client's next window, where all together have released so many."""
        return self._growth.next_window(int(slots / self._clients))

    def come(self, slots: float) -> float:
        """Return how many records have come where so many slots are released.

        Open windows are half full.
        """
        return slots + self._clients * self.next_window(slots) / 2

    def released(self, records: float) -> float:
        """Return how many slots are released where so many records have come: one at least."""
        slots = max(records, 1.0)
        # an open window is a part of what its client has released, so that this settles
        for _ in range(4):
            slots = records - self._clients * self.next_window(slots) / 2
        return max(slots, float(self._growth.records))

    def number(self, slots: float) -> float:
        """Return how many windows each client has released, where all have released so many slots.

        Those of a window that is half full count as half a window.
        """
        own = slots / self._clients
        beyond = max(own - self._ends[-1], 0.0) / self._growth.largest
        return float(np.interp(own, self._ends, np.arange(len(self._ends)))) + beyond

    def releases(self, since: float, slots: float) -> float:
        """Return how many releases there are between two numbers of slots."""
        return self._clients * (self.number(slots) - self.number(since))

    def newest(self, since: float, slots: float) -> float:
        """Return how many clients have windows there, whose newest later ones may take back."""
        return min(self.releases(since, slots), self._clients) if self._remembers else 0.0

    def left(self, newest: Vector, releases: Vector) -> Vector:
        """Return how many of these newest windows are so still after so many releases, (k,)."""
        # clients that have none yet come first
        again = releases - (self._clients - newest)
        left: Vector = newest - 0.78 * np.clip(again, 0.0, newest)
        return left

    def noise(self, since: float, slots: float) -> float:
        """Return V, the variance of their noise in units of one release that remembers nothing.

        Clients are spread evenly over their windows.
        """
        if not self._remembers:
            return self.releases(since, slots)
        one, other = self.number(since), self.number(slots)
        first, last = math.floor(one), math.floor(other)
        found = 0.0
        for u, share in ((first, first + 1 - one), (first + 1, one - first)):
            for t, part in ((last, last + 1 - other), (last + 1, other - last)):
                if share and part:
                    found += share * part * memory.variance_between(u + 1, t)
        return self._clients * found


def reference_of(task: RenewableTask) -> Reference:
    """Return the public population of a study, whatever its budget and its windows are."""
    study = task.study
    mechanism = "insecure-simulation" if study.noised else "none"
    plain = msgspec.structs.replace(
        study,
        privacy=Privacy(mechanism=mechanism, epsilon=1.0, delta=1e-6, seed=0)
        if study.noised
        else Privacy(mechanism="none"),
        window=Window(records=1),
        stream=Stream(),
        trust=None,
    )
    return _reference(msgspec.json.encode(plain))


@lru_cache(maxsize=8)
def _reference(written: bytes) -> Reference:
    task = RenewableTask(msgspec.json.decode(written, type=Study))
    population, size = Population.of(task), task.size
    count = max(2**8, 2 * size, min(PAIRS, NUMBERS // size))
    rows, mass = rows_of(population, even_points(len(task.encoding.names) + 1, count))
    try:
        point = minimiser_of(population, rows, mass)
    except NumericError:
        point = population.truth
    design, responses = rows.design, rows.responses
    weights = np.ones(len(mass)) if rows.weights is None else np.asarray(rows.weights)
    at = design @ point
    slopes = weights * task.loss.slope(at, responses)
    curved = weights * task.secant.of(at, responses)
    curvature = (design * (mass * curved)[:, None]).T @ design
    pulled = design.T @ (mass * slopes)
    middle = (design * (mass * slopes**2)[:, None]).T @ design - np.outer(pulled, pulled)
    values, vectors = np.linalg.eigh(curvature + np.diag(task.penalty))
    rows = Rows(design, responses, weights)
    return Reference(point, rows, mass, curvature, middle, values, vectors)


def stages(task: RenewableTask, clients: int) -> Iterator[Stage]:
    """Yield what is expected of the estimate after each model of a noised stream, without end.

    clients: How many send windows, all alike; >= 1.
    """
    return _Course(task, clients).run()


class _Models:
    """The models so far, each with what is known of it.

    A model is a deviation from the target along the eigenvectors, with a mean and a variance.

    means, scores: Of k models, and what a record's score and the ridge are expected to be there,
        shape (k, d) each.
    bends: Curvature of a record there over that at the target, shape (k,).
    deviations: Root mean square of predictors by their chance, shape (k,).
    since, until: Slots behind the public start that they rest on, shape (k,); none of the first.
    newest: How many clients' newest windows they rest on, whose noise later ones take back in part,
        shape (k,).
    alone: Share of their variance that is so taken back, shape (k,).
    """

    def __init__(self) -> None:
        self._means, self._scores, self._rows = list[Vector](), list[Vector](), list[Any]()

    def add(self, mean: Vector, score: Vector, *known: float) -> None:
        """Add a model, with its bend, deviation, since, until, newest and alone."""
        self._means.append(mean)
        self._scores.append(score)
        self._rows.append(known)
        self.means, self.scores = np.array(self._means), np.array(self._scores)
        self.bends, self.deviations, self.since, self.until, self.newest, self.alone = np.array(
            self._rows
        ).T

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """An estimate from the releases at some newest models, along the eigenvectors.

    since, alone: As in `_Models`.
    mean, spread: Of its deviation from the target, shape (d,) each.
    values, size: Eigenvalues of curvature and ridge, shape (d,), and s.
    bent, error: As in `Solution`.
    """

    since: float
    alone: float
    mean: Vector
    spread: Vector
    values: Vector
    size: float
    bent: float
    error: float


class _Course:
    """Follows a stream. Vectors are along the eigenvectors of curvature and ridge."""

    def __init__(self, task: RenewableTask, clients: int) -> None:
        self._task, self._noise, self._windows = task, noise_of(task), Windows(task, clients)
        self._ref = ref = reference_of(task)
        self._needed = releases_needed(task)
        turn, self._loadings = ref.vectors, ref.vectors**2
        self._design, self._at = ref.rows.design @ turn, ref.rows.design @ ref.target
        self._target = turn.T @ ref.target
        self._middle = np.diag(turn.T @ ref.middle @ turn)
        self._curvature = np.maximum(np.diag(turn.T @ ref.curvature @ turn), 0.0)
        #: Weighs variances to the mean square of predictors, records by their curvature.
        self._weights = self._curvature / max(float(ref.curvature[0, 0]), 1e-9)
        self._rate = rate_of_bend(task, ref.curvature, ref.target)
        self._squares = self._design.T**2 @ ref.mass
        nothing = np.zeros(task.size)
        self._score, self._bend = nothing, 1.0
        self._score, self._bend = self._of_records(nothing, nothing)
        self._longest = LONGEST_STEP / task.norm_bound
        self._begun = start_slots(task, clients)
        self._models = _Models()
        self._add(*self._first(), -1.0, -1.0, 0.0)
        #: How many releases each model had seen.
        self._releases = np.zeros(1)
        #: Slots of the releases at each model, where they begin, and the epoch.
        self._folded, self._starts = list[float](), [0.0]
        self._epochs = [memory.epoch_of(self._begun, task.slots)]
        #: For each model that is the first of its epoch, what those since then have in common.
        self._common = dict[int, float]()

    def run(self) -> Iterator[Stage]:
        """As `stages`."""
        slots = 0.0
        while True:
            amount = max(PART * (self._begun + slots), self._windows.next_window(slots))
            slots += amount
            self._fold(amount)
            best: _Estimate | None = None
            for first in sorted(self._common, reverse=True):
                found = self._estimate(first, slots)
                if best is not None and found.error > best.error:
                    break
                best = found
            assert best is not None
            yield self._stage(best, slots)
            self._add(best.mean, best.spread, best.since, slots, best.alone)
            self._starts.append(slots)
            seen = self._windows.releases(0.0, slots)
            self._releases = np.append(self._releases, seen)
            self._epochs.append(memory.epoch_of(int(self._begun + slots), self._task.slots))

    def _stage(self, found: _Estimate, slots: float) -> Stage:
        spread = found.spread
        # noise drives eigenvalues that are alike apart, by about its size
        lowered = found.values - found.size * math.sqrt(1 - 1 / len(spread))
        own = np.sqrt((self._target + found.mean) ** 2 + spread)
        hidden = self._loadings @ hides(lowered, found.size, own)
        rough = self._loadings @ spread
        unknown, variances = hidden > HIDE * rough, rough + hidden
        ready, chance = 1.0, spread * self._weights
        if self._windows.releases(found.since, slots) < self._needed - 0.5 or unknown[1:].mean() > 0.5:
            ready = 0.0
        elif found.bent > 0:
            # as many independent squares as directions carry the variance
            scatter = SCATTER * math.sqrt(2 * float(chance @ chance)) / float(chance.sum())
            least = math.sqrt(float(variances.min()))
            near = math.log(least / found.bent) + scatter**2 / 2
            ready = float(ndtr(near / scatter))
        return Stage(self._windows.come(slots) + self._begun, found.size, variances, unknown, ready)

    def _add(
        self, mean: Vector, spread: Vector, since: float, until: float, alone: float
    ) -> None:
        score, bend = self._ref.values * mean, 1.0
        if float((mean**2 + spread) @ self._weights) > NEAR:
            found, curvature = self._of_records(mean, spread)
            penalty, turn = self._task.penalty, self._ref.vectors
            score = found - self._score + turn.T @ (penalty * (turn @ mean))
            bend = curvature / max(self._bend, 1e-9)
        deviation = math.sqrt(float(spread @ self._weights))
        newest = self._windows.newest(max(since, 0.0), max(until, 0.0))
        self._models.add(mean, score, bend, deviation, since, until, newest, alone)

    def _of_records(self, mean: Vector, spread: Vector) -> tuple[Vector, float]:
        """Return the expected score and curvature of a record at a model, shape (d,)."""
        task, rows, mass = self._task, self._ref.rows, self._ref.mass
        middle = self._at + self._design @ mean
        points = middle[:, None] + math.sqrt(float(self._squares @ spread)) * NODES
        responses = np.repeat(rows.responses, len(NODES))
        slopes, bends = (
            rows.weights * (of(points.ravel(), responses).reshape(points.shape) @ WEIGHTS)
            for of in (task.loss.slope, task.secant.of)
        )
        return self._design.T @ (mass * slopes), float(mass @ bends)

    def _fold(self, amount: float) -> None:
        """Take the releases at the newest model."""
        models, newest = self._models, len(self._models) - 1
        if not newest or self._epochs[-1] != self._epochs[-2]:
            self._common[newest] = 0.0
        own = float(models.deviations[-1])
        both = np.array(self._folded) * self._covariances(
            own, float(models.since[-1]), float(models.until[-1]), float(models.alone[-1])
        )[:-1]
        for first in self._common:
            self._common[first] += amount * (2 * float(both[first:].sum()) + amount * own**2)
        self._folded.append(amount)

    def _covariances(self, own: float, since: float, until: float, alone: float) -> Vector:
        """Return the covariances of all models with another one, as mean squares of predictors.

        Two have in common what the releases do that both rest on, and, where noise remembers, what
        later windows of the same client take back.

        own: Deviation of that one; the others as in `_Models`.
        """
        models = self._models
        shared = np.minimum(models.until, until) - np.maximum(models.since, since)
        lengths = np.maximum((models.until - models.since) * (until - since), 1e-9)
        together = np.sqrt((1 - models.alone) * (1 - alone) / lengths) * np.maximum(shared, 0.0)
        newest = self._windows.newest(max(since, 0.0), max(until, 0.0))
        between = self._windows.releases(0.0, max(until, 0.0)) - self._releases
        left = self._windows.left(models.newest, between)
        ends = np.sqrt(np.maximum(models.newest * newest, 1e-9))
        together += np.sqrt(models.alone * alone) * left / ends
        covariances: Vector = own * models.deviations * together
        return covariances

    def _estimate(self, first: int, slots: float) -> _Estimate:
        """Return the estimate from the releases at the models from `first` on."""
        models, since = self._models, self._starts[first]
        count = slots - since
        share = np.array(self._folded[first:]) / count
        means, deviations = models.means[first:], models.deviations[first:]
        mean, score = share @ means, share @ models.scores[first:]
        bend = float(share @ models.bends[first:])
        noise = self._windows.noise(since, slots)
        size = self._noise.of_curvature(noise, count)
        values = self._ref.values + (bend - 1) * self._curvature
        _, drawn, raised = raise_to_noise(values, size)
        way = (score + drawn * (self._target + mean)) / raised
        meat = bend * self._middle / count + self._noise.of_gradient(noise, count) ** 2
        spread = meat / raised**2
        # mean squares of predictors: of the estimate by chance, of the mean model, of the way
        own, common = float(spread @ self._weights), self._common[first] / count**2
        level = float((self._noise.of_gradient(noise, count) / raised) ** 2 @ self._weights)
        taken = self._windows.newest(since, slots) * memory.TAKEN_BACK
        alone = min(1.0, taken / noise) * level / own
        both = float(share @ self._covariances(math.sqrt(own), since, slots, alone)[first:])
        apart = max(common - 2 * both + own, 0.0)
        by_chance = spread / own
        cut = _cut(way @ way + apart * by_chance.sum(), self._longest, len(way))
        way, apart = cut * way, cut**2 * apart
        spread = cut**2 * spread + (1 - cut) ** 2 * common * by_chance
        squares = way**2 + apart * by_chance
        turned = size**2 / (2 * len(way)) * (squares.sum() + squares)
        spread = spread + turned * (cut / raised) ** 2
        scatter = float(share @ (deviations**2 + means**2 @ self._weights)) - common
        scatter = max(scatter - float(mean**2 @ self._weights), 0.0)
        distance = float(way**2 @ self._weights) + apart
        # to one more step beyond, but for a loss whose curvature jumps
        times = 1 if self._task.loss.name == "gdwd" else 4
        bent = SECOND_ORDER * self._rate * (scatter + times * distance)
        error = float(spread @ self._weights) + CAUTION**2 * bent**2
        return _Estimate(since, alone, mean - way, spread, values, size, bent, error)

    def _first(self) -> tuple[Vector, Vector]:
        """Return the mean deviation of the first model and its variance, shape (d,) each.

        As `private_estimate` makes it of the releases at the public start.
        """
        task, rows, mass = self._task, self._ref.rows, self._ref.mass
        turn, slots = self._ref.vectors, self._begun
        deviation = task.initial_channels.gradient.standard_deviation
        deviation *= math.sqrt(slots / task.slots) / slots
        point, variance = np.zeros(task.size), np.zeros(task.size)
        if isinstance(task.loss, Regression):
            slopes = task.loss.start_slope(rows.responses)
            middle = float(mass @ slopes)
            spread = math.hypot(deviation, math.sqrt(float(mass @ slopes**2) / slots))
            ends = [task.loss.intercept_of(middle + sign * spread, spread) for sign in (-1, 1)]
            point[0], variance[0] = sum(ends) / 2, ((ends[1] - ends[0]) / 2) ** 2
            return turn.T @ (point - self._ref.target), turn.T**2 @ variance
        slopes = rows.weights * task.loss.slope(np.zeros(len(mass)), rows.responses)
        held = task.loss.start_curvature * task.norm_bound**2 / task.size + task.penalty
        step = rows.design.T @ (mass * slopes) / held
        squares = rows.design.T**2 @ (mass * slopes**2)
        variance = (squares / slots + 2 * deviation**2) / held**2
        cut = _cut(step @ step + variance.sum(), self._longest, len(step))
        return turn.T @ (-cut * step - self._ref.target), turn.T**2 @ (cut**2 * variance)


def _cut(square: float, longest: float, size: int) -> float:
    """Return which part is left of steps that are no longer than `longest`, in (0, 1].

    square: Their mean square length before they are shortened, that of a chi-squared variable of
        `size` degrees of freedom.
    """
    most = size * longest**2 / max(square, 1e-300)
    return math.sqrt(float(chdtr(size + 2, most) + most / size * chdtrc(size, most)))
