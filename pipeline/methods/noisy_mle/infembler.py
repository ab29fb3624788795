"""Putting copies of sites' fits together: INFEMBLER, an EM over all sites at once.

Source: noisy-mle, Algorithm 1 and equation (3), of mean and scatter in place of copies. Beyond the
paper: the ridge of the sites' fits is taken out again, sites have weights, and rounds are stretched
by what an EM with few copies of many records falls short. docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.linalg import floor_eigenvalues
from pipeline.types import Matrix, Vector

#: Arrays of one matrix for each site.
Matrices = NDArray[np.float64]
#: No round moves the logarithm of the information further.
LONGEST = 1.0


@dataclass(frozen=True, slots=True)
class Copies:
    """What M sites sent.

    records: Of each, shape (M,).
    degrees: Degrees of freedom of their scatters, K - 1 for K copies, shape (M,).
    scales: psi, the noise of a copy in units of F^-1, shape (M,).
    noise: psi / K, that of the mean, shape (M,).
    means, scatters: Of the copies, shapes (M, p) and (M, p, p).
    ridge: Of the sites' fits, for each record: F of a site holds `records` times as much.
    centres: What their ridges draw to, shape (M, p); None: to 0.
    """

    records: Vector
    degrees: Vector
    scales: Vector
    noise: Vector
    means: Matrix
    scatters: Matrices
    ridge: float = 0.0
    centres: Matrix | None = None

    @property
    def shares(self) -> Vector:
        """C = K / (K + psi), shape (M,)."""
        return 1 / (1 + self.noise)

    @property
    def trust(self) -> Vector:
        """Degrees of freedom of the posterior of a site's information, shape (M,)."""
        trust: Vector = self.records + self.degrees + 1
        return trust


@dataclass(frozen=True, slots=True)
class Central:
    """Records that the centre holds itself: how many, their estimate and information."""

    records: float
    theta: Vector
    information: Matrix


@dataclass(frozen=True, slots=True)
class Assembled:
    """An estimate: theta, and information F of one record.

    whole: Information of all about theta, shape (p, p); with a ridge not quite symmetric.
    each: Posterior informations of the sites, shape (M, p, p).
    rounds, step: How many rounds it took, and the last one's length in standard errors.
    """

    theta: Vector
    information: Matrix
    whole: Matrix
    each: Matrices
    rounds: int = 0
    step: float = np.inf


def start(sites: Copies, central: Central | None = None) -> Assembled:
    """Return where the EM begins: the centre's own information, else that of pooled scatters."""
    size, total = sites.means.shape[1], float(sites.records.sum())
    if central is None:
        each = sites.records / (sites.scales * np.maximum(sites.degrees, 1))
        spread = _total(each, sites.scatters)
        information = np.linalg.inv(spread / total) / np.mean(sites.records)
        information = floor_eigenvalues(information - sites.ridge * np.eye(size), 0.0).matrix
        theta = sites.records @ sites.means / total
    else:
        whole = central.records + total
        theta = (central.records * central.theta + sites.records @ sites.means) / whole
        information = central.information / central.records
    return Assembled(theta, information, np.eye(size), np.zeros_like(sites.scatters))


def step(
    sites: Copies, central: Central | None, at: Assembled, weights: Vector | None = None,
    penalty: Matrix | float = 0.0,
) -> Assembled:  # fmt: skip
    """Return one round: all sites' informations together, then the coefficients.

    weights: Of the sites, in [0, 1].
    penalty: Ridge of one record that stays in the estimate.
    """
    size, many = len(at.theta), np.ones(len(sites.records)) if weights is None else weights
    trust, pull = sites.trust, many * sites.shares
    spread: Matrices = sites.scatters / sites.scales[:, None, None]
    # (I - ridge F^-1) theta is what a fit with a ridge aims at, and the scatter says F^-1
    short, seen = _undrawn(sites) if sites.ridge else (None, sites.means)
    away: Matrix = at.theta - seen - (0.0 if short is None else np.matmul(short, at.theta))
    leaning = np.sqrt(sites.shares)[:, None] * away
    spread += leaning[:, :, None] * leaning[:, None, :]
    spread += np.linalg.inv(at.information + sites.ridge * np.eye(size))
    each = np.asarray(np.linalg.inv(spread), dtype=np.float64)
    each *= trust[:, None, None]
    records = float(many @ sites.records)
    information = _total(many, each) - sites.ridge * records * np.eye(size)
    whole = _total(pull, each)
    if short is not None:
        whole -= _total(pull, np.matmul(each, short))
    whole += float(pull @ sites.records) * penalty
    score = pull @ np.matmul(each, seen[:, :, None])[:, :, 0]
    total = records + size + 1
    if central is not None:
        total += central.records
        information = information + central.information
        whole = whole + central.information
        score = score + central.information @ central.theta
    theta = np.linalg.solve(whole, score)
    moved = theta - at.theta
    length = math.sqrt(max(0.0, float(moved @ whole @ moved)))
    return Assembled(theta, information / total, whole, each, at.rounds + 1, length)


def stretched(
    sites: Copies, before: Assembled, after: Assembled, weights: Vector | None = None
) -> Assembled:
    """Return a round whose information has moved as far as all the following ones would move it.

    The error of F falls by about records / (records + copies) in each round, in all directions.
    """
    many = np.ones(len(sites.records)) if weights is None else weights
    factor = float(many @ sites.trust) / max(float(many @ (sites.degrees + 1)), 1.0)
    values, vectors = np.linalg.eigh(before.information + sites.ridge * np.eye(len(before.theta)))
    root = vectors * np.sqrt(values)
    solved = vectors / np.sqrt(values)
    middle = solved.T @ (after.information + sites.ridge * np.eye(len(root))) @ solved
    change, axes = np.linalg.eigh(middle)
    logs = np.clip(factor * np.log(np.maximum(change, 1e-12)), -LONGEST, LONGEST)
    found = root @ (axes * np.exp(logs)) @ axes.T @ root.T - sites.ridge * np.eye(len(root))
    return replace(after, information=floor_eigenvalues((found + found.T) / 2, 0.0).matrix)


def assemble(
    sites: Copies,
    central: Central | None = None,
    *,
    at: Assembled | None = None,
    tolerance: float = 1e-3,
    most: int = 500,
) -> Assembled:
    """Return the estimate of all sites: rounds until a step is small in standard errors.

    at: A warm start, such as the estimate before the last sites came.
    """
    found = start(sites, central) if at is None else replace(at, rounds=0)
    while found.rounds < most:
        before, found = found, step(sites, central, found)
        changed = np.abs(found.information - before.information).max()
        if found.step < tolerance and changed < tolerance * np.abs(found.information).max():
            break
    return found


def covariance(
    sites: Copies, central: Central | None, found: Assembled, weights: Vector | None = None,
    repeated: Vector | float = 1.0,
) -> tuple[Matrix, Matrix]:  # fmt: skip
    """Return A^-1 (F_1 + sum c^2 D Var(mean) D) A^-1, and the noise's part of it (Theorem 2).

    The inverse informations in it come from the scatters, which need K > p + 1 copies.

    repeated: Sum of squared weights over that of the weights of a site's windows, shape (M,).
    """
    many = np.ones(len(sites.records)) if weights is None else weights
    each, pull = found.each, many**2 * sites.shares**2
    inverses = _inverses(sites)
    sampled = inverses
    noise = _total(pull * repeated * sites.noise, np.matmul(np.matmul(each, inverses), each))
    if sites.ridge:
        # F^-1 (F - ridge) F^-1, with the posterior for one of the two
        ridges = (sites.ridge * sites.records)[:, None, None]
        shrunk = np.matmul(inverses, np.linalg.inv(each))
        sampled = inverses - ridges / 2 * (shrunk + shrunk.transpose(0, 2, 1))
        # and what scatters err about the ridge's part, as Wishart matrices vary
        way = ridges[:, :, 0] * (found.theta - (0.0 if sites.centres is None else sites.centres))
        turned = np.matmul(inverses, way[:, :, None])[:, :, 0]
        lengths = np.einsum("mi,mi->m", way, turned)[:, None, None]
        unsure = lengths * inverses + turned[:, :, None] * turned[:, None, :]
        noise += _total(pull * repeated / sites.degrees, np.matmul(np.matmul(each, unsure), each))
    sampling = _total(pull * repeated, np.matmul(np.matmul(each, sampled), each))
    if central is not None:
        sampling = sampling + central.information
    inverse = np.linalg.inv(found.whole)
    return inverse @ (sampling + noise) @ inverse.T, inverse @ noise @ inverse.T


def _inverses(sites: Copies) -> Matrices:
    """Return the inverse informations that scatters show without bias, shape (M, p, p)."""
    inverses: Matrices = (
        sites.scatters / (sites.scales * np.maximum(sites.degrees, 1))[:, None, None]
    )
    return inverses


def _undrawn(sites: Copies) -> tuple[Matrices, Matrix]:
    """Return ridge F^-1 of each site, and its mean without what the ridge draws to its centre."""
    short: Matrices = (sites.ridge * sites.records)[:, None, None] * _inverses(sites)
    if sites.centres is None:
        return short, sites.means
    return short, sites.means - np.matmul(short, sites.centres[:, :, None])[:, :, 0]


def _total(weights: Vector, matrices: Matrices) -> Matrix:
    """Return the weighted sum of matrices, shape (p, p)."""
    size = matrices.shape[1]
    total: Matrix = (weights @ matrices.reshape(len(weights), -1)).reshape(size, size)
    return total
