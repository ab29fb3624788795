"""What every loss must keep: the suite runs over all families, and over a toy in its test.

Noise is scaled to a loss's public bounds: one that is too small breaks the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipeline.losses import Bends, Loss, Regression

#: The largest count that responses are drawn to.
LARGEST = 12.0


def responses(loss: Loss, rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw encoded responses of the family's kind, the ends of their range among them."""
    if loss.responses == "class":
        return rng.choice([-1.0, 1.0], n)
    if loss.responses == "number":
        return np.clip(rng.normal(0, 0.8, n), -1, 1)
    most = min(loss.slope_bound, LARGEST)
    return rng.integers(0, int(most) + 1, n).astype(float)


def drawn(loss: Loss, n: int = 20_000, width: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(0.5, width, n), responses(loss, rng, n)


def the_slope_is_the_derivative_of_the_value(loss: Loss) -> None:
    u, y = drawn(loss)
    h = 1e-6
    numeric = (loss.value(u + h, y) - loss.value(u - h, y)) / (2 * h)
    # a kink of the slope within h, and the rounding of the difference
    scale = 1 + np.abs(loss.value(u, y))
    kink = h * loss.sharp_curvature(u + h, y) + h * loss.sharp_curvature(u - h, y)
    assert np.all(np.abs(loss.slope(u, y) - numeric) <= 1e-8 * scale + kink + 5e-5)


def the_sharp_curvature_is_the_derivative_of_the_slope_but_for_jumps(loss: Loss) -> None:
    u, y = drawn(loss)
    h = 1e-6
    numeric = (loss.slope(u + h, y) - loss.slope(u - h, y)) / (2 * h)
    sharp = loss.sharp_curvature(u, y)
    # the slope may bend at a point or two: a handful of draws fall within h of one
    off = np.abs(sharp - numeric) > 1e-5 * (1 + sharp)
    assert np.count_nonzero(off) <= 3


def the_value_is_convex_in_the_predictor(loss: Loss) -> None:
    u = np.linspace(-6, 6, 4001)
    for y in np.unique(responses(loss, np.random.default_rng(0), 40)):
        value = loss.value(u, np.full_like(u, y))
        rounding = 1e-13 * np.max(np.abs(value))
        assert np.all(np.diff(value, 2) >= -4 * rounding)


def no_slope_or_curvature_passes_its_public_bound(loss: Loss) -> None:
    for width in (0.5, 3.0, 1e3, 1e150):
        u, y = drawn(loss, width=width)
        assert np.all(np.abs(loss.slope(u, y)) <= loss.slope_bound)
        for curvature in (loss.curvature(u, y), loss.sharp_curvature(u, y)):
            assert np.all(curvature >= 0)
        assert np.max(loss.curvature(u, y)) <= loss.curvature_bound * (1 + 1e-12)
        assert np.max(loss.sharp_curvature(u, y)) <= loss.sharp_curvature_bound * (1 + 1e-12)


def no_record_is_outside_of_the_joint_bounds(loss: Loss) -> None:
    """Of each record there is a piece whose bounds of slope and curvature both hold."""
    if not isinstance(loss, Bends):
        return
    most, curved = loss.joint_bounds()
    assert most.shape == curved.shape
    assert most.min() >= 0
    assert curved.min() >= 0
    order = np.argsort(most)[::-1]
    # the largest curvature that goes with a slope, from the largest slope on
    beside = np.maximum.accumulate(curved[order])
    knee = getattr(loss, "knee", 0.0)
    width = getattr(loss, "top", 1.0) - knee
    for scale in (1e-6, 0.1, 1.0, 3.0, 1e3, 1e150):
        u, y = drawn(loss, width=scale)
        u = np.concatenate([u, y * (knee + width * np.random.default_rng(4).normal(size=len(y)))])
        y = np.concatenate([y, y])
        slope = np.abs(loss.slope(u, y)) / loss.slope_bound
        curvature = loss.curvature(u, y) / loss.curvature_bound
        # how many pieces have a slope no smaller, up to the rounding of floats
        count = np.searchsorted(-most[order], -slope * (1 - 1e-9), side="right")
        assert count.min() > 0
        assert np.all(curvature * (1 - 1e-9) <= beside[count - 1])


def a_loss_leaves_nothing_out_of_a_linearised_score_only_if_its_curvature_is_constant(
    loss: Loss,
) -> None:
    u, y = drawn(loss)
    constant = bool(np.ptp(loss.sharp_curvature(u, y)) == 0)
    assert (loss.remainder == 0) == constant


def the_bound_of_slopes_at_the_start_holds_and_is_reached(loss: Loss) -> None:
    y = responses(loss, np.random.default_rng(3), 40_000)
    if isinstance(loss, Regression):
        slopes = loss.start_slope(np.append(y, [0.0 if loss.responses == "count" else -1.0]))
    else:
        slopes = loss.slope(np.full_like(y, loss.start_intercept), y)
    largest = np.max(np.abs(slopes))
    assert 0.99 * loss.start_slope_bound < largest <= loss.start_slope_bound


def the_public_start_is_finite_and_its_curvature_positive(loss: Loss) -> None:
    assert math.isfinite(loss.start_intercept)
    assert 0 < loss.start_curvature < math.inf


def classes_are_mirror_images(loss: Loss) -> None:
    """A loss of two classes does not know which of them is called positive."""
    if loss.responses != "class":
        return
    u, y = drawn(loss)
    for number in (loss.value, loss.curvature, loss.sharp_curvature):
        assert np.allclose(number(u, y), number(-u, -y), rtol=1e-9, atol=1e-12)
    assert np.allclose(loss.slope(u, y), -loss.slope(-u, -y), rtol=1e-9, atol=1e-12)


#: Every check.
CHECKS: tuple[Callable[[Loss], None], ...] = (
    the_slope_is_the_derivative_of_the_value,
    the_sharp_curvature_is_the_derivative_of_the_slope_but_for_jumps,
    the_value_is_convex_in_the_predictor,
    no_slope_or_curvature_passes_its_public_bound,
    no_record_is_outside_of_the_joint_bounds,
    a_loss_leaves_nothing_out_of_a_linearised_score_only_if_its_curvature_is_constant,
    the_bound_of_slopes_at_the_start_holds_and_is_reached,
    the_public_start_is_finite_and_its_curvature_positive,
    classes_are_mirror_images,
)
