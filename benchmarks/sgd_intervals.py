"""Intervals of locally private gradient descent where they are due: share, coverage, length.

`python -m benchmarks.sgd_intervals [--full | --streams N] [--rows WORD]`. Streams with the study's
own noise, steps and estimator, of twice the size at which the exact sandwich (true curvature, the
same noise, all of the budget in gradients) is half a unit to either side: of the residuals'
deviation, or of the logit. Classes are 15:85; features uniform on their ranges, or normal with
correlations 0.5^|j - k| and cut at 2.5 deviations. "flights" are those that arrive more than 15
minutes late or do not, in ranges that somebody wrote without looking; the year has too few, so
its records are drawn with replacement. One client, a model after each of its windows.

Prints that size; what a plan would have said of it from the ranges, and from a sample of features
with the share of positive classes; how many of the streams end ready; the share of coefficients
with an interval, the coverage of the population's minimiser by 95 % intervals in percent with its
Monte Carlo error, and their median length over the exact one.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.interval_records import every_flight
from benchmarks.limit_law import covariance, moments
from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.methods.facts import Exact
from pipeline.methods.ldp_sgd.exact import exact
from pipeline.methods.ldp_sgd.simulation import GradientStream
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.records.blocks import with_intercept
from pipeline.study import parse_study
from pipeline.types import Matrix, Vector

STUDY = """
[study]
name = "intervals"
[data]
response = {response}
[data.features]
{features}
[estimator]
kind = "ldp-sgd"
loss = "{loss}"
ridge = 0
{bound}
path = {{ {path} }}
[privacy]
mechanism = "insecure-simulation"
epsilon = {epsilon}
delta = 1e-6
neighbours = "replace-one"
seed = 1
[window]
records = {window}
[stream]
partitions = 1
publish = {{ releases = 1 }}
"""
#: Responses lie in +-8 residual deviations, the share of positive classes, records for the target.
RANGE, POSITIVE, SAMPLE = 8.0, 0.15, 400_000
#: mu = 1 and 2 at delta = 1e-6.
EPSILONS = {1: 4.887, 2: 10.997}
HALF, NORMAL = 0.5, 1.96


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
        number = f'{{ name = "y", kind = "number", min = -{RANGE}, max = {RANGE} }}'
        tau = "\ntau = 0.8" if self.loss == "expectile" else ""
        logistic = self.loss == "logistic"
        response = '{ name = "y", positive = "1", negative = "0" }' if logistic else number
        features = "\n".join(f"x{j} = {{ min = -1, max = 1 }}" for j in range(self.size - 1))
        made = task_of(
            parse_study(
                STUDY.format(
                    response=response, features=features, loss=self.loss,
                    bound="" if logistic else f"residual_bound = 1.345{tau}",
                    path=self.path, epsilon=EPSILONS[self.mu], window=window,
                )
            )
        )  # fmt: skip
        assert isinstance(made, GradientTask)
        return made

    def records(self, rng: np.random.Generator, count: int, truth: Vector) -> tuple[Matrix, Vector]:
        """Draw encoded features, shape (n, d - 1), and responses, shape (n,)."""
        if self.real:
            features, responses = year()
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


@cache
def year() -> tuple[Matrix, Vector]:
    """Return the features and classes of all flights of a year that arrived."""
    return every_flight()[:2]


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="200 streams of a row, not 20")
    parser.add_argument("--streams", type=int, default=20, help="of a row")
    parser.add_argument("--rows", default="", help="only rows whose label has this word")
    parser.add_argument("--before", action="store_true", help="gradients alone, as it was")
    options = parser.parse_args()
    path = 'releases = "gradients"' if options.before else ""
    print("| | records | by ranges | by a sample | ready | given | coverage | length / exact |")
    print("|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        if options.rows in row.label:
            asked = replace(row, path=path)
            print(line(asked, 200 if options.full else options.streams), flush=True)


def line(row: Row, streams: int) -> str:
    """Return a row of the table."""
    rng = np.random.default_rng(13)
    truth = np.zeros(row.size)
    if row.real:
        features, responses = year()
    else:
        features = row.features(rng, SAMPLE)
        truth = row.truth(features)
        responses = row.responses(rng, with_intercept(features) @ truth)
    task, unit = row.task(100), 1.0 if row.loss == "logistic" else RANGE
    target, design = truth / unit, with_intercept(features)
    for _ in range(30):
        curvature, _ = moments(task.loss, design, responses, target, task.clipping_norm)
        slope = task.record_weights(design) * task.loss.slope(design @ target, responses)
        target = target - np.linalg.solve(curvature, design.T @ slope / len(design))
    # all of the budget in gradients
    alone = Row(row.loss, row.size, row.mu, path='releases = "gradients"').task(100)
    found = moments(task.loss, design, responses, target, task.clipping_norm)
    deviations = np.sqrt(np.diag(covariance(*found, alone.record_noise, 1)))
    records = 2 * int((NORMAL * deviations.max() * unit / HALF) ** 2)
    task = row.task(100 if records > 20_000 else 50)
    told = f"{exact(task, records).ready:,} | {sampled(row, task, design, responses).ready:,}"
    given, covered, lengths = [], [], []
    for number in range(streams):
        ends = streamed(row, task, truth, records, number).intervals(0.95)
        low, high = ends if ends is not None else (np.full(row.size, np.nan),) * 2
        given.append(~np.isnan(low))
        covered.append(np.where(given[-1], (low <= target) & (target <= high), np.nan))
        lengths.append((high - low) * math.sqrt(records) / (2 * NORMAL * deviations))
    share = np.mean(given)
    if not share:
        return f"| {row.label} | {records:,} | {told} | 0% | 0% | | |"
    ready = f"{np.mean(np.any(given, axis=1)):.0%}"
    each = np.nanmean(np.array(covered)[np.any(given, axis=1)], axis=1)
    error = 100 * each.std() / math.sqrt(len(each))
    coverage = f"{100 * np.nanmean(covered):.1f} ({error:.1f})"
    length = f"{np.nanmedian(lengths):.2f}"
    return f"| {row.label} | {records:,} | {told} | {ready} | {share:.0%} | {coverage} | {length} |"


def sampled(row: Row, task: GradientTask, design: Matrix, responses: Vector) -> Exact:
    """Return what a plan says who knows features, and how frequent classes are."""
    share = float(np.mean(responses > 0))
    known = row.path or (f"curvature = {0.8 * share * (1 - share)}" if task.classes else "")
    return exact(replace(row, path=known).task(task.slots), 1, design.T @ design / len(design))


def streamed(row: Row, task: GradientTask, truth: Vector, records: int, number: int) -> Estimate:
    """Return the last estimate of a stream."""
    rng = np.random.default_rng([14, number])
    run = GradientStream(task, rng)
    for _ in range(records // task.slots):
        run.fold(*row.records(rng, task.slots, truth), 1)
        run.publish()
    return run.estimate()


if __name__ == "__main__":
    main()
