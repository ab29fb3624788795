"""Simulated delays of a network: constant, or drawn from an exponential law."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pipeline.errors import ConfigError

#: Units of time.
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Delay:
    """How late something comes.

    mean: >= 0, in seconds of event time or in records of the history.
    of: "seconds" or "records".
    exponential: Whether each delay is drawn from an exponential law with this mean; else all are
        equal.
    """

    mean: float = 0.0
    of: str = "records"
    exponential: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """Return the next delay."""
        return float(rng.exponential(self.mean)) if self.exponential and self.mean else self.mean

    def __str__(self) -> str:
        return f"{self.mean:g} {self.of}{', exponential' if self.exponential else ''}"


def delay_of(text: str, option: str) -> Delay:
    """Return the delay that a person wrote: "30s", "12h", "500 records", "exponential:2.5s".

    ConfigError if it is none.
    """
    units = "|".join((*SECONDS, "seconds?", "r", "records?"))
    pattern = rf"(exponential:|constant:)?([0-9.]+(?:e[+-]?[0-9]+)?) ?({units})?"
    found = re.fullmatch(pattern, text.strip())
    try:
        mean = float(found[2]) if found else -1.0
    except ValueError:
        mean = -1.0
    if found is None or not 0 <= mean <= 1e12 or (found[3] is None and mean > 0):
        raise ConfigError(
            f"{option}: {text!r} is no delay; write a number with its unit, such as 30s (s, m, h "
            "or d) or 500 records, and exponential: before it for random ones"
        )
    unit = found[3] or "r"
    if unit.startswith("r"):
        return Delay(mean, "records", exponential=found[1] == "exponential:")
    seconds = mean * SECONDS[unit[0]]
    return Delay(seconds, "seconds", exponential=found[1] == "exponential:")
