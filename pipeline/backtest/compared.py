"""The settings of a grid as rows of text, for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backtest.axes import text_of
from pipeline.backtest.grid import Cell, GridResult, Mean

#: Measures behind the score and the same without privacy: short heads, and those of a report.
COLUMNS = {
    "width": ("width", "median width"),
    "intervals": ("with", "coefficients with an interval"),
    "coverage": ("covered", "intervals that hold the pooled fit"),
    "privacy_share": ("privacy", "variance due to privacy"),
    "releases": ("releases", "releases"),
}


def rows_of(grid: GridResult) -> Iterator[tuple[Cell, list[str]]]:
    """Yield each setting with its values, scores and `COLUMNS`."""
    name = grid.main_score
    for cell in grid.cells:
        means = cell.means
        without_privacy = None if cell.open is None else cell.open.measures[name]
        yield (
            cell,
            [
                *(text_of(value) for value in cell.setting.changes.values()),
                _number(means.get(name)),
                "-" if without_privacy is None else f"{without_privacy:.4g}",
                _number(means.get("width")),
                _share(means.get("intervals")),
                _covered(cell),
                _share(means.get("privacy_share")),
                _number(means.get("releases"), digits=6),
            ],
        )


def _number(mean: Mean | None, digits: int = 4) -> str:
    if mean is None:
        return "-"
    return f"{mean.value:.{digits}g}" + (f" ± {mean.error:.1g}" if mean.error else "")


def _covered(cell: Cell) -> str:
    """Return the share of covered coefficients over draws; of one draw, which says little, counts.

    Coefficients of one draw are not independent, so that their share has no error of its own.
    """
    mean = cell.means.get("coverage")
    if mean is None:
        return "-"
    if mean.error is not None:
        return f"{mean.value:.0%} ± {mean.error:.0%}"
    known = [one for run in cell.runs for one in run.result.pooled.covered if one is not None]
    return f"{sum(known)} of {len(known)}"


def _share(mean: Mean | None) -> str:
    return "-" if mean is None else f"{mean.value:.0%}"
