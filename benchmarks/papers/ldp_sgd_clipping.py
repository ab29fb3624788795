"""Figure 1 of paper ldp-sgd: clipped gradients go elsewhere, weighted ones do not.

Logistic records, coefficients (0.5, 1, -1, 0.5). A gradient is bounded by Mallows weights, which
depend on the features alone, or by clipping its norm at a threshold. Where the mean bounded
gradient vanishes is where a path ends up: for weights that is the truth, for clipping it is not.
Paths have steps i^-0.501 and averages after 1000 records; noise of 2 B / mu for weights and of
2 threshold / mu for clipping. Source: ldp-sgd, Figure 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import root

from benchmarks.papers.ldp_sgd_models import LOGISTIC, SIZE, Array, weights_of
from pipeline.methods.ldp_sgd.step_rule import StepRule
from pipeline.types import Vector

THRESHOLDS = (0.15, 0.2, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4142, 2.0, 2.8284)
CLIP, MU, CHUNK, BURN_IN = 0.5, 2.0, 500, 1000
#: Whether gradients are clipped, and whether they are noised.
KINDS = {
    "weights": (False, False), "clipped": (True, False),
    "weights, mu = 2": (False, True), "clipped, mu = 2": (True, True),
}  # fmt: skip
POPULATION = 200_000


def limits() -> dict[str, list[Any]]:
    """Return where the mean clipped gradient vanishes, for each threshold, and how far off."""
    x, y = LOGISTIC.draw(np.random.default_rng(1), (POPULATION,))
    # every record with both responses, weighted by their chances: no error of drawn responses
    truth = LOGISTIC.truth
    chance = 1 / (1 + np.exp(-x @ truth))
    lengths = np.sqrt(np.vecdot(x, x))

    def mean_gradient(at: Vector, threshold: float) -> Vector:
        total = np.zeros(SIZE)
        for side, share in ((1.0, chance), (-1.0, 1 - chance)):
            slope = LOGISTIC.loss.slope(x @ at, np.full_like(y, side))
            scale = np.minimum(1.0, threshold / np.maximum(lengths * np.abs(slope), 1e-12))
            total += x.T @ (slope * scale * share)
        return total / POPULATION

    found = []
    start = truth
    for threshold in reversed(THRESHOLDS):
        solution = root(mean_gradient, start, args=(threshold,), tol=1e-8)
        start = solution.x
        found.append(start)
    found.reverse()
    return {
        "thresholds": list(THRESHOLDS),
        "coefficients": [coefficients.tolist() for coefficients in found],
        "bias": [float(np.linalg.norm(coefficients - truth)) for coefficients in found],
    }


def errors(ends: tuple[int, ...], count: int, seed: int) -> dict[str, list[list[float]]]:
    """Return for each kind the norm of the mean error and its Monte Carlo error, at every end."""
    rng, rule, truth = np.random.default_rng(seed), StepRule(), LOGISTIC.truth
    clipped, noised = np.array(list(KINDS.values()))[:, :, None].transpose(1, 0, 2)
    sensitivity = np.where(clipped, 2 * CLIP, 2 * LOGISTIC.slope)
    noise = (noised * sensitivity / MU)[:, :, None]
    theta, total = np.zeros((len(KINDS), count, SIZE)), np.zeros((len(KINDS), count, SIZE))
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for start in range(0, max(ends), CHUNK):
        x, y = LOGISTIC.draw(rng, (CHUNK, count))
        weights, lengths = weights_of(x), np.sqrt(np.vecdot(x, x))
        steps = rule.steps(start + 1, CHUNK)
        for t in range(CHUNK):
            slope = LOGISTIC.loss.slope(np.vecdot(theta, x[t]), y[t])
            cut = np.minimum(1.0, CLIP / (lengths[t] * np.abs(slope)))
            slope = slope * np.where(clipped, cut, weights[t])
            move = slope[:, :, None] * x[t] + noise * rng.standard_normal(theta.shape)
            theta = theta - steps[t] * move
            if start >= BURN_IN:
                total += theta
        if start + CHUNK in ends:
            for kind, mean in zip(KINDS, total / (start + CHUNK - BURN_IN), strict=True):
                found[kind].append(norm_of_mean(mean - truth))
    return found


def norm_of_mean(off: Array) -> list[float]:
    """Return the norm of the mean of errors (replications, d), and its Monte Carlo error."""
    mean = off.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    along = off @ mean / norm
    return [norm, float(along.std(ddof=1)) / len(off) ** 0.5]
