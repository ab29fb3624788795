"""Designs of locally private gradient descent: studies, the populations they meet, and the truth.

Classes are 15:85; features uniform on their ranges, or normal with correlations 0.5^|j - k| and cut
at 2.5 deviations. "flights" are those that arrive more than 15 minutes late or do not, in ranges
that somebody wrote without looking; the year has too few, so its records are drawn with
replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.interval_streams import every_flight
from benchmarks.limit_law import covariance, moments
from pipeline.methods import task_of
from pipeline.methods.base import Exact
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.plan import HALF, due_with, exact
from pipeline.records.blocks import with_intercept
from pipeline.study_file.load import parse_study
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


@dataclass(frozen=True)
class Design:
    """A row with what is true of it.

    target: The population's minimiser, in encoded units, shape (d,).
    deviations: Of the exact sandwich after one record, shape (d,).
    exact: After how many records its longest interval is half a unit to either side.
    near: After how many nearly all streams have intervals, by a plan that knows population and
        classes.
    by_ranges, by_sample: What a plan says of `exact` and readiness who knows ranges alone, and
        features with the share of positive classes.
    """

    row: Row
    task: GradientTask
    truth: Vector
    target: Vector
    deviations: Vector
    exact: int
    near: int
    by_ranges: Exact
    by_sample: Exact

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
        features, responses = year()
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
    return Design(
        row, task, truth, target, deviations, size, due_with(planned, products)[-1],
        exact(task, size), exact(planned, size, products),
    )  # fmt: skip
