"""Putting copies of sites' estimates together: INFEMBLER, an EM over all sites at once.

Source: noisy-mle, Algorithm 1 and equation (3). K copies are their mean and scatter, which say the
same under the same budget: p + p (p + 1) / 2 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.types import Matrix, Vector

#: Arrays of one matrix for each site.
Matrices = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Copies:
    """What M sites sent.

    records, copies, scales: n, K and psi of each, shape (M,).
    means, scatters: Of the copies, shapes (M, p) and (M, p, p).
    """

    records: Vector
    copies: Vector
    scales: Vector
    means: Matrix
    scatters: Matrices

    def of(self, sites: slice) -> Copies:
        """Return some of the sites."""
        return Copies(
            self.records[sites], self.copies[sites], self.scales[sites],
            self.means[sites], self.scatters[sites],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Central:
    """Records that the centre holds itself: how many, their estimate and information."""

    records: float
    theta: Vector
    information: Matrix


@dataclass(frozen=True, slots=True)
class Assembled:
    """An estimate: theta, information F of one record, of all (A), and how many rounds it took."""

    theta: Vector
    information: Matrix
    whole: Matrix
    each: Matrices
    rounds: int


def draw(
    theta: Vector, information: Matrix, copies: int, scale: float, rng: np.random.Generator
) -> tuple[Vector, Matrix]:
    """Return mean and scatter of K copies N(theta, scale F^-1), by Bartlett's decomposition.

    Fewer copies than there are numbers in one are drawn as they are.
    """
    size = len(theta)
    root = np.sqrt(scale) * np.linalg.inv(np.linalg.cholesky(information)).T
    if copies <= size:
        apart = rng.standard_normal((copies, size)) @ root.T
        middle = apart.mean(axis=0)
        return theta + middle, (apart - middle).T @ (apart - middle)
    mean = theta + root @ rng.standard_normal(size) / np.sqrt(copies)
    lower = np.tril(rng.standard_normal((size, size)), -1)
    np.fill_diagonal(lower, np.sqrt(rng.chisquare(copies - 1 - np.arange(size))))
    half = root @ lower
    return mean, half @ half.T


def start(sites: Copies, central: Central | None) -> Assembled:
    """Return where the EM begins: the centre's own information, else that of pooled scatters."""
    size = sites.means.shape[1]
    total = float(sites.records.sum())
    if central is None:
        degrees = np.maximum(sites.copies - 1, 1)
        spread = np.einsum("m,mij->ij", sites.records / (sites.scales * degrees), sites.scatters)
        information = np.linalg.inv(spread / total) / np.mean(sites.records)
        theta = sites.records @ sites.means / total
    else:
        whole = central.records + total
        theta = (central.records * central.theta + sites.records @ sites.means) / whole
        information = central.information / central.records
    return Assembled(theta, information, np.eye(size), np.zeros_like(sites.scatters), 0)


def step(sites: Copies, central: Central | None, at: Assembled) -> Assembled:
    """Return one round: all sites' informations together, then the coefficients."""
    size = len(at.theta)
    share = sites.copies / (sites.copies + sites.scales)
    away = at.theta - sites.means
    spread = np.linalg.inv(at.information) + sites.scatters / sites.scales[:, None, None]
    spread += share[:, None, None] * (away[:, :, None] * away[:, None, :])
    each = (sites.records + sites.copies)[:, None, None] * np.linalg.inv(spread)
    total = float(sites.records.sum()) + size + 1
    information, whole = each.sum(axis=0), np.einsum("m,mij->ij", share, each)
    score = np.einsum("m,mij,mj->i", share, each, sites.means)
    if central is not None:
        total += central.records
        information = information + central.information
        whole = whole + central.information
        score = score + central.information @ central.theta
    theta = np.linalg.solve(whole, score)
    return Assembled(theta, information / total, whole, each, at.rounds + 1)


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
        moved = found.theta - before.theta
        changed = np.abs(found.information - before.information).max()
        if (
            np.sqrt(moved @ found.whole @ moved) < tolerance
            and changed < tolerance * np.abs(found.information).max()
        ):
            break
    return found


def covariance(sites: Copies, central: Central | None, found: Assembled) -> Matrix:
    """Return A^-1 (F_1 + sum c F_m V_m F_m) A^-1; it needs K > p + 1 copies (Theorem 2)."""
    share = sites.copies / (sites.copies + sites.scales)
    spread = sites.scatters / (sites.scales * (sites.copies - 1))[:, None, None]
    meat = np.einsum("m,mij,mjk,mkl->il", share, found.each, spread, found.each)
    if central is not None:
        meat = meat + central.information
    inverse = np.linalg.inv(found.whole)
    return inverse @ meat @ inverse
