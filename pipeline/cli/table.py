"""Estimates as tables and lines: pure rendering."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.messages.estimate import EstimateMessage


def table(message: EstimateMessage) -> RenderableType:
    """Return an estimate as a table with its provenance below."""
    level = f"{message.level:.0%}"
    grid = Table(title=f"{message.study}: {message.loss}, {message.scaling} scaling", expand=False)
    for name in ("coefficient", "estimate", f"{level} interval", "sampling se", "privacy se"):
        grid.add_column(name, justify="left" if name == "coefficient" else "right")
    for row in message.coefficients:
        ends = "-" if row.interval is None else f"[{row.interval[0]:.3f}, {row.interval[1]:.3f}]"
        grid.add_row(
            row.name, f"{row.value:+.4f}", ends, _number(row.sampling_se), _number(row.privacy_se)
        )
    return Group(grid, Text(line(message)), Text(privacy_line(message), style="dim"))


def line(message: EstimateMessage) -> str:
    """Return the state of an estimate in one line."""
    parts = [
        f"{message.records} records",
        f"{message.releases} releases",
        f"{message.clients} clients",
        f"model {message.model_version}",
        message.status if not message.reason else f"{message.status}: {message.reason}",
    ]
    found = message.diagnostics
    for count, word in (
        (found.missing, "missing"),
        (found.duplicates, "duplicates dropped"),
        (found.dead_letters, "dead letters"),
    ):
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def privacy_line(message: EstimateMessage) -> str:
    """Return the guarantee in one line."""
    return f"privacy: {message.privacy.guarantee}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
