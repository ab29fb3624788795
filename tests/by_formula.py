"""The private estimate of `renewable`, release by release in float64, beside its integer sums."""

from __future__ import annotations

import math

import numpy as np

from pipeline.linalg import unpack_upper
from pipeline.methods.renewable.private_state import PrivateBatch, epochs_by_version
from pipeline.release.task import Task

#: Releases of one bucket with their weight, and what is computed of them.
Weighed = list[tuple[float, PrivateBatch]]
Found = dict[str, np.ndarray]


def by_formula(task: Task, batches: Weighed) -> Found:
    """The estimate from as many of the newest epochs as make the error smaller.

    Where the whole of one more makes it larger, a half, a quarter or an eighth of its weight may
    not.
    """
    epochs = set(np.concatenate([epochs_by_version(b.versions) for _, b in batches]).tolist())
    three = over_last(task, batches, min(3, len(epochs)))
    spread, best, least = three["meat"] / three["squares"], three, math.inf
    for number in range(1, len(epochs) + 1):
        whole = over_last(task, batches, number)
        if error(whole, spread) < least:
            best, least = whole, error(whole, spread)
            continue
        for share in (0.5, 0.25, 0.125):
            part = over_last(task, batches, number, share)
            if error(part, spread) < least:
                best, least = part, error(part, spread)
        break
    return best


def error(one: Found, spread: np.ndarray) -> float:
    """The mean square of predictors by chance, and four times that of what is left out."""
    meat, curvature = one["squares"] * spread + one["turned"], one["curvature"]
    chance = np.trace(one["inverse"] @ meat @ one["inverse"] @ curvature) / curvature[0, 0]
    return float(chance + 4 * (one["bent"] + one["mixed"]) ** 2)


def over_last(task: Task, batches: Weighed, number: int, share: float = 1.0) -> Found:
    """The weighed estimate over some last epochs, the oldest of them with a share of its weight."""
    d, n = task.size, task.slots
    part = task.update_channels.curvature
    assert part is not None
    w = np.concatenate([np.full(len(b.versions), weight) for weight, b in batches])
    versions = np.concatenate([b.versions for _, b in batches])
    packed = np.concatenate([b.curvature for _, b in batches]) * part.unit
    epochs = epochs_by_version(versions)
    last = sorted(set(epochs.tolist()))[-number:]
    w = np.where(epochs == last[0], share * w, w)
    chosen = np.isin(epochs, last)
    w = w[chosen]
    total = unpack_upper(w @ packed[chosen], d) / (w.sum() * n)
    s = math.sqrt(d * np.sum(w**2)) * part.standard_deviation / (w.sum() * n)
    g = np.concatenate([b.gradient for _, b in batches])[chosen] * (
        task.update_channels.gradient.unit
    )
    t = np.concatenate([b.expansion for _, b in batches])[chosen] / 4096
    penalty = task.study.estimator.ridge * np.diag([0.0] + [1.0] * (d - 1))
    mean, score = w @ t / w.sum(), w @ g / (w.sum() * n)
    values, vectors = np.linalg.eigh(total)
    curvature = (vectors * np.maximum(shrunk(values, s), 0)) @ vectors.T
    values, vectors = np.linalg.eigh(curvature + penalty)
    bread = (vectors * np.maximum(values, s / 2)) @ vectors.T
    # the curvature that a score follows is halfway between that of its release and the mean one
    own, off = np.array([unpack_upper(row, d) / n for row in packed[chosen]]), t - mean
    product = np.array([h @ o for h, o in zip(own, off, strict=True)])
    unlike = product.T @ w / w.sum() / 2

    def noisy(spread: np.ndarray) -> np.ndarray:
        """The variance of E x: the noise E has s^2 / d on its diagonal, and half of it beside."""
        return s**2 / d / 2 * (np.trace(spread) * np.eye(d) + spread)

    # of what half of C moves, the share that is not noise is taken off
    chance = noisy((off.T * w**2) @ off / np.sum(w**2) / 4)
    shift = np.linalg.solve(bread, unlike)
    by_chance = np.linalg.solve(bread, np.linalg.solve(bread, chance).T)
    moved = shift @ curvature @ shift
    beyond = max(moved - np.trace(by_chance @ curvature), 0.0)
    known = beyond / moved
    step = np.linalg.solve(bread, score + penalty @ mean - known * unlike)
    turned = (noisy(np.outer(step, step)) + known * chance) * (w.sum() * n) ** 2
    residual = g - n * (score - curvature @ mean + t @ curvature)
    count = w.sum() ** 2 / np.sum(w**2)
    meat = (residual.T * w**2) @ residual * count / max(count - 4, 1)
    inverse = np.linalg.inv(w.sum() * n * bread)
    deviation = task.update_channels.gradient.standard_deviation
    return {
        "theta": mean - step,
        "covariance": inverse @ (meat + turned) @ inverse,
        "privacy": inverse @ (np.sum(w**2) * deviation**2 * np.eye(d) + turned) @ inverse,
        "meat": meat,
        "squares": np.sum(w**2),
        "turned": turned,
        "inverse": inverse,
        "curvature": curvature,
        "mixed": np.sqrt(beyond / curvature[0, 0]),
        "bent": step @ curvature @ step / curvature[0, 0] / 2,
        "records": np.array(n * count),
    }


def shrunk(values: np.ndarray, size: float) -> np.ndarray:
    """Eigenvalues less s^2 times the real part of their own resolvent's trace, and in order.

    The nearest values in ascending order are the largest of the least means of runs that hold each.
    """
    d = len(values)
    resolvent = 1 / (values[:, None] - values - 1j * size / math.sqrt(d))
    moved = values - size**2 * resolvent.mean(axis=1).real
    return np.array([
        max(min(moved[a : b + 1].mean() for b in range(i, d)) for a in range(i + 1))
        for i in range(d)
    ])  # fmt: skip
