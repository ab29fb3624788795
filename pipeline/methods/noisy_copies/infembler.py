"""Putting copies of sites' fits together: INFEMBLER, an EM over all sites at once.

Source: noisy-mle, Algorithm 1 and equation (3), of mean and scatter in place of copies. Beyond the
paper: the ridge of the sites' fits is taken out again, sites have weights, and rounds are stretched
by what an EM with few copies of many records falls short. docs/methods/noisy-copies.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.linalg import floor_eigenvalues, packed_indices
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.sites.state import FIRST, RELEASES, Weighed, gathered
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector

#: Arrays of one matrix for each site.
Matrices = NDArray[np.float64]
#: No round moves the logarithm of the information further.
LONGEST = 1.0


@dataclass(frozen=True)
class Copies:
    """What M sites sent.

    records: Of each, shape (M,).
    degrees: Degrees of freedom of their scatters, K - 1 for K copies, shape (M,).
    scales: psi, the noise of a copy in units of F^-1, shape (M,).
    noise: psi / K, that of the mean, shape (M,).
    means, scatters: Of the copies, shapes (M, p) and (M, p, p).
    ridge: Of the sites' fits, for each record: F of a site holds `records` times as much.
    centres: What their ridges draw to, shape (M, p); None: to 0.
    rounding: Variance of a number of the mean by its lattice, shape (M,).
    """

    records: Vector
    degrees: Vector
    scales: Vector
    noise: Vector
    means: Matrix
    scatters: Matrices
    ridge: float = 0.0
    centres: Matrix | None = None
    rounding: Vector | float = 0.0

    @cached_property
    def shares(self) -> Vector:
        """C = K / (K + psi), shape (M,)."""
        return 1 / (1 + self.noise)

    @cached_property
    def trust(self) -> Vector:
        """Degrees of freedom of the posterior of a site's information, shape (M,)."""
        trust: Vector = self.records + self.degrees + 1
        return trust

    @cached_property
    def spreads(self) -> Matrices:
        """Scatters in units of a copy's noise, shape (M, p, p)."""
        spreads: Matrices = self.scatters / self.scales[:, None, None]
        return spreads

    @cached_property
    def inverses(self) -> Matrices:
        """The inverse informations that scatters show without bias, shape (M, p, p)."""
        inverses: Matrices = self.spreads / np.maximum(self.degrees, 1)[:, None, None]
        return inverses

    @cached_property
    def undrawn(self) -> Matrices:
        """I - ridge F^-1: so much of theta a fit with a ridge aims at, shape (M, p, p)."""
        held: Matrices = (-self.ridge * self.records)[:, None, None] * self.inverses
        diagonal = np.arange(self.means.shape[1])
        held[:, diagonal, diagonal] += 1
        return held

    @cached_property
    def seen(self) -> Matrix:
        """Means without what the ridges draw to their centres, shape (M, p)."""
        if self.centres is None or not self.ridge:
            return self.means
        seen: Matrix = self.means - self.centres
        seen += np.einsum("mij,mj->mi", self.undrawn, self.centres)
        return seen


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


def step(sites: Copies, at: Assembled, weights: Vector | None = None) -> Assembled:
    """Return one round: all sites' informations together, then the coefficients.

    weights: Of the sites, in [0, 1].
    """
    size, many = len(at.theta), np.ones(len(sites.records)) if weights is None else weights
    pull = many * sites.shares
    away: Matrix = (sites.undrawn.reshape(-1, size) @ at.theta).reshape(-1, size) - sites.seen
    away *= np.sqrt(sites.shares)[:, None]
    spread = sites.spreads + np.linalg.inv(at.information + sites.ridge * np.eye(size))
    spread += away[:, :, None] * away[:, None, :]
    each = np.asarray(np.linalg.inv(spread), dtype=np.float64)
    each *= sites.trust[:, None, None]
    records = float(many @ sites.records)
    information = _total(many, each) - sites.ridge * records * np.eye(size)
    side = _side_by_side(pull, each)
    whole: Matrix = side @ sites.undrawn.reshape(-1, size)
    score: Vector = side @ sites.seen.ravel()
    theta = np.asarray(np.linalg.solve(whole, score), dtype=np.float64)
    moved = theta - at.theta
    length = math.sqrt(max(0.0, float(moved @ whole @ moved)))
    return Assembled(theta, information / (records + size + 1), whole, each, at.rounds + 1, length)


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


def covariance(
    sites: Copies, found: Assembled, weights: Vector | None = None, repeated: Vector | float = 1.0
) -> tuple[Matrix, Matrix]:
    """Return A^-1 (sum c^2 D Var(mean) D) A^-1, and the noise's part of it (Theorem 2).

    The inverse informations in it come from the scatters, which need K > p + 1 copies.

    repeated: Sum of squared weights over that of the weights of a site's windows, shape (M,).
    """
    many = np.ones(len(sites.records)) if weights is None else weights
    each, inverses = found.each, sites.inverses
    sampled, noised = inverses, sites.noise[:, None, None] * inverses
    diagonal = np.arange(len(found.theta))
    noised[:, diagonal, diagonal] += np.reshape(sites.rounding, (-1, 1))
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
        noised += unsure / sites.degrees[:, None, None]
    side = _side_by_side(many**2 * sites.shares**2 * repeated, each)
    size = len(found.theta)
    sampling, noise = (side @ np.matmul(part, each).reshape(-1, size) for part in (sampled, noised))
    inverse = np.linalg.inv(found.whole)
    return inverse @ (sampling + noise) @ inverse.T, inverse @ noise @ inverse.T


def _side_by_side(weights: Vector, matrices: Matrices) -> Matrix:
    """Return weighted symmetric matrices in a row, shape (p, M p): times others, it is a sum."""
    side: Matrices = weights[:, None, None] * matrices
    return side.transpose(1, 0, 2).reshape(matrices.shape[1], -1)


def _total(weights: Vector, matrices: Matrices) -> Matrix:
    """Return the weighted sum of matrices, shape (p, p)."""
    size = matrices.shape[1]
    total: Matrix = (weights @ matrices.reshape(len(weights), -1)).reshape(size, size)
    return total


@dataclass(frozen=True, slots=True)
class Drawn:
    """Which models the ridges of fits draw to: those of each site, epoch and bucket, in k rows.

    site: Place of their site, shape (k,).
    mean: Their mean, shape (k, d).
    scatter: Mean of |t - mean|^2, >= 0, shape (k,).
    windows: Sums of the weights of the windows, shape (k,).
    """

    site: Integers
    mean: Matrix
    scatter: Vector
    windows: Vector


@dataclass(frozen=True, slots=True)
class Sent:
    """What the sites in some buckets sent, windows of one site together.

    names: Digests of the clients' ids, sorted.
    windows, squared: Sums of the weights of their windows, and of the weights' squares, (M,).
    drawn: Which models the fits of their windows were drawn to; None: all to 0.
    """

    names: list[str]
    copies: Copies
    windows: Vector
    squared: Vector
    drawn: Drawn | None


def sent_of(task: CopiesTask, parts: Weighed, kept: Collection[int]) -> Sent:
    """Return the sites of some buckets with their weights: their releases in the epochs `kept`."""
    parts = [(weight, state) for weight, state in parts if weight > 0]
    names, which, weights, _, rows = gathered(parts, kept)
    size, shape = task.size, parts[0][1].shape
    sums, squared = np.zeros((len(names), shape.width)), np.zeros(len(names))
    np.add.at(sums, which, weights[:, None] * rows)
    np.add.at(squared, which, weights**2 * rows[:, RELEASES])
    mean, scatter = task.layout.later
    windows = sums[:, RELEASES]
    packed = np.ldexp(sums[:, shape.curvature], scatter.exponent)
    means = np.ldexp(sums[:, FIRST : FIRST + size], mean.exponent) / windows[:, None]
    centres, drawn = None, None
    if task.moving:
        points = sums[:, shape.points : shape.points + size] / windows[:, None]
        centres = np.ldexp(points, COEFFICIENT_EXPONENT)
        means = means + centres
        drawn = Drawn(which, *shape.points_of(rows), weights * rows[:, RELEASES])
    ones = np.ones(len(names))
    copies = Copies(
        records=windows * task.slots,
        degrees=windows * (task.copies - 1),
        scales=windows * task.scale,
        noise=ones * task.scale / task.copies,
        means=means,
        scatters=packed[:, packed_indices(size)],
        ridge=task.ridge / task.slots,
        centres=centres,
        rounding=np.ldexp(1.0, 2 * mean.exponent) / 12 / windows,
    )
    return Sent(names, copies, windows, squared, drawn)
