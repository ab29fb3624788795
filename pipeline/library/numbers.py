"""How coefficients, their intervals and numbers beside them are written."""

from __future__ import annotations

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.fit import FitMessage

#: Losses whose coefficients have the response's unit.
IN_UNITS = ("linear", "expectile")


def value(message: EstimateMessage | FitMessage, number: float, decimals: int = 4) -> str:
    """Return a coefficient with its sign; one with a unit by its leading digits."""
    return f"{number:+.5g}" if message.loss in IN_UNITS else f"{number:+.{decimals}f}"


def interval(message: EstimateMessage | FitMessage, ends: tuple[float, float] | None) -> str:
    """Return an interval, or that there is none."""
    if ends is None:
        return "-"
    form = ".5g" if message.loss in IN_UNITS else ".3f"
    return f"[{ends[0]:{form}}, {ends[1]:{form}}]"


def number_of(
    message: EstimateMessage | FitMessage, number: float | None, *, nothing: str = "-"
) -> str:
    """Return a number beside coefficients; None is `nothing`."""
    if number is None:
        return nothing
    if number == 0:
        return "0"
    return f"{number:.3g}" if message.loss in IN_UNITS else f"{number:.4f}"
