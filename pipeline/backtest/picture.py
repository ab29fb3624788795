"""A backtest drawn: scores, interval width and status over time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipeline.extras import extra

if TYPE_CHECKING:
    from pipeline.backtest.result import BacktestResult

#: Shades behind the bins of each status.
SHADES = {"none": "0.85", "empty": "0.85", "starting": "0.9", "warming": "0.95"}


def figure_of(result: BacktestResult) -> Any:
    """Return a matplotlib figure, which the caller saves or shows.

    ConfigError if matplotlib is not installed.
    """
    name, _ = result.main_score
    figure = extra("matplotlib.figure", "plot").Figure(figsize=(8, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    spans = result.bins
    middles = [_moment(result, (span.start + span.end) / 2) for span in spans]
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
            ends = _moment(result, span.start), _moment(result, span.end)
            for axes in (top, bottom):
                axes.axvspan(*ends, color=SHADES[span.status], zorder=0)
    top.set_title(f"{result.study} ({result.mechanism}); computed from raw records, not private")
    return figure


def _moment(result: BacktestResult, clock: float) -> float | datetime:
    return datetime.fromtimestamp(clock, UTC) if result.timed else clock
