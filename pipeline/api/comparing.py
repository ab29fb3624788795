"""Estimates of the same records side by side: with privacy and without, and of several runs."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.api.table import interval, value
from pipeline.messages.estimate import EstimateMessage


def comparison(private: EstimateMessage, exact: EstimateMessage) -> RenderableType:
    """Return an estimate beside the exact fit of the same records, which keeps no privacy."""
    title = f"{private.study}: what privacy costs"
    # two intervals side by side fit into 80 columns, and names are folded before they are
    grid = Table(title=title, expand=False, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("coefficient", overflow="fold")
    for name in ("private", f"{private.level:.0%} interval", "exact", "its interval", "held"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one, other in zip(private.coefficients, exact.coefficients, strict=True):
        held = "-" if one.interval is None else "no"
        if one.interval is not None and covers(one.interval, other.value):
            held = "yes"
        grid.add_row(
            one.name,
            value(private, one.value, 3),
            interval(private, one.interval),
            value(exact, other.value, 3),
            interval(exact, other.interval),
            held,
        )
    lines = [
        ": ".join(filter(None, [name, message.status, message.reason]))
        for name, message in (("private", private), ("exact", exact))
    ]
    fit = f"the same penalised fit (ridge {exact.ridge:.3g})" if exact.ridge else "the same fit"
    lines.append(f"exact: {fit} to all records, without privacy")
    lines.append("held: whether the private interval contains it")
    return Group(grid, *map(Text, lines))


def counts(private: EstimateMessage, exact: EstimateMessage) -> dict[str, int]:
    """Return how many coefficients have intervals, exclude zero, and hold the exact fit."""
    pairs = [
        (one.interval, other.value)
        for one, other in zip(private.coefficients, exact.coefficients, strict=True)
        if one.interval is not None
    ]
    return {
        "intervals": len(pairs),
        "excluding_zero": sum(not covers(ends, 0.0) for ends, _ in pairs),
        "covering_fit": sum(covers(ends, number) for ends, number in pairs),
    }


def half(interval: tuple[float, float]) -> float:
    """Return half the length of an interval."""
    return (interval[1] - interval[0]) / 2


def covers(interval: tuple[float, float], number: float) -> bool:
    """Whether an interval holds a number."""
    return interval[0] <= number <= interval[1]


def _spread(number: float, interval: tuple[float, float] | None) -> str:
    return f"{number:+.3g} ({f'{half(interval):.2g}' if interval else '-'})"
