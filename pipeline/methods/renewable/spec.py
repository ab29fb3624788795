"""What a renewable study's file settles: shares of its budget, and whether noise remembers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.losses import Loss, joint_bounds
from pipeline.privacy.sensitivity import Order
from pipeline.study.model import Split, Study
from pipeline.types import Vector

#: Losses whose curvature jumps.
JUMPS = ("gdwd",)
#: Shares of the gradient, and how much of what middle and counts leave it may have at most: all
#: where full slopes have no curvature, else 70 to 30.
GRADIENT, MOST = 0.63, 0.7
GRADIENT_LOGISTIC, MOST_LOGISTIC = 0.9, 1.0
MIDDLE = 0.05
#: Shares are found and written to so many digits. What they may exceed the budget by is taken off
#: all of them where noise is made.
DIGITS, EXCESS = 4, 1e-5
#: What floats may add to squares of slopes and curvatures that records have, as a share.
FLOATS = 2.0**-26


def split_of(study: Study, loss: Loss) -> Split:
    """Return the shares of the budget that the parts of a noised release have.

    Where curvature is given and middle is not, no middle is released, and shares are scaled by
    their sum. Else what one record can use up together is the whole budget, and the curvature has
    as much as that allows. A function of the study file alone.

    Raises PrivacyError if a record could use up more, naming the key, what is allowed and an
    example.
    """
    given = study.privacy.split or Split()
    if given.curvature is not None and given.middle is None:
        return given.filled()
    counted = loss.responses == "class" or study.estimator.noise_scale is None
    middle = MIDDLE if given.middle is None else given.middle
    counts = given.counts if counted else 0.0
    logistic = study.estimator.loss == "logistic"
    usual, most = (GRADIENT_LOGISTIC, MOST_LOGISTIC) if logistic else (GRADIENT, MOST)
    usual = round(min(usual, most * (1 - middle - counts)), DIGITS)
    gradient = usual if given.gradient is None else given.gradient
    order: Order = 1 if study.privacy.mechanism == "discrete-laplace" else 2
    bounds = joint_bounds(loss)
    others = {"gradient": gradient, "middle": middle, "counts": counts}
    left = 1 + EXCESS - spent_by_records(others, bounds, order)
    largest = round(float(np.min(left / np.maximum(bounds[1], 1e-9) ** order)), DIGITS)
    written = f"gradient = {gradient:g}, middle = {middle:g}, counts = {counts:g}"
    if gradient <= 0 or largest <= 0:
        raise PrivacyError(
            f"privacy.split.gradient: {written} are shares of the budget that one record can use "
            "up, and leave nothing for the curvature; give less, for example split = "
            "{ gradient = 0.6, counts = 0.05 }"
        )
    if given.curvature is not None and given.curvature > largest + 10.0**-DIGITS:
        raise PrivacyError(
            f"privacy.split.curvature: with {written} no more than {largest:g} is allowed, or one "
            "record could use up more than the budget; leave it out, or write for example "
            f"split = {{ {written}, curvature = {largest:g} }}"
        )
    curvature = largest if given.curvature is None else given.curvature
    return Split(gradient=gradient, curvature=curvature, middle=middle, counts=counts)


def spent_by_records(
    shares: Mapping[str, float],
    joint_bounds: tuple[Vector, Vector],
    order: Order,
    rounding: Mapping[str, float] | None = None,
) -> Vector:
    """Return what a record can use up of a release's budget, as shares of it, shape (k,).

    The parts of a release are one vector, whose noise has the scale D / (mu sqrt(share)) in each
    part, D the part's own sensitivity. A record of slope s and curvature q, in shares of their
    largest, moves gradient, curvature, middle and counts by no more than s, q, s^2 and 1 times D.
    So it costs no more than mu^2 times

        gradient s^2 + curvature q^2 + middle s^4 + counts,

    which stays below the sum of the shares where s and q are not largest together. A replaced
    record costs no more than the mean of this over both, as |g - g'|^2 <= 2 (|g|^2 + |g'|^2) where
    D is 2 |g|, and as |H - H'|^2 <= |H|^2 + |H'|^2 for positive semidefinite matrices where it is
    sqrt 2 |H|. Weights below the largest, and shorter records, move all parts less. Rounding moves
    a part by r D more: (s + r)^2 <= (1 + r) (s^2 + r), of which a mean is a mean as well. With pure
    epsilon all of this holds without the squares.

    shares: By the names of the parts that are released: gradient, curvature, middle, counts.
    joint_bounds: As a loss gives them: s and q on pieces that cover all records, (k,) each.
    rounding: r of each part by its name; by default 0.
    """
    slope, curvature = (bound**order for bound in joint_bounds)
    moved = {"gradient": slope, "curvature": curvature, "middle": slope**2}
    spent = np.zeros_like(slope)
    for name, share in shares.items():
        more = (rounding or {}).get(name, 0.0)
        spent += share / (1.0 + more) * (moved.get(name, 1.0) + more)
    return spent * (1 + FLOATS)


def remembers(study: Study) -> bool:
    """Whether noise can depend on releases before: Gaussian noise of sums that are all kept."""
    gaussian = study.privacy.mechanism in ("discrete-gaussian", "insecure-simulation")
    return gaussian and study.estimator.forgetting is None
