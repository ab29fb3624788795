"""What streams tell of their intervals: which cover the target, and how often over many streams."""

from __future__ import annotations

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.simulate.coverage import share_of
from pipeline.types import Vector

LEVEL, LEAST, MOST = 0.95, 0.925, 0.985
#: What a stream tells of one estimate: ready, covered, coefficients, standard errors, floored.
Seen = dict[str, object]


def told(estimate: Estimate, target: Vector) -> Seen:
    """Tell of one estimate."""
    ends, errors = estimate.intervals(LEVEL), estimate.standard_errors()
    ready = estimate.status == "ready" and ends is not None
    covered = None
    if ready and ends is not None:
        inside = (ends[0] <= target) & (target <= ends[1])
        covered = np.where(np.isnan(ends[0]), np.nan, inside)
    return {
        "ready": ready,
        "covered": covered,
        "coefficients": estimate.coefficients,
        "errors": errors[0] if ready and errors else None,
        "floored": estimate.floored,
    }


def summary_of(seen: list[Seen], target: Vector) -> dict[str, object]:
    """Sum up some streams; coverage is None where none was ready."""
    ready = [s for s in seen if s["ready"]]
    points = np.array([s["coefficients"] for s in seen])
    errors = np.linalg.norm(points - target, axis=1) / np.linalg.norm(target)
    found: dict[str, object] = {
        "streams": len(seen),
        "ready": len(ready) / len(seen),
        "floored": float(np.mean([s["floored"] for s in seen])),
        "relative_error": float(errors.mean()),
        "coverage": None, "error": None, "intercept": None, "given": None, "width": None,
        "verdict": "not ready",
    }  # fmt: skip
    if len(ready) < 2:
        return found
    covered = np.array([s["covered"] for s in ready])
    widths = np.nanmean(np.array([s["errors"] for s in ready]), axis=0)
    coverage, error = share_of(covered.astype(np.float64), LEVEL)
    spread = np.array([s["coefficients"] for s in ready]).std(axis=0, ddof=1)
    verdict = "within" if LEAST <= coverage <= MOST else "OUTSIDE"
    return {
        **found, "coverage": coverage, "error": error,
        "intercept": float(np.nanmean(covered[:, 0])),
        "given": float(np.mean(~np.isnan(covered))),
        "width": float(np.mean(widths / spread)), "verdict": verdict,
    }  # fmt: skip


def brief(row: dict[str, object]) -> str:
    """Return coverage, its error and the relative error."""
    cover = "warming" if row["coverage"] is None else f"{row['coverage']:.3f}+-{row['error']:.3f}"
    return f"{cover} / {row['relative_error']:.3f}"
