"""How coefficients, their intervals and numbers beside them are written."""

from __future__ import annotations

import math

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.results import FitMessage

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


def two_digits(number: float | None, most: float = math.inf) -> str:
    """Return a number in two digits without a power of ten; "-" if it is unknown, or above most."""
    if number is None or number > most:
        return "-"
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"
