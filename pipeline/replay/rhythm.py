"""When an estimate of a replay is due: after some releases, or some time of the log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.replay.ranges import UNITS

_EVERY = re.compile(r"([1-9]\d{0,8})([smhd]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """One of both: releases of the log (repeats and dead letters count), or milliseconds of it."""

    releases: int = 0
    milliseconds: int = 0

    def tick_after(self, time: int) -> int:
        """Return the first whole multiple of the rhythm's time, since 1970, after a time."""
        return (time // self.milliseconds + 1) * self.milliseconds


def parse_rhythm(text: str) -> Rhythm:
    """Return the rhythm that a text means; ConfigError if it means none."""
    found = _EVERY.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--every: {text!r} is no rhythm; allowed are a number of releases such as 1000, or a "
            "time of the log such as 10s (s, m, h, d)"
        )
    number = int(found[1])
    return Rhythm(milliseconds=number * UNITS[found[2]]) if found[2] else Rhythm(releases=number)
