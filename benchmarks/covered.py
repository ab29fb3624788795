"""What streams tell of their intervals: which cover the target, and how often over many streams."""

from __future__ import annotations

import math

import numpy as np

from pipeline.estimators.estimate import Estimate
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
    coverage, error = share_of(covered)
    spread = np.array([s["coefficients"] for s in ready]).std(axis=0, ddof=1)
    verdict = "within" if LEAST <= coverage <= MOST else "OUTSIDE"
    return {
        **found, "coverage": coverage, "error": error,
        "intercept": float(np.nanmean(covered[:, 0])),
        "given": float(np.mean(~np.isnan(covered))),
        "width": float(np.mean(widths / spread)), "verdict": verdict,
    }  # fmt: skip


def share_of(covered: np.ndarray) -> tuple[float, float]:
    """Return the share of intervals that cover, of (streams, d), and its Monte Carlo error.

    NaN stands for a coefficient without an interval. Coefficients of one stream depend on each
    other; streams do not. The error is at least that of half a stream that differs, so that a few
    equal streams do not seem to prove a share.
    """
    shares = np.nanmean(covered, axis=1)
    error = float(shares.std(ddof=1)) / math.sqrt(len(shares))
    least = math.sqrt(LEVEL * (1 - LEVEL) / np.count_nonzero(~np.isnan(covered)))
    return float(shares.mean()), max(error, least)


def brief(row: dict[str, object]) -> str:
    """Return coverage, its error and the relative error."""
    cover = "warming" if row["coverage"] is None else f"{row['coverage']:.3f}+-{row['error']:.3f}"
    return f"{cover} / {row['relative_error']:.3f}"
