"""The private estimate of `renewable`, release by release in float64, beside its integer sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.linalg import unpack_upper
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.state import PrivateBatch

#: Releases of one bucket with their weight, and what is computed of them.
Weighed = list[tuple[float, PrivateBatch]]
Found = dict[str, Any]
#: c_j as fractions, not as the program has them.
C = np.array([1, 1 / 2, 3 / 8, 5 / 16, 35 / 128, 63 / 256, 231 / 1024, 429 / 2048])


def covariance_of_chain(count: int) -> np.ndarray:
    """Covariances of nu_1 to nu_count where the scale of z is |c|: one release alone has |c|^2."""
    toeplitz = sum(c * np.eye(count, k=-j) for j, c in enumerate(C))
    inverse = np.linalg.inv(toeplitz)
    return (C @ C) * inverse @ inverse.T


def by_formula(task: RenewableTask, batches: Weighed, missing: int = 0) -> Found:
    """The estimate from as many of the newest epochs as make the error smaller."""
    epochs = sorted(set(np.concatenate([b.epochs for _, b in batches]).tolist()), reverse=True)
    best: Found = {}
    for oldest in epochs:
        found = since(task, batches, oldest, missing)
        better = not best or (
            found["error"] <= best["error"] and (best["moving"] or not found["moving"])
        )
        if not better:
            break
        best = found
    return best


def since(task: RenewableTask, batches: Weighed, oldest: int, missing: int = 0) -> Found:
    """The estimate from the releases of some newest epochs, by formulas of the method's page."""
    d = task.size
    w = np.concatenate([np.full(len(b.epochs), weight) for weight, b in batches])
    parts = {
        name: np.concatenate([getattr(b, name) for _, b in batches])
        for name in (
            "epochs", "gradient", "expansion", "curvature", "middle", "blocks", "numbers", "groups"
        )
    }  # fmt: skip
    keep = parts["epochs"] >= oldest
    w, parts = w[keep], {name: part[keep] for name, part in parts.items()}
    channels = task.update_channels
    n = parts["blocks"] * float(task.slots)
    g = parts["gradient"] * channels.gradient.unit
    t = parts["expansion"] / 4096
    assert channels.curvature is not None
    h = np.array([unpack_upper(row, d) for row in parts["curvature"] * channels.curvature.unit])
    total = float(w @ n)
    # each group is a client with a chain of its own, or noise is independent
    apart = w**2
    noise = float(apart.sum())
    if task.remembers:
        noise = 0.0
        for group in np.unique(parts["groups"]):
            own = np.sort(parts["numbers"][parts["groups"] == group]) - 1
            covariance = covariance_of_chain(int(own.max()) + 1)
            noise += covariance[np.ix_(own, own)].sum()
        covariance = covariance_of_chain(int(parts["numbers"].max()))
        apart = np.diag(covariance)[parts["numbers"] - 1]
        # more than a run of four can hide, which is what most can
        noise += missing * 2.1 * np.diag(covariance_of_chain(256))[-1]
    sigma_g, sigma_h = channels.gradient.standard_deviation, channels.curvature.standard_deviation
    s = sigma_h * np.sqrt(d * noise) / total
    mean = (w * n) @ t / total
    curved = np.einsum("i,ijk->jk", w, h) / total
    penalty = task.study.estimator.ridge * np.diag([0.0] + [1.0] * (d - 1))
    values, vectors = np.linalg.eigh(curved + penalty)
    weak = np.minimum(np.maximum(1 - values / (1.75 * s), 0), 1)
    ridge = s * weak
    bread = np.maximum(np.maximum(values, 0) + ridge, s / 2)
    inverse = np.linalg.inv(vectors @ np.diag(bread) @ vectors.T)
    own_values, own_vectors = np.linalg.eigh(curved)
    curvature = (own_vectors * np.maximum(own_values, 0)) @ own_vectors.T
    score = w @ g / total + penalty @ mean
    whole = sum(
        v * (v @ score + r * (v @ mean)) / m
        for v, r, m in zip(vectors.T, ridge, bread, strict=True)
    )
    step = whole * min(1, 2 / (task.norm_bound * np.linalg.norm(whole)))
    theta = mean - step
    turned = s**2 / (2 * d) * (step @ step * np.eye(d) + np.outer(step, step))
    known = sigma_g**2 * noise / total**2 * np.eye(d) + turned
    share = ridge / np.maximum(np.maximum(values, 0) + ridge, 1e-12)
    scale = (
        1.0 if task.loss.name in ("logistic", "poisson") else spread_of(task, parts, w, curvature)
    )
    hidden = np.zeros(d)
    usual = np.mean(
        [(v @ theta) ** 2 for v, x in zip(vectors.T, weak, strict=True) if x < 0.5] or [1]
    )
    for v, x, f in zip(vectors.T, weak, share, strict=True):
        drawn = (f / max(1 - f, 0.1) * (v @ theta)) ** 2 if f < 0.7 else 0.0
        hidden += v**2 * max(x**2 * usual, drawn)
    rough = np.diag(inverse @ (known + scale * curvature / total) @ inverse)
    to = theta if task.loss.name == "gdwd" else theta - step
    distance = np.einsum("i,ij,jk,ik->", w * n, t - to, curvature, t - to) / total / curvature[0, 0]
    bent = 0.5 * rate(task, curvature, theta) * distance
    found = {
        "theta": theta, "hidden": hidden, "unknown": hidden > 0.5 * rough, "bent": bent,
        "error": np.trace(inverse @ (scale * curvature / total + known) @ inverse @ curvature)
        / curvature[0, 0] + 4 * bent**2,
        "privacy": inverse @ known @ inverse + np.diag(hidden),
        "records": np.array(total**2 / (w**2 @ n)), "noise": noise,
        "releases": w.sum() ** 2 / (w**2).sum(),
    }  # fmt: skip
    y = g - n[:, None] * (t @ curvature)
    between, lost, by_noise = spread_between(w, n, y, parts["groups"], apart, noise, sigma_g)
    if channels.middle is None:
        positive = np.linalg.eigh(between)
        meat = (positive[1] * np.maximum(positive[0], 0)) @ positive[1].T / total
        found["effect"] = None
    else:
        b = np.array([unpack_upper(row, d) for row in parts["middle"] * channels.middle.unit])
        pulled = penalty @ theta
        middle = np.einsum("i,ijk->jk", w, b) / total - np.outer(pulled, pulled)
        q = (w**2 @ n**2) / total**2
        found["effect"] = effect = design_effect(
            inverse, between, middle, scale * curvature, total, (lost, q), by_noise,
            channels.middle.standard_deviation * np.sqrt(noise) / total,
        )  # fmt: skip
        meat = effect * middle / total
    more = ((found["effect"] or 1) - 1) * np.diag(inverse @ (scale * curvature / total) @ inverse)
    found["moving"] = bool(np.any((whole**2 > 25 * (rough + more)) & (hidden <= 0.5 * rough)))
    found["covariance"] = inverse @ (meat + known) @ inverse + np.diag(hidden)
    return found


def spread_of(task: RenewableTask, parts: Found, w: np.ndarray, curvature: np.ndarray) -> float:
    """What the middle is about, as a multiple of the curvature, where it is released."""
    middle = task.update_channels.middle
    if middle is None:
        return 1.0
    total = w @ parts["blocks"] * task.slots
    found = w @ parts["middle"][:, 0] * middle.unit / total / curvature[0, 0]
    most = (task.largest_weight * task.loss.slope_bound) ** 2 / curvature[0, 0]
    return float(min(max(found, 1e-3 * most), most))


def spread_between(
    w: np.ndarray, n: np.ndarray, y: np.ndarray, groups: np.ndarray, apart: np.ndarray,
    noise: float, sigma: float,
) -> tuple[np.ndarray, float, float]:  # fmt: skip
    """The middle of one record by the differences between releases; what means take; the noise."""
    d, total = y.shape[1], w @ n
    count = w.sum() ** 2 / (w**2).sum()
    if count < 3 * (d + len(np.unique(groups))):
        groups = np.zeros_like(groups)
    spread, lost, per_mean = np.zeros((d, d)), 0.0, []
    for group in np.unique(groups):
        own = groups == group
        m = w[own] @ y[own] / (w[own] @ n[own])
        r = y[own] - n[own][:, None] * m
        spread += (r.T * w[own] ** 2) @ r
        lost += (w[own] ** 2 @ n[own] ** 2) / (w[own] @ n[own]) / total
        per_mean.append((w[own] ** 2 @ n[own] ** 2) / (w[own] @ n[own]) ** 2)
    all_noise = sigma**2 * apart.sum()
    taken = all_noise - sigma**2 * noise * np.mean(per_mean)
    return (spread - taken * np.eye(d)) / (1 - lost) / total, lost, all_noise


def design_effect(
    inverse: np.ndarray, between: np.ndarray, middle: np.ndarray, usual: np.ndarray, total: float,
    lost: tuple[float, float], noise: float, of_middle: float,
) -> float:  # fmt: skip
    """How many times the releases differ as the middle says; 1 where that may be chance."""

    def form(meat: np.ndarray) -> np.ndarray:
        return np.diag(inverse @ meat @ inverse)

    base = np.maximum(form(middle / total), 0.3 * form(usual / total))
    chance = base + 1.25 * form(noise / total**2 * np.eye(len(base)))
    chance *= np.sqrt(2 * lost[1] / max(1 - lost[0], lost[1]))
    # every entry of the middle has its own noise, its diagonal twice the variance of the rest
    of_middle = of_middle / total * (inverse**2).sum(axis=1)
    chance = np.sqrt(chance**2 + of_middle**2)
    # a sum of squares of correlated numbers has the square of their correlation
    joint = inverse @ (middle / total + noise / total**2 * np.eye(len(base))) @ inverse
    weight = (base / chance) ** 2
    variance = sum(
        weight[i] * weight[j] * chance[i] * chance[j] / base[i] / base[j]
        * joint[i, j] ** 2 / joint[i, i] / joint[j, j]
        for i in range(len(base)) for j in range(len(base))
    )  # fmt: skip
    ratio = weight @ (form(between / total) / base) / weight.sum()
    return float(ratio) if ratio > 1 + 2 * np.sqrt(variance) / weight.sum() else 1.0


def rate(task: RenewableTask, curvature: np.ndarray, theta: np.ndarray) -> float:
    """How fast the curvature changes where records lie, by a sum over a fine grid of predictors."""
    if task.loss.name != "logistic":
        return {"linear": 0.0}.get(task.loss.name, 1.0)
    middle = curvature[0] @ theta / curvature[0, 0]
    width = np.sqrt(max(theta @ curvature @ theta / curvature[0, 0] - middle**2, 0))
    z = np.linspace(-8, 8, 20001)
    density = np.exp(-(z**2) / 2)
    return float(np.sqrt(density @ np.tanh((middle + width * z) / 2) ** 2 / density.sum()))
