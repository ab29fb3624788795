"""Independent records of a study from its public numbers, and what its estimate aims at.

Features are those of the public reference population: about their typical values where the study
says any, else uniform on their encoded ranges and over their levels. Classes follow a logistic law
in the linear predictor, numbers are normal about it, counts Poisson with its exponential as the
mean; numbers and counts are cut to their range, as a client does. The target is the minimiser of
the mean loss of the population, weights and penalty included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from scipy.special import expit, logit, ndtri, pdtrik

from pipeline.errors import ConfigError, NumericError
from pipeline.estimators.estimate import class_weights
from pipeline.estimators.reference_fit import Rows, study_rows, target
from pipeline.release.task import Task
from pipeline.study.reference import SEED, Seen, draw, law_of, moments, sample, typical_mean
from pipeline.types import Matrix, Vector

#: Standard deviation of the linear predictor by kind of response, in encoded units.
SPREAD = {"class": 1.0, "number": 0.25, "count": 0.3}
#: Residuals' standard deviation where the study says nothing of it, in encoded units.
RESIDUAL = 0.1
#: Residual bounds are 1.345 standard deviations of the residuals, if chosen as recommended.
HUBER = 1.345
#: Numbers that the sample for the target holds at most.
_NUMBERS = 2**22


@dataclass(frozen=True, slots=True)
class Population:
    """What records are drawn from.

    truth: Coefficients of the linear predictor in encoded units, shape (d,).
    residual: Standard deviation of a number about it, in encoded units; unused by classes and
        counts.
    seen: Where records are drawn from instead, and their responses, too, where they have any.
    """

    task: Task
    truth: Vector
    residual: float
    seen: Seen | None = None

    @classmethod
    def of(
        cls, task: Task, truth: Vector | None = None, residual: float | None = None,
        seen: Seen | None = None,
    ) -> Population:  # fmt: skip
        """Return the population of a study.

        truth: Coefficients as estimates print them, in the response's unit, shape (d,); by default
            those of `default_truth`.
        residual: In the response's unit; by default `noise_scale`, or `residual_bound` / 1.345, or
            0.1 in encoded units.

        Raises ConfigError if there is another number of coefficients, or a number is out of range.
        """
        centre, unit = task.response_scale
        if residual is not None and not 0 < residual < math.inf:
            raise ConfigError("--residual-scale: must be a number above 0")
        if truth is None:
            encoded = default_truth(task, seen)
        else:
            if len(truth) != task.size:
                names = ", ".join(task.study.coefficient_names)
                raise ConfigError(
                    f"--truth: {len(truth)} numbers; the study has {task.size}: {names}"
                )
            if not np.isfinite(truth).all():
                raise ConfigError("--truth: only finite numbers, such as 0.5,1,-1")
            encoded = (truth - np.append(centre, np.zeros(task.size - 1))) / unit
        scale = residual or task.study.estimator.noise_scale
        bound = task.study.estimator.residual_bound
        if scale is None and bound is not None:
            scale = bound / HUBER
        return cls(task, encoded, RESIDUAL if scale is None else scale / unit, seen)

    def draw(self, rng: np.random.Generator, records: int) -> tuple[Matrix, Vector]:
        """Return encoded features, shape (n, p), and responses, shape (n,)."""
        features, known = self._at(rng.random((records, len(self.task.encoding.names))))
        if known is not None:
            return features, known
        predictor = self._predictor(features)
        kind = self.task.study.data.response.kind
        if kind == "class":
            return features, np.where(rng.random(records) < expit(predictor), 1.0, -1.0)
        if kind == "count":
            means = np.exp(np.minimum(predictor, 40.0))
            return features, self._cut(rng.poisson(means).astype(np.float64))
        return features, self._cut(predictor + self.residual * rng.standard_normal(records))

    def sample(self, points: Matrix) -> tuple[Matrix, Vector, Vector]:
        """Return features, responses and weights of a sample that stands for the population.

        points: In (0, 1), shape (n, k + 1): each gives two records with the same features, of both
            classes with their probabilities, or of residuals on both sides of the median.
        """
        (features, known), u = self._at(points[:, :-1]), points[:, -1]
        ones = np.ones(len(u))
        if known is not None:
            return features, known, ones / len(u)
        predictor = self._predictor(features)
        kind = self.task.study.data.response.kind
        if kind == "class":
            responses = np.concatenate([ones, -ones])
            weights = np.concatenate([expit(predictor), expit(-predictor)])
        else:
            weights = np.full(2 * len(u), 0.5)
            both = np.concatenate([u, 1 - u])
            means = np.tile(predictor, 2)
            if kind == "count":
                responses = self._cut(np.ceil(pdtrik(both, np.exp(np.minimum(means, 40.0)))))
                responses = np.maximum(np.nan_to_num(responses), 0.0)
            else:
                responses = self._cut(means + self.residual * ndtri(both))
        return np.tile(features, (2, 1)), responses, weights / len(u)

    def _at(self, points: Matrix) -> tuple[Matrix, Vector | None]:
        """Return features, (n, p), and their responses, (n,), where those are known."""
        if (seen := self.seen) is None:
            return draw(self.task.encoding, points, law_of(self.task.encoding)), None
        at = (points[:, 0] * len(seen.features)).astype(np.intp)
        return seen.features[at], None if seen.responses is None else seen.responses[at]

    def _predictor(self, features: Matrix) -> Vector:
        predictor: Vector = self.truth[0] + features @ self.truth[1:]
        return predictor

    def _cut(self, responses: Vector) -> Vector:
        if self.task.study.data.response.kind == "count":
            return np.minimum(responses, self.task.study.data.response.ends[1])
        return np.clip(responses, -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Target:
    """What the estimate aims at.

    coefficients: In encoded units, shape (d,).
    error: How far two samples that stand for the population disagree, at most, in encoded units.
    """

    coefficients: Vector
    error: float


def target_of(population: Population, seed: int = 0) -> Target:
    """Return the minimiser of the population's mean loss, from two scrambled Sobol samples.

    Of records that were seen, it is their own.

    NumericError if there is none, as for classes that are separable.
    """
    # scipy.stats alone takes a second to import
    from scipy.stats import qmc  # noqa: PLC0415

    size = len(population.task.encoding.names) + 1
    if population.seen is not None and population.seen.responses is not None:
        rows, mass = rows_of(population, even_points(size, len(population.seen.features)))
        return Target(minimiser_of(population, rows, mass), 0.0)
    bits = max(8, min(14, int(math.log2(_NUMBERS / population.task.size))))
    found = []
    for number in range(2):
        sobol = qmc.Sobol(size, rng=np.random.default_rng([seed, number]))
        points = np.clip(sobol.random_base2(bits), 2.0**-40, 1 - 2.0**-40)
        found.append(minimiser_of(population, *rows_of(population, points)))
    one, other = found
    return Target((one + other) / 2, float(np.abs(one - other).max()))


def default_truth(task: Task, seen: Seen | None = None) -> Vector:
    """Return coefficients of alternating sign with equal shares in the predictor, shape (d,).

    The standard deviation of the predictor is 1 for classes, which are as frequent as the study
    guesses (`data.response.typical`, by default equally), 0.25 for numbers, about the middle of
    their range, and 0.3 for counts, whose mean is about what the study guesses.
    """
    kind = task.study.data.response.kind
    products = moments(task.encoding, law_of(task.encoding)) if seen is None else seen.products
    means = products[0, 1:]
    deviations = np.sqrt(np.maximum(np.diag(products)[1:] - means**2, 0.0))
    # one value alone says nothing
    deviations[deviations == 0] = 1.0
    signs = np.where(np.arange(task.size - 1) % 2, -1.0, 1.0)
    slopes = signs * SPREAD[kind] / math.sqrt(task.size - 1) / deviations
    middle, share = 0.0, task.study.data.response.typical
    if kind == "count":
        middle = math.log(typical_mean(task.study))
    elif share is not None:
        middle = _log_odds(task, slopes, share, seen) + float(slopes @ means)
    return np.append(middle - float(slopes @ means), slopes)


def _log_odds(task: Task, slopes: Vector, share: float, seen: Seen | None) -> float:
    """Return the intercept with which the positive class has this share."""
    features = sample(task.encoding, law_of(task.encoding)) if seen is None else seen.features
    predictor = features @ slopes
    found = scipy.optimize.brentq(
        lambda intercept: float(np.mean(expit(intercept + predictor))) - share,
        logit(share) - float(predictor.max()), logit(share) - float(predictor.min()),
    )  # fmt: skip
    return float(found)


def rows_of(population: Population, points: Matrix) -> tuple[Rows, Vector]:
    """Return rows as clients see them, and the share of the population that each stands for, (n,).

    points: As `Population.sample` takes them.
    """
    task = population.task
    features, responses, mass = population.sample(points)
    weights = (1.0, 1.0)
    if task.classes:
        up = float(mass[responses > 0].sum())
        weights = class_weights(1 - up, up, task.largest_weight)
    return study_rows(task, features, responses, weights), mass


def minimiser_of(population: Population, rows: Rows, mass: Vector) -> Vector:
    """Return what minimises the mean loss of such rows, shape (d,); NumericError as `target_of`."""
    # the mean over rows of n times their mass is the mean over the population
    weight = mass * len(mass) * (1.0 if rows.weights is None else rows.weights)
    every = Rows(rows.design, rows.responses, weight)
    try:
        return target(population.task, lambda: [every], start=population.truth).coefficients
    except NumericError as error:
        raise NumericError(
            "the population has no best coefficients that could be found: give a --truth with "
            "smaller slopes"
        ) from error


def even_points(size: int, count: int) -> Matrix:
    """Return points in (0, 1) whose columns are each spread evenly, shape (count, size).

    A Latin hypercube, always the same: raw words of the generator order a grid.
    """
    words = np.random.PCG64(SEED).random_raw(count * size).reshape(count, size)
    ranks: Matrix = (np.argsort(np.argsort(words, axis=0), axis=0) + 0.5) / count
    return ranks
