"""An estimate drawn: coefficients with their intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.extras import extra

if TYPE_CHECKING:
    from pipeline.library.results import Result


def draw(result: Result, axes: Any = None) -> Any:
    """Draw a result, and return the matplotlib axes.

    Coefficients go from top to bottom; one without an interval is a point alone.

    ConfigError if matplotlib is not installed.
    """
    rows = result.message.coefficients
    if axes is None:
        size = (7, 1 + 0.35 * len(rows))
        pyplot = extra("matplotlib.pyplot", "plot")
        axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    heights = np.arange(len(rows))[::-1]
    known = [(height, row) for height, row in zip(heights, rows, strict=True) if row.interval]
    axes.axvline(0.0, color="0.7", linewidth=0.8, zorder=0)
    axes.hlines(
        [height for height, _ in known],
        [row.interval[0] for _, row in known if row.interval],
        [row.interval[1] for _, row in known if row.interval],
    )
    axes.plot([row.value for row in rows], heights, "o")
    axes.set_yticks(heights, [row.name for row in rows])
    message = result.message
    axes.set_xlabel(f"coefficient, {message.level:.0%} interval ({message.interval_method})")
    axes.set_title(f"{message.study} ({message.status})")
    return axes
