"""Two Gaussian classes, whose records can be drawn and whose accuracies are known exactly.

A record of class y has features y mean + noise. The balanced accuracy of a linear rule is half the
sum over the classes of Phi((+-b0 + slopes' mean) / sd of slopes' noise), averaged over sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cholesky, toeplitz
from scipy.special import ndtr, ndtri

from pipeline.methods.published.fits import Records
from pipeline.types import Matrix, Vector


class Population(Protocol):
    """Where the records of a batch come from."""

    @property
    def features(self) -> int:
        """Number p of features."""
        ...

    def batch(self, rng: np.random.Generator, records: int, positive: float) -> Records:
        """Draw the records of all clients: `records` each, a share `positive` of class +1."""
        ...

    def accuracy(self, coefficients: Vector) -> float:
        """Return the exact accuracy of a linear rule where both classes are equally frequent."""
        ...


@dataclass(frozen=True, slots=True)
class Sites:
    """Sites (clients) with independent features: shift y mu_m, deviation sigma_m, each (M,)."""

    shifts: Vector
    deviations: Vector
    features: int

    def batch(self, rng: np.random.Generator, records: int, positive: float) -> Records:
        """Draw a batch, site by site."""
        sites = len(self.shifts)
        responses = np.tile(_labels(records, positive), sites)
        design = np.ones((sites * records, self.features + 1))
        noise = rng.standard_normal((sites * records, self.features))
        noise *= np.repeat(self.deviations, records)[:, None]
        noise += (np.repeat(self.shifts, records) * responses)[:, None]
        design[:, 1:] = noise
        return Records(design, responses)

    def accuracy(self, coefficients: Vector) -> float:
        """Average the exact accuracy over sites."""
        towards = self.shifts * float(np.sum(coefficients[1:]))
        spread = self.deviations * float(np.linalg.norm(coefficients[1:]))
        sides = [ndtr((towards + side * coefficients[0]) / spread) for side in (1, -1)]
        return float(np.mean(sides))


def same_sites(clients: int, features: int, shift: float = 0.2) -> Sites:
    """Return identical sites of unit deviation (Tables 1 and 2)."""
    return Sites(np.full(clients, shift), np.ones(clients), features)


def drawn_sites(
    rng: np.random.Generator, low: float, high: float, *, sites: int = 50, features: int = 20
) -> Sites:
    """Draw sites with mu_m uniform on [low, high] and sigma_m uniform on [0.1, 1] (Table 3)."""
    return Sites(rng.uniform(low, high, sites), rng.uniform(0.1, 1.0, sites), features)


@dataclass(frozen=True, slots=True)
class Correlated:
    """Identical clients with correlated features: class means +-mean (p,), noise root @ normal."""

    clients: int
    mean: Vector
    root: Matrix

    @property
    def features(self) -> int:
        """Number p of features."""
        return len(self.mean)

    def batch(self, rng: np.random.Generator, records: int, positive: float) -> Records:
        """Draw a batch."""
        responses = np.tile(_labels(records, positive), self.clients)
        noise = rng.standard_normal((len(responses), self.features)) @ self.root.T
        rows = np.column_stack([np.ones(len(responses)), noise + np.outer(responses, self.mean)])
        return Records(rows, responses)

    def accuracy(self, coefficients: Vector) -> float:
        """Return the exact accuracy."""
        towards = float(coefficients[1:] @ self.mean)
        spread = float(np.linalg.norm(self.root.T @ coefficients[1:]))
        return float(np.mean([ndtr((towards + s * coefficients[0]) / spread) for s in (1, -1)]))


def autoregressive(clients: int, features: int, *, correlation: float = 0.7) -> Correlated:
    """Return features with correlations 0.7^|j - k| and a best accuracy of 90 %.

    The best slopes are proportional to (-1)^j / sqrt j: neighbours that are correlated point
    apart, so the difference of the class means is a poor rule (79 % at p = 10, 76 % at p = 50).
    """
    index = np.arange(features)
    covariance = toeplitz(correlation**index)
    best = (-1.0) ** index / np.sqrt(index + 1)
    mean = covariance @ best
    mean *= float(ndtri(0.9)) / math.sqrt(float(best @ mean))
    return Correlated(clients, mean, cholesky(covariance, lower=True))


def _labels(records: int, positive: float) -> Vector:
    """Return the responses of one client's batch: an exact share of each class."""
    return np.where(np.arange(records) < round(positive * records), 1.0, -1.0)
