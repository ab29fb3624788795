"""A backtest drawn: one figure for a notebook, and the pictures of a report.

These are SVG that stands inside an HTML page and asks for nothing outside.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pipeline.backtest.grid import Axis, Cell, GridResult, text_of
from pipeline.backtest.result import BacktestResult
from pipeline.backtest.scores import WORDS
from pipeline.settings import extra

#: Colours that the colour-blind can tell apart (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
GREY = "#777777"
#: Lines of one picture, and coefficients of another, at most.
LINES, PANELS = len(COLOURS), 12
#: Shades behind the bins of each status.
SHADES = {"none": "0.85", "empty": "0.85", "starting": "0.9", "warming": "0.95"}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "veilstream",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    # names of features are names, whatever signs they hold
    "text.parse_math": False,
}


def _styled(draw: Callable[..., str | None]) -> Callable[..., str | None]:
    """Let a picture be drawn in our style, from its first line to its last."""

    @functools.wraps(draw)
    def styled(*arguments: Any) -> str | None:
        with extra("matplotlib", "--report").rc_context(_STYLE):
            return draw(*arguments)

    return styled


@_styled
def against(grid: GridResult, axis: Axis, measure: str) -> str | None:
    """Return a measure against the values of an axis; None if no setting has it.

    One line for each combination of the other axes, with a bar of one standard error each way, and
    in the same colour, dashed, the same without privacy.
    """
    lines = _lines(grid, axis)
    if not any(measure in cell.means for line in lines.values() for cell in line):
        return None
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis.values)
    figure, (axes,) = _figure(6.2, 3.6)
    for colour, (label, cells) in zip(COLOURS, lines.items(), strict=False):
        known = [cell for cell in cells if measure in cell.means]
        xs = [_x(axis, cell, numeric=numeric) for cell in known]
        means = [cell.means[measure] for cell in known]
        axes.errorbar(
            xs, [m.value for m in means], [m.error or 0.0 for m in means],
            color=colour, marker="o", markersize=4, capsize=3, linewidth=1.5, label=label or None,
        )  # fmt: skip
        without_privacy = [
            (_x(axis, p, numeric=numeric), p.open.measures[measure]) for p in cells if p.open
        ]
        pairs = sorted((x, y) for x, y in without_privacy if y is not None)
        axes.plot([x for x, _ in pairs], [y for _, y in pairs], color=colour, linestyle="--",
                  linewidth=1.0)  # fmt: skip
    ticks = [float(v) for v in axis.values] if numeric else range(len(axis.values))
    if numeric and min(ticks) > 0 and max(ticks) >= 4 * min(ticks):
        axes.set_xscale("log")
    axes.set_xticks(ticks, [text_of(value) for value in axis.values])
    axes.minorticks_off()
    axes.set_xlabel(axis.key)
    axes.set_ylabel(WORDS.get(measure, "median width of the intervals"))
    if any(lines):
        axes.legend(fontsize=8)
    return _svg(figure)


@_styled
def scores_over_time(cell: Cell) -> str | None:
    """Return the main score in each bin of time, with the same without privacy beside it."""
    result = cell.runs[0].result
    name = result.main_score[0]
    figure, (axes,) = _figure(9.0, 3.2)
    shown = False
    beside = [(cell.open.result, GREY, "without privacy")] if cell.open else []
    for one, colour, label in [(result, COLOURS[0], "as set"), *beside]:
        spans = [s for s in one.bins if getattr(s.scores, name) is not None]
        shown = shown or bool(spans)
        middles = [_time(one, (span.start + span.end) / 2) for span in spans]
        axes.plot(middles, [getattr(span.scores, name) for span in spans], color=colour,
                  linestyle="-" if one is result else "--", linewidth=1.5, label=label)  # fmt: skip
    if result.freeze is not None:
        spans = [s for s in result.bins if s.frozen and getattr(s.frozen, name) is not None]
        middles = [_time(result, (span.start + span.end) / 2) for span in spans]
        axes.plot(middles, [getattr(s.frozen, name) for s in spans], color=COLOURS[1],
                  linewidth=1.5, label="frozen")  # fmt: skip
    axes.set_ylabel(WORDS[name])
    axes.set_xlabel("event time" if result.timed else "record")
    _few_times(axes, result, 8)
    axes.legend(fontsize=8)
    return _svg(figure) if shown else None


@_styled
def calibration(result: BacktestResult) -> str | None:
    """Return observed shares against predicted probabilities, with bars of two standard errors."""
    groups = result.calibration
    if not groups:
        return None
    figure, (axes,) = _figure(4.2, 3.8)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.0)
    errors = [2 * math.sqrt(g.observed * (1 - g.observed) / g.records) for g in groups]
    axes.errorbar(
        [g.predicted for g in groups], [g.observed for g in groups], errors,
        color=COLOURS[0], marker="o", markersize=4, capsize=3, linewidth=1.5,
    )  # fmt: skip
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed share")
    return _svg(figure)


@_styled
def coefficients_over_time(result: BacktestResult) -> str | None:
    """Return the estimate and its intervals over time, one panel for each coefficient."""
    spans = [span for span in result.bins if span.coefficients is not None]
    names = [c.name for c in result.estimate.coefficients][:PANELS]
    if not spans:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, panels = _figure(9.0, 2.0 * rows + 0.3, rows, columns)
    times = [_time(result, span.end) for span in spans]
    for index, (axes, name) in enumerate(zip(panels, names, strict=False)):
        values = [span.coefficients[index] for span in spans if span.coefficients]
        ends = [span.intervals[index] if span.intervals else None for span in spans]
        low, high = ([math.nan if e is None else e[side] for e in ends] for side in (0, 1))
        axes.fill_between(times, low, high, color=COLOURS[0], alpha=0.25, linewidth=0)
        axes.plot(times, values, color=COLOURS[0], linewidth=1.2)
        if result.pooled.coefficients is not None:
            axes.axhline(result.pooled.coefficients[index], color=COLOURS[1], linestyle="--",
                         linewidth=1.0)  # fmt: skip
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="y", nbins=4)
        _few_times(axes, result, 4)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return _svg(figure)


def figure_of(result: BacktestResult) -> Any:
    """Return a matplotlib figure, which the caller saves or shows.

    ConfigError if matplotlib is not installed.
    """
    name, _ = result.main_score
    figure = extra("matplotlib.figure", "plot").Figure(figsize=(8, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    spans = result.bins
    middles = [_time(result, (span.start + span.end) / 2) for span in spans]
    top.plot(middles, [getattr(span.scores, name) for span in spans], label="updating")
    if result.freeze is not None:
        frozen = [getattr(span.frozen, name) if span.frozen else None for span in spans]
        top.plot(middles, frozen, label="frozen", linestyle="--")
        top.legend()
    top.set_ylabel(name.replace("_", " "))
    bottom.plot(middles, [span.width for span in spans])
    bottom.set_ylabel("median interval width")
    bottom.set_xlabel("event time" if result.timed else "record")
    for span in spans:
        if span.status in SHADES:
            ends = _time(result, span.start), _time(result, span.end)
            for axes in (top, bottom):
                axes.axvspan(*ends, color=SHADES[span.status], zorder=0)
    top.set_title(f"{result.study} ({result.mechanism}); computed from raw records, not private")
    return figure


def _lines(grid: GridResult, axis: Axis) -> dict[str, list[Cell]]:
    """Return the cells of a grid along an axis, by the label of the other axes."""
    lines: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        others = {k: v for k, v in cell.setting.changes.items() if k != axis.key}
        label = ", ".join(f"{key} = {text_of(value)}" for key, value in others.items())
        lines.setdefault(label, []).append(cell)
    return dict(list(lines.items())[:LINES])


def _x(axis: Axis, cell: Cell, *, numeric: bool) -> float:
    value = cell.setting.changes[axis.key]
    return float(value) if numeric else float(axis.values.index(value))


def _time(result: BacktestResult, clock: float) -> float | datetime:
    return datetime.fromtimestamp(clock, UTC) if result.timed else clock


def _few_times(axes: Any, result: BacktestResult, most: int) -> None:
    """Keep the marks of a time axis short and apart."""
    if not result.timed:
        axes.locator_params(axis="x", nbins=most)
        return
    from matplotlib import dates  # noqa: PLC0415  an extra

    locator = dates.AutoDateLocator(minticks=2, maxticks=most)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra, which `_styled` asked for

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _svg(figure: Any) -> str:
    """Return a figure as an SVG element without declarations, addresses or data of its own."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.DOTALL)
    # a browser knows the names of SVG inside HTML; names of features stay as they are
    head, end, rest = text.partition(">")
    return re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", head) + end + rest
