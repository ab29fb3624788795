"""Copies of fits in a simulation: their law, and what the EM of the product takes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.methods.noisy_mle.infembler import Assembled, Central, Copies, start, step
from pipeline.types import Matrix, Vector

#: Rounds of an assembly at most.
MOST = 500


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
