"""Estimates as tables and lines: pure rendering."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.fit import FitMessage


def table(message: EstimateMessage) -> RenderableType:
    """Return an estimate as a table with its provenance below."""
    level = f"{message.level:.0%}"
    grid = Table(title=f"{message.study}: {message.loss}, {message.scaling} scaling", expand=False)
    for name in ("coefficient", "estimate", f"{level} interval", "sampling se", "privacy se"):
        grid.add_column(name, justify="left" if name == "coefficient" else "right")
    for row in message.coefficients:
        grid.add_row(
            row.name,
            f"{row.value:+.4f}",
            _interval(row.interval),
            _number(row.sampling_se),
            _number(row.privacy_se),
        )
    return Group(
        grid,
        Text(line(message)),
        Text(information_line(message)),
        Text(privacy_line(message), style="dim"),
    )


def fit_table(message: FitMessage) -> RenderableType:
    """Return the fit of a published method as a table, with how it ended below."""
    grid = Table(title=f"{message.study}: {message.loss}, {message.scaling} scaling", expand=False)
    for name in ("coefficient", "estimate", f"{message.level:.0%} interval", "standard error"):
        grid.add_column(name, justify="left" if name == "coefficient" else "right")
    for row in message.coefficients:
        cells = (f"{row.value:+.4f}", _interval(row.interval), _number(row.standard_error))
        grid.add_row(row.name, *cells)
    score = "" if message.score is None else f", score {message.score:.1e}"
    counts = f"{message.records} record slots, {message.clients} clients, {message.rounds} rounds"
    lines = (
        f"{message.estimator} ({message.method})",
        counts + score,
        f"{message.status}: {message.reason}" if message.reason else message.status,
    )
    return Group(grid, *map(Text, lines), Text(privacy_line(message), style="dim"))


def comparison(private: EstimateMessage, plain: EstimateMessage) -> RenderableType:
    """Return two estimates of one stream side by side: with privacy, and without."""
    grid = Table(title=f"{private.study}: what privacy costs", expand=False)
    grid.add_column("coefficient")
    for name in ("private", f"{private.level:.0%} interval", "without", "interval"):
        grid.add_column(name, justify="right")
    for one, other in zip(private.coefficients, plain.coefficients, strict=True):
        grid.add_row(
            one.name,
            f"{one.value:+.3f}",
            _interval(one.interval),
            f"{other.value:+.3f}",
            _interval(other.interval),
        )
    return Group(grid, Text(f"private: {private.status} {private.reason}".rstrip()))


def line(message: EstimateMessage, *, brief: bool = False) -> str:
    """Return the state of an estimate in one line; a brief one leaves the reason out."""
    parts = [
        f"{message.records} record slots",
        f"{message.releases} releases",
        f"{message.clients} clients",
        f"model {message.model_version or 0}",
        message.status if brief or not message.reason else f"{message.status}: {message.reason}",
    ]
    found = message.diagnostics
    for count, word in (
        (found.missing, "missing"),
        (found.duplicates, "duplicates dropped"),
        (found.dead_letters, "dead letters"),
        (found.forgotten, "too old to count"),
        (found.erased, "of erased clients"),
    ):
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def information_line(message: EstimateMessage) -> str:
    """Return in one line how much information there is, and what limits it."""
    found = message.diagnostics
    parts = []
    if found.effective_records is not None:
        parts.append(f"rests on {found.effective_records:.0f} effective record slots")
    if found.privacy_share is not None:
        parts.append(f"{found.privacy_share:.0%} of the variance is privacy noise")
    if found.floor_active:
        parts.append(f"{found.floored} directions of the curvature are below its noise")
    return ", ".join(parts)


def privacy_line(message: EstimateMessage | FitMessage) -> str:
    """Return the guarantee in one line."""
    return f"privacy: {message.privacy.guarantee}"


def _interval(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
