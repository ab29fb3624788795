"""Copies of fits in a simulation: their law, and what the EM of the product takes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pipeline.linalg import floor_eigenvalues
from pipeline.methods.noisy_copies import infembler
from pipeline.methods.noisy_copies.infembler import Assembled, Copies
from pipeline.types import Matrix, Vector

#: Rounds of an assembly at most.
MOST = 500


@dataclass(frozen=True, slots=True)
class Central:
    """Records that the centre holds itself: how many, their estimate and information."""

    records: float
    theta: Vector
    information: Matrix


def start(sites: Copies, central: Central | None = None) -> Assembled:
    """Return where the EM begins: the centre's own information, else that of pooled scatters."""
    size, total = sites.means.shape[1], float(sites.records.sum())
    if central is None:
        each = sites.records / (sites.scales * np.maximum(sites.degrees, 1))
        spread = np.einsum("m,mij->ij", each, sites.scatters)
        information = np.linalg.inv(spread / total) / np.mean(sites.records)
        information = floor_eigenvalues(information - sites.ridge * np.eye(size), 0.0).matrix
        theta = sites.records @ sites.means / total
    else:
        whole = central.records + total
        theta = (central.records * central.theta + sites.records @ sites.means) / whole
        information = central.information / central.records
    return Assembled(theta, information, np.eye(size), np.zeros_like(sites.scatters))


def step(sites: Copies, central: Central | None, at: Assembled) -> Assembled:
    """Return one round of Algorithm 1: that of the product, and what the centre has."""
    found = infembler.step(sites, at)
    if central is None:
        return found
    counted = float(sites.records.sum()) + len(at.theta) + 1
    information = counted * found.information + central.information
    whole = found.whole + central.information
    score = found.whole @ found.theta + central.information @ central.theta
    theta = np.linalg.solve(whole, score)
    moved = theta - at.theta
    return replace(
        found,
        theta=theta,
        information=information / (counted + central.records),
        whole=whole,
        step=math.sqrt(max(0.0, float(moved @ whole @ moved))),
    )


def covariance(sites: Copies, central: Central, found: Assembled) -> Matrix:
    """Return the sandwich A^-1 (F_1 + sum c^2 F Var(mean) F) A^-1."""
    variance, inverse = infembler.covariance(sites, found)[0], np.linalg.inv(found.whole)
    return variance + inverse @ central.information @ inverse.T


def sent(
    records: Vector, copies: Vector, scales: Vector, means: Matrix, scatters: Matrix
) -> Copies:
    """Return what sites sent, of n, K and psi of each, shape (M,)."""
    return Copies(records, copies - 1, scales, scales / copies, means, scatters)


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


def assemble(
    sites: Copies,
    central: Central | None = None,
    *,
    at: Assembled | None = None,
    tolerance: float = 1e-3,
) -> Assembled:
    """Return the estimate of all sites: rounds until a step is small in standard errors.

    at: A warm start, such as the estimate before the last sites came.
    """
    found = start(sites, central) if at is None else replace(at, rounds=0)
    while found.rounds < MOST:
        before, found = found, step(sites, central, found)
        changed = np.abs(found.information - before.information).max()
        if found.step < tolerance and changed < tolerance * np.abs(found.information).max():
            break
    return found
