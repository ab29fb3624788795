"""Intervals of locally private gradient descent where they are due: when, coverage, length.

`python -m benchmarks.sgd_intervals [--streams N] [--rows WORD]`. Streams of the designs in
`ROWS`, with the study's own noise, steps and estimator; one client, a model after each of its
windows. Classes are 15:85; features uniform on their ranges, or normal with correlations
0.5^|j - k| and cut at 2.5 deviations. "flights" are those that arrive more than 15 minutes late or
do not, in ranges that somebody wrote without looking; the year has too few, so its records are
drawn with replacement. The exact sandwich (true curvature, the same noise, all of the budget in
gradients) is half a unit to either side, of the residuals' deviation or of the logit, after n
records. Streams end with 2 n, or when by the forecast models are near enough, if that is later
("latest"). They are looked at forty times until 2 n, and once at the end.

Prints for each design: n; which streams have an interval at 2 n; after how many records the first
one comes, over n, in the middle and in the last stream. Then in percent, with the Monte Carlo
error, how many 95 % intervals hold the population's minimiser: each coefficient's first one, those
at 2 n and those at the end; the lowest of one coefficient at the end, and the median length over
the exact one.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.interval_streams import every_flight
from benchmarks.limit_law import covariance, moments
from pipeline.estimators.estimate import Estimate
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.estimate import estimate_sgd
from pipeline.methods.ldp_sgd.plan import HALF, due_with
from pipeline.methods.ldp_sgd.state import GradientBatch, SgdState
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.privacy.mechanism import Channel
from pipeline.records.blocks import predictors, with_intercept
from pipeline.release.model import round_model
from pipeline.simulate.coverage import share_of
from pipeline.types import Matrix, Vector
from tests.sgd import task_of

LEVEL, LEAST, MOST = 0.95, 0.925, 0.985
#: Looks until twice the exact size.
LOOKS = 40
#: Responses lie in +-8 residual deviations, the share of positive classes, records for the target.
RANGE, POSITIVE, SAMPLE = 8.0, 0.15, 400_000
#: mu = 1 and 2 at delta = 1e-6.
EPSILONS = {1: 4.887, 2: 10.997}
NORMAL = 1.96


@dataclass(frozen=True)
class Row:
    """A loss, d coefficients, mu, and whether features are correlated."""

    loss: str
    size: int
    mu: int
    correlated: bool = False
    path: str = ""
    real: bool = False

    @property
    def label(self) -> str:
        """What stands in front of it."""
        law = "AR(0.5)" if self.correlated else "flights" if self.real else "uniform"
        return f"{self.loss} d={self.size} mu={self.mu} {law}{' ' if self.path else ''}{self.path}"

    def task(self, window: int) -> GradientTask:
        """Return its study."""
        tau = "\ntau = 0.8" if self.loss == "expectile" else ""
        return task_of(
            p=self.size - 1, loss=self.loss, width=RANGE, path=self.path, releases="",
            estimator="" if self.loss == "logistic" else f"residual_bound = 1.345{tau}",
            mechanism="insecure-simulation", epsilon=EPSILONS[self.mu], records=window,
            name="intervals",
        )  # fmt: skip

    def records(self, rng: np.random.Generator, count: int, truth: Vector) -> tuple[Matrix, Vector]:
        """Draw encoded features, shape (n, d - 1), and responses, shape (n,)."""
        if self.real:
            features, responses, _ = every_flight()
            chosen = rng.integers(len(responses), size=count)
            return features[chosen], responses[chosen]
        features = self.features(rng, count)
        return features, self.responses(rng, with_intercept(features) @ truth)

    def features(self, rng: np.random.Generator, records: int) -> Matrix:
        """Draw features, shape (n, d - 1)."""
        if not self.correlated:
            return rng.uniform(-1, 1, (records, self.size - 1))
        z = rng.standard_normal((records, self.size - 1))
        for j in range(1, self.size - 1):
            z[:, j] = 0.5 * z[:, j - 1] + math.sqrt(0.75) * z[:, j]
        return np.clip(z / 2.5, -1, 1)

    def responses(self, rng: np.random.Generator, predictor: Vector) -> Vector:
        """Draw encoded responses."""
        if self.loss == "logistic":
            return np.where(rng.random(len(predictor)) < expit(predictor), 1.0, -1.0)
        noised = predictor + rng.standard_normal(len(predictor))
        return np.clip(noised / RANGE, -1, 1)

    def truth(self, features: Matrix) -> Vector:
        """Return coefficients with a predictor of variance one, of alternating sign."""
        signs = np.where(np.arange(self.size - 1) % 2, -1.0, 1.0)
        slopes = signs / (features @ signs).std()
        middle = 0.5
        if self.loss == "logistic":
            middle = brentq(lambda b: expit(b + features @ slopes).mean() - POSITIVE, -20, 20)
        return np.append(middle, slopes)


ROWS = [
    Row(loss, size, mu, correlated)
    for size, mu, correlated in ((4, 2, False), (4, 1, False), (10, 2, False), (4, 2, True))
    for loss in ("logistic", "expectile", "linear")
] + [Row("logistic", 4, 2, real=True)]


@dataclass(frozen=True)
class Design:
    """A row with what is true of it.

    target: The population's minimiser, in encoded units, shape (d,).
    deviations: Of the exact sandwich after one record, shape (d,).
    exact: After how many records its longest interval is half a unit to either side.
    near: After how many nearly all streams have intervals, by a plan that knows population and
        classes.
    """

    row: Row
    task: GradientTask
    truth: Vector
    target: Vector
    deviations: Vector
    exact: int
    near: int

    @property
    def twice(self) -> int:
        """The promise: twice the exact size."""
        return 2 * self.exact

    @property
    def latest(self) -> int:
        """The promise where models wander far: when they are near enough."""
        return max(self.twice, self.near)


def design_of(row: Row, sample: int = SAMPLE) -> Design:
    """Return the design of a row, by a large sample of its population."""
    rng = np.random.default_rng(13)
    truth = np.zeros(row.size)
    if row.real:
        features, responses, _ = every_flight()
    else:
        features = row.features(rng, sample)
        truth = row.truth(features)
        responses = row.responses(rng, with_intercept(features) @ truth)
    task, unit = row.task(100), 1.0 if row.loss == "logistic" else RANGE
    target, design = truth / unit, with_intercept(features)
    for _ in range(30):
        curvature, _ = moments(task.loss, design, responses, target, task.clipping_norm)
        slope = task.record_weights(design) * task.loss.slope(design @ target, responses)
        target = target - np.linalg.solve(curvature, design.T @ slope / len(design))
    # all of the budget in gradients
    alone = replace(row, path='releases = "gradients"').task(100)
    found = moments(task.loss, design, responses, target, task.clipping_norm)
    deviations = np.sqrt(np.diag(covariance(*found, alone.record_noise, 1)))
    size = int((NORMAL * deviations.max() * unit / HALF) ** 2)
    task = row.task(100 if size > 10_000 else 50)
    share, products = float(np.mean(responses > 0)), design.T @ design / len(design)
    known = f"curvature = {0.8 * share * (1 - share)}" if task.classes else ""
    planned = replace(row, path=known).task(task.slots)
    near = due_with(planned, products)[-1]
    return Design(row, task, truth, target, deviations, size, near)


class GradientStream:
    """A stream of single records' gradients without payloads, with noise of a release's deviation.

    One path along all windows, each at the newest iterate that was published. It skips the log, and
    can be looked at anywhere.
    """

    def __init__(self, task: GradientTask, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._state, self._model = SgdState(rule_of(task)), task.first_model
        self._upper = np.triu_indices(task.size)

    def fold(self, features: Matrix, responses: Vector, clients: int) -> None:
        """Take one full window of each client: encoded, shapes (n, p) and (n,)."""
        task, model = self._task, self._model
        design = with_intercept(features)
        slope = task.loss.slope(predictors(design, model.coefficients), responses)
        factors = task.record_weights(design) * slope
        gradients = design * factors[:, None]
        beside = self._beside(design, slope, responses)
        if task.study.noised:
            gradients = gradients + self._noise(gradients.shape)
        watermarks = np.full(clients, model.watermark, dtype=np.int64)
        self._state.fold(
            GradientBatch(
                gradients.reshape(clients, task.slots, task.size),
                np.tile(model.coefficients, (clients, 1)),
                watermarks, watermarks, beside,
            )
        )  # fmt: skip

    def publish(self) -> None:
        """Let clients linearise at the newest iterate."""
        self._model = round_model(
            self._model.version + 1, self._state.path.theta, (1.0, 1.0), self._state.slots
        )

    def estimate(self) -> Estimate:
        """Return the estimate of the path so far."""
        return estimate_sgd(self._task, self._state)

    def _beside(self, design: Matrix, slope: Vector, responses: Vector) -> Matrix:
        """Return the noised matrices of each window, packed, shape (windows, m)."""
        task, windows = self._task, len(design) // self._task.slots
        weights = np.broadcast_to(task.record_weights(design), slope.shape)
        factors = {"curvature": weights, "products": weights * weights * slope * slope}
        if "curvature" in task.shares:
            predictor = predictors(design, self._model.coefficients)
            factors["curvature"] = weights * task.loss.curvature(predictor, responses)
        rows = design.reshape(windows, task.slots, task.size)
        parts = [np.zeros((windows, 0))]
        for name in (name for name in factors if name in task.shares):
            weighted = rows * factors[name].reshape(windows, task.slots, 1)
            sums = np.matmul(weighted.transpose(0, 2, 1), rows)[:, *self._upper]
            if task.study.noised:
                channel = {"curvature": task.channels.curvature, "products": task.channels.products}
                sums = sums + self._matrix_noise(channel[name], windows)
            parts.append(sums)
        return np.concatenate(parts, axis=1)

    def _matrix_noise(self, channel: Channel | None, windows: int) -> Matrix:
        assert channel is not None
        beside = channel.off_diagonal().standard_deviation
        deviations = np.where(self._upper[0] == self._upper[1], channel.standard_deviation, beside)
        return deviations * self._standard((windows, len(deviations)))

    def _noise(self, shape: tuple[int, ...]) -> Matrix:
        deviations = np.array([part.standard_deviation for part in self._task.record_channels])
        # levels of privacy in equal shares
        deviation = deviations[self._rng.integers(len(deviations), size=(shape[0], 1))]
        noise: Matrix = deviation * self._standard(shape)
        return noise

    def _standard(self, shape: tuple[int, ...]) -> Matrix:
        """Return noise of variance one, of the mechanism's law."""
        if self._task.study.privacy.mechanism == "discrete-laplace":
            return self._rng.laplace(0.0, 1 / math.sqrt(2), shape)
        return self._rng.standard_normal(shape)


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=20, help="of a design")
    parser.add_argument("--rows", default="", help="only designs whose label has this word")
    options = parser.parse_args()
    designs = [design_of(row) for row in ROWS if options.rows in row.label]
    print("| | n | ready at 2 n | first, over n | covered: first | at 2 n | at the end | least "
          "| length / exact |\n" + "|---" * 9 + "|")  # fmt: skip
    # the shortest first
    for design in sorted(designs, key=lambda one: one.latest * one.row.size):
        found = summed(design, options.streams)
        rates = [
            f"{100 * share:.1f} ({100 * error:.1f}){'' if inside((share, error)) else ' OUTSIDE'}"
            for share, error in (found[name] for name in ("firsts", "twice", "end"))
        ]
        first = f"{found['first']:.2f} ({found['last']:.2f})"
        cells = [
            design.row.label, f"{design.exact:,}", f"{found['ready']:.1%}", first, *rates,
            f"{100 * found['least']:.1f}", f"{found['length']:.2f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def summed(design: Design, streams: int) -> dict[str, Any]:
    """Return what the streams of a design show together.

    firsts, twice, end: Coverage with its Monte Carlo error.
    """
    runs = [streamed(design, number) for number in range(streams)]
    first, firsts, twice, end, lengths = map(np.array, zip(*runs, strict=True))
    return {
        "ready": float(np.mean(~np.isnan(twice).all(axis=1))),
        "given": float(np.mean(~np.isnan(end))),
        "first": float(np.median(first)) / design.exact,
        "last": float(first.max()) / design.exact,
        **{
            name: (math.nan, math.nan) if np.isnan(flags).all() else share_of(flags, LEVEL)
            for name, flags in (("firsts", firsts), ("twice", twice), ("end", end))
        },
        "least": float(np.nanmin(np.nanmean(end, axis=0))),
        "length": float(np.nanmedian(lengths)),
    }


def inside(rate: tuple[float, float]) -> bool:
    """Whether a coverage is where it should be, but for what two errors explain."""
    share, error = rate
    return LEAST - 2 * error <= share <= MOST + 2 * error


def streamed(design: Design, number: int) -> tuple[float, Vector, Vector, Vector, Vector]:
    """Return what the stream of this number shows.

    After how many records the first interval came, infinite without one; which intervals hold the
    target, NaN where none is, shape (d,): each coefficient's first one, those at twice the exact
    size, and those at the end; and the lengths of these over the exact ones.
    """
    rng, task, size = np.random.default_rng([14, number]), design.task, design.row.size
    run, slots = GradientStream(task, rng), design.task.slots
    end, twice = design.latest // slots, design.twice // slots
    every = max(twice // LOOKS, 1)
    first, firsts = math.inf, np.full(size, np.nan)
    covered = at_twice = length = firsts
    for window in range(1, end + 1):
        run.fold(*design.row.records(rng, slots, design.truth), 1)
        run.publish()
        looked_at = window % every == 0 and window < twice and np.isnan(firsts).any()
        if looked_at or window in (twice, end):
            covered, length = looked(run.estimate(), window * slots, design)
            firsts = np.where(np.isnan(firsts), covered, firsts)
            if not np.isnan(covered).all():
                first = min(first, window * slots)
        if window == twice:
            at_twice = covered
    return first, firsts, at_twice, covered, length


def looked(found: Estimate, records: int, design: Design) -> tuple[Vector, Vector]:
    """Return which intervals hold the target, and their lengths over the exact ones.

    NaN stands for a coefficient without an interval.
    """
    nothing = np.full(design.row.size, np.nan)
    low, high = found.intervals(LEVEL) or (nothing, nothing)
    covered = np.where(np.isnan(low), np.nan, (low <= design.target) & (design.target <= high))
    return covered, (high - low) * math.sqrt(records) / (2 * NORMAL * design.deviations)


if __name__ == "__main__":
    main()
