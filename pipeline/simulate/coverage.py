"""Simulated streams of a study, how often their intervals cover, and what that says in words.

One simulated stream: windows at the newest model, folded, and the last estimate. Clients differ a
little in how fast their records come, and the worker gives a model when one is due.

The words: whether intervals can be trusted at this size, the reason, and what to change.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate, Status
from pipeline.estimators.population import Population
from pipeline.methods import method_of, require_live, task_of
from pipeline.methods.base import Plan
from pipeline.methods.plan_words import SAMPLED, by_ridge
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Size:
    """How large a stream is.

    records, clients: In all, both >= 1; records beyond the last full window are left out.
    """

    records: int
    clients: int

    def windows(self, task: Task) -> int:
        """Return how many windows they fill; ConfigError if they fill none."""
        count = self.records // task.slots
        if not count:
            raise ConfigError(
                f"--records: {self.records} do not fill one window; window.records is {task.slots}"
            )
        return count


def simulated(study: Study) -> Task:
    """Return the task of a study whose Gaussian noise is simulated, with the same deviations.

    ConfigError if its kind has no live stream, or aims at no fit of all records, it forgets by the
    clock, or has several paths.
    """
    require_live(study, "a simulated stream")
    if why := method_of(study).spec.no_reference_fit:
        raise ConfigError(
            f'estimator.kind: kind = "{study.estimator.kind}" cannot be simulated here, '
            f"because {why}, and a simulation draws each record once, so it knows no true "
            "values. Use `veilstream backtest` with your own records; `veilstream schedule` "
            "says which error is expected"
        )
    forgetting = study.estimator.forgetting
    if forgetting is not None and forgetting.of == "seconds":
        raise ConfigError(
            'estimator.forgetting: of = "seconds" needs the times of a log, and a simulation has '
            'none; ask with of = "records"'
        )
    if study.privacy.mechanism == "discrete-gaussian":
        privacy = msgspec.structs.replace(study.privacy, mechanism="insecure-simulation", seed=0)
        study = msgspec.structs.replace(study, privacy=privacy)
    task = task_of(study)
    if task.partition_strategy is not None:
        raise ConfigError(
            "stream.partitions: a simulation has one partition; set partitions = 1 and "
            'remove estimator.path.partitions in a copy of the study file. A "shared" '
            'path behaves as one path does. Of "pooled" paths each gets only its share '
            "of the records: give --records as many"
        )
    return task


def stream(population: Population, size: Size, seed: int, number: int) -> Estimate:
    """Return the last estimate of stream `number`; NumericError if no finite estimate exists."""
    releases = Releases(population, size.clients, seed, number)
    for _ in releases.models(size.records):
        pass
    return releases.estimate()


#: How far the pace of a client is from the mean, as a share, at most.
PACE = 0.3


class Releases:
    """Releases of clients that take turns as their windows are full.

    run: The study's state.
    """

    def __init__(self, population: Population, clients: int, seed: int, number: int) -> None:
        self._population, task = population, population.task
        self._rng, self._seed, self._number = np.random.default_rng([seed, number]), seed, number
        self.run = OfflineRun(task)
        self._names = list(task.clients[:clients])
        self._names = self._names or [f"c{i}" for i in range(clients)]
        paces = 1 + PACE * np.linspace(-1, 1, len(self._names) + 2)[1:-1]
        #: Share of all records that each client has.
        self._shares = paces / paces.sum()

    def models(self, records: int) -> Iterator[int]:
        """Release so many records of all clients; yield how many have come where a model is due.

        Those of open windows count, too. The model is made once the caller goes on.
        """
        task, run = self._population.task, self.run
        turns = [(0.0, client, 0) for client in range(len(self._names))]
        heapq.heapify(turns)
        while turns:
            at, client, size = heapq.heappop(turns)
            if at > records:
                return
            name = self._names[client]
            if size:
                self._release(name, size)
                if run.wait() is not None:
                    yield round(at)
                    run.move()
            size = run.room(name) or task.slots
            heapq.heappush(turns, (at + size / self._shares[client], client, size))

    def _release(self, name: str, size: int) -> None:
        run, noise = self.run, None
        if self._population.task.study.privacy.mechanism == "insecure-simulation":
            noise = SeededStream(self._seed, f"{self._number}/{name}", run.releases)
        rows = Arrays(*self._population.draw(self._rng, size))
        run.fold(name, run.release(name, rows, run.model, noise))

    def estimate(self) -> Estimate:
        """Return the estimate of the sums so far."""
        return estimate_of(self._population.task, self.run.partitions)


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The end of one stream.

    coefficients: Shape (d,), in encoded units.
    ends: Lower and upper ends of the intervals by method, each of shape (d,) with NaN where a
        coefficient has none; empty unless "ready".
    """

    status: Status
    reason: str
    coefficients: Vector
    ends: Mapping[str, tuple[Vector, Vector]]


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """How often one kind of interval held the target, in streams that gave it.

    coverage, error: Share of covered coefficients, and its Monte Carlo error.
    worst, worst_coverage, worst_error: The coefficient that is covered least, how often, and the
        error of that.
    length: Mean length over the coefficients, in the unit in which estimates print them.
    """

    method: str
    coverage: float
    error: float
    worst: str
    worst_coverage: float
    worst_error: float
    length: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """What all streams said.

    replications: How many streams there were.
    ready, ready_error: Share whose last estimate was "ready", with an interval for one coefficient
        at least, and its Monte Carlo error.
    given, given_error: Share of the coefficients of all streams that had an interval, and its
        Monte Carlo error.
    rarest, rarest_given: The coefficient that has one least often, and in which share of streams.
    level: What the intervals promise.
    intervals: One entry for each kind that came, the study's own first; empty below two ready
        streams.
    biased, bias, bias_error: The coefficient whose mean over all streams is furthest from the
        target, by how many of its own standard deviations, and the error of that.
    reason: What the last stream that gave a reason said of being ready or not.
    """

    replications: int
    ready: float
    ready_error: float
    given: float
    given_error: float
    rarest: str
    rarest_given: float
    level: float
    intervals: tuple[IntervalCoverage, ...]
    biased: str
    bias: float
    bias_error: float
    reason: str


def result_of(task: Task, estimate: Estimate) -> StreamResult:
    """Return what coverage needs of one estimate."""
    level = task.study.estimator.level
    ends: dict[str, tuple[Vector, Vector]] = {}
    if estimate.status == "ready":
        for method in dict.fromkeys([estimate.interval, *(estimate.widths or {})]):
            found = estimate.intervals(level, method)
            if found is not None:
                ends[method] = found
    return StreamResult(estimate.status, estimate.reason, estimate.coefficients, ends)


def sum_up(task: Task, results: Sequence[StreamResult], target: Vector) -> Coverage:
    """Sum up at least two streams against their target, shape (d,), in encoded units."""
    count = len(results)
    ready = [one for one in results if any(np.isfinite(low).any() for low, _ in one.ends.values())]
    share = len(ready) / count
    has = np.array([_has(one) for one in results])
    each = has.mean(axis=0)
    points = np.array([one.coefficients for one in results])
    spread = points.std(axis=0, ddof=1)
    bias = np.abs(points.mean(axis=0) - target) / np.where(spread > 0, spread, math.inf)
    names, level = task.study.coefficient_names, task.study.estimator.level
    methods = ready[0].ends if len(ready) > 1 else ()
    return Coverage(
        replications=count,
        ready=share,
        ready_error=_binomial(share, count),
        given=float(has.mean()),
        given_error=max(float(has.mean(axis=1).std(ddof=1)) / math.sqrt(count), 0.5 / has.size),
        rarest=names[int(each.argmin())],
        rarest_given=float(each.min()),
        level=level,
        intervals=tuple(_interval(task, method, ready, target) for method in methods),
        biased=names[int(bias.argmax())],
        bias=float(bias.max()),
        bias_error=1 / math.sqrt(count),
        reason=next((one.reason for one in reversed(results) if one.reason), ""),
    )


def _has(one: StreamResult) -> NDArray[np.bool_]:
    """Return which coefficients have an interval of the study's own kind, shape (d,)."""
    low, _ = next(iter(one.ends.values()), (np.full(len(one.coefficients), math.nan),) * 2)
    return np.isfinite(low)


def _interval(
    task: Task, method: str, ready: Sequence[StreamResult], target: Vector
) -> IntervalCoverage:
    low = np.array([one.ends[method][0] for one in ready])
    high = np.array([one.ends[method][1] for one in ready])
    given = ~np.isnan(high - low)
    covered = np.where(given, (low <= target) & (target <= high), math.nan)
    coverage, error = share_of(covered, task.study.estimator.level)
    counts = given.sum(axis=0)
    # a coefficient that never had an interval is not the one that is covered least
    each = np.where(counts, np.nansum(covered, axis=0) / np.maximum(counts, 1), math.inf)
    worst = int(each.argmin())
    return IntervalCoverage(
        method=method,
        coverage=coverage,
        error=error,
        worst=task.study.coefficient_names[worst],
        worst_coverage=float(each[worst]),
        worst_error=_binomial(float(each[worst]), int(counts[worst])),
        length=task.response_scale[1] * float(np.nanmean(high - low)),
    )


def share_of(covered: Matrix, level: float) -> tuple[float, float]:
    """Return the share of covered coefficients, shape (streams, d), and its Monte Carlo error.

    NaN stands for no interval. Coefficients of one stream depend on each other; streams do not. The
    error is at least that of independent coefficients at the level, so that a few streams that
    agree do not seem to prove a share.
    """
    streams = covered[~np.isnan(covered).all(axis=1)]
    shares = np.nanmean(streams, axis=1)
    error = float(shares.std(ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
    least = math.sqrt(level * (1 - level) / np.count_nonzero(~np.isnan(streams)))
    return float(shares.mean()), max(error, least)


def _binomial(share: float, count: int) -> float:
    """Return the Monte Carlo error of a share; half a stream either way where all agree."""
    inside = min(max(share, 0.5 / count), 1 - 0.5 / count)
    return math.sqrt(inside * (1 - inside) / count)


#: Coverage may miss its level by so much, that of single coefficients by more.
TOLERATED, TOLERATED_WORST = 0.02, 0.05
#: A bias beyond so many standard deviations pulls a normal 95 % interval to about 92 %.
TOLERATED_BIAS = 0.5
#: With a larger Monte Carlo error of the coverage intervals are not called right.
LARGEST_ERROR = 0.02
#: Below this share of coefficients with an interval a study of the size has none to speak of.
LEAST_GIVEN = 0.5
#: Above this share nothing is said of those that have none.
WHOLE = 0.9
#: Errors on either side that count as chance: of one share, and of the worst of several.
CHANCE, CHANCE_WORST = 2.0, 3.5

#: An expectile of this level weighs both sides alike.
EVEN = 0.5
#: What to do where a yes holds for residuals of the assumed size alone.
SMALLER = (
    "nothing, if residuals are as large as assumed. Noise biases an expectile more where "
    "residuals are smaller, or crowd at zero: ask again with the smallest --residual-scale that "
    "you expect, or lower estimator.residual_bound"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to think of a study's intervals at a size.

    trusted: None where there were too few streams to tell.
    """

    trusted: bool | None
    verdict: str
    reason: str
    advice: str


def judge(
    task: Task, found: Coverage, plan: Plan, records: int, epsilon: float | None = None
) -> Verdict:
    """Return the verdict on the study's own kind of interval.

    plan: What formulas expect of the study at this size.
    epsilon: The one at which so many records usually have intervals; None: no larger one is known.
    """

    def wrong(verdict: str, reason: str) -> Verdict:
        return Verdict(False, verdict, reason, _better(task, found, plan, records, epsilon))

    own = found.intervals[0] if found.intervals else None
    # few streams, and few intervals, can show that those are wrong, and not that they are right
    if own and own.coverage + CHANCE * own.error < found.level - TOLERATED:
        return wrong(
            "no: intervals miss the true coefficients too often",
            f"{_promised(found, own.coverage, own.error)}{_bent(found)}",
        )
    if own and own.worst_coverage + CHANCE_WORST * own.worst_error < found.level - TOLERATED_WORST:
        return wrong(
            f"no: intervals of {own.worst!r} miss the true value too often",
            f"{_promised(found, own.worst_coverage, own.worst_error)}{_bent(found)}",
        )
    if found.given + CHANCE * found.given_error < LEAST_GIVEN:
        return Verdict(
            False, f"no: {'most coefficients have' if found.ready else 'it has'} no intervals yet",
            f"{found.ready:.0%} of the streams ended ready, with intervals for {found.given:.0%} "
            f"of all coefficients; {found.reason}",
            _larger(task, plan, records, epsilon),
        )  # fmt: skip
    if own and found.bias - CHANCE * found.bias_error > TOLERATED_BIAS:
        return wrong(
            "no: estimates are biased",
            f"{found.biased!r} is off by {found.bias:.2f} of its standard deviations "
            f"(+-{found.bias_error:.2f}), and intervals do not allow for that",
        )
    if own is None or own.error > LARGEST_ERROR:
        return Verdict(
            None, "not decided: too few streams",
            f"{round(found.ready * found.replications)} streams were ready, and coverage is known "
            f"to {own.error if own else 1.0:.1%} only",
            "more --replications, or fewer --records",
        )  # fmt: skip
    right, assumed = _right(found), list[str]()
    said, hangs = right.verdict, not by_ridge(plan, records)
    if hangs and not plan.seen:
        assumed.append("independent features")
    if _leans(task):
        assumed.append("residuals")
        right = replace(right, advice=SMALLER)
    if assumed:
        said += f", for {' and '.join(assumed)} as assumed"
    return replace(right, verdict=f"{said}, {SAMPLED}" if hangs and plan.seen else said)


def _leans(task: Task) -> bool:
    """Whether noise bends estimates the more the smaller residuals are."""
    estimator = task.study.estimator
    return task.study.noised and estimator.loss == "expectile" and estimator.tau != EVEN


def _right(found: Coverage) -> Verdict:
    own = found.intervals[0]
    late, but, advice = "", "", "nothing"
    if found.given <= WHOLE or found.rarest_given < LEAST_GIVEN:
        late = (
            f"; {found.given:.0%} of the coefficients have them, {found.rarest!r} in "
            f"{found.rarest_given:.0%} of the streams"
        )
    if found.rarest_given < LEAST_GIVEN:
        but = f", but mostly not for {found.rarest!r}"
        advice = f"nothing for the others; more records, or a larger epsilon, for {found.rarest!r}"
    if own.worst_coverage + CHANCE * own.worst_error < found.level - TOLERATED:
        # too few streams to say no, and by chance alone it would hardly be so low
        but = f", but perhaps not for {own.worst!r}"
        late += f"; those of {own.worst!r} {own.worst_coverage:.1%} (+-{own.worst_error:.1%})"
        advice = f"nothing for the others; more --replications to be sure of {own.worst!r}"
    if own.coverage - CHANCE * own.error > found.level + (1 - found.level) / 2:
        return Verdict(
            True, f"yes, but they are longer than necessary{but}",
            f"they cover {own.coverage:.1%} (+-{own.error:.1%}){late}", advice,
        )  # fmt: skip
    return Verdict(True, f"yes{but}", f"{_promised(found, own.coverage, own.error)}{late}", advice)


def _promised(found: Coverage, coverage: float, error: float) -> str:
    return f"they cover {coverage:.1%} (+-{error:.1%}) where they promise {found.level:.0%}"


def _bent(found: Coverage) -> str:
    if found.bias - CHANCE * found.bias_error <= TOLERATED_BIAS / 2:
        return ""
    return f"; {found.biased!r} is off by {found.bias:.2f} of its standard deviations"


def _larger(task: Task, plan: Plan, records: int, epsilon: float | None) -> str:
    """Say what makes intervals appear."""
    needed = plan.usual
    parts = list(plan.sooner)
    if needed > records:
        parts.append(f"about {needed:,} records instead of {records:,} by the rule of thumb")
    else:
        parts.append("more records")
    if epsilon is not None:
        parts.append(f"privacy.epsilon of about {epsilon:.2g}")
    elif task.study.noised:
        parts.append("a larger privacy.epsilon")
    parts.append("fewer features, or narrower public ranges")
    return "; or ".join(parts)


def _better(task: Task, found: Coverage, plan: Plan, records: int, epsilon: float | None) -> str:
    """Say what brings coverage to its level."""
    if plan.bias_remedies and found.bias - CHANCE * found.bias_error > TOLERATED_BIAS / 2:
        return "; or ".join(plan.bias_remedies)
    key = method_of(task.study).spec.interval_key
    other = [i.method for i in found.intervals[1:] if i.coverage >= found.level - TOLERATED]
    advice = [f'{key} = "{name}", which covered here' for name in other[:1] if key]
    advice += [one or _larger(task, plan, records, epsilon) for one in plan.remedies]
    return "; or ".join(advice)
