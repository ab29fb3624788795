"""Where a replay begins and ends, and its rhythm: texts to offsets, and what the log has lost.

A bound of time means, in each partition, the first record of that time or later: the replay begins
with it, or ends before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.messages.envelope import rfc3339
from pipeline.records.values import parse_rfc3339

UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,9})([smhd])", re.ASCII)
_OFFSETS = re.compile(r"\d{1,4}:\d{1,18}(,\d{1,4}:\d{1,18})*", re.ASCII)
_ALLOWED = (
    'allowed are RFC 3339 with a zone such as "2026-03-01T12:00:00Z", a time ago such as -2h (s, '
    "m, h, d), beginning, end, or an offset of each partition such as 0:1200,1:900"
)


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A time of the log, in milliseconds since 1970."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset of each partition."""

    at: tuple[tuple[int, int], ...]


#: None: where the log itself begins or ends.
Bound = Moment | Offsets | None


@dataclass(frozen=True, slots=True)
class Extent:
    """What the log of one partition holds.

    first, after: Its first offset, and the next one after its end.
    oldest: Time of its first record, in milliseconds since 1970; None if there is none.
    """

    first: int
    after: int
    oldest: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets of one partition that a replay reads: from `start` up to, without, `stop`."""

    start: int
    stop: int


def parse_bound(text: str, option: str, *, now: float, partitions: int) -> Bound:
    """Return the bound that a text means.

    now: Seconds since 1970.
    partitions: How many partitions the log has.

    Raises ConfigError if it means none.
    """
    if text in ("beginning", "end"):
        if text != {"--from": "beginning", "--to": "end"}.get(option, text):
            raise ConfigError(f"{option}: {text!r} leaves nothing to replay; {_ALLOWED}")
        return None
    if found := _AGO.fullmatch(text):
        return Moment(max(round(now * 1000) - int(found[1]) * UNITS[found[2]], 0))
    if text.isascii() and text.isdecimal() and len(text) <= 18 and partitions == 1:
        return Offsets(((0, int(text)),))
    if _OFFSETS.fullmatch(text):
        pairs = [part.split(":") for part in text.split(",")]
        at = tuple(sorted((int(number), int(offset)) for number, offset in pairs))
        if [number for number, _ in at] != list(range(partitions)):
            raise ConfigError(
                f"{option}: name an offset of each of the {partitions} partitions once, for "
                f"example {','.join(f'{number}:0' for number in range(partitions))}"
            )
        return Offsets(at)
    moment = parse_rfc3339(text)
    if moment is None or moment < 0:
        raise ConfigError(f"{option}: {text!r} is not a time or offset; {_ALLOWED}")
    return Moment(moment)


def check_order(start: Bound, stop: Bound) -> None:
    """Refuse a range that ends before it begins; ConfigError, naming both ends."""
    if isinstance(start, Moment) and isinstance(stop, Moment) and start >= stop:
        raise ConfigError(
            f"--from: {_time(start.milliseconds)} is not before --to, {_time(stop.milliseconds)}"
        )
    if isinstance(start, Offsets) and isinstance(stop, Offsets):
        for (number, first), (_, last) in zip(start.at, stop.at, strict=True):
            if first > last:
                raise ConfigError(
                    f"--from: offset {first} of partition {number} is behind --to, {last}"
                )


def resolve(
    start: Bound,
    stop: Bound,
    extents: Mapping[int, Extent],
    at: Callable[[int], Mapping[int, int]],
) -> tuple[dict[int, Span], list[str]]:
    """Return the offsets to read of each partition, and a sentence on each loss of the log.

    at: Gives the first offset of each partition at or after a time in milliseconds; the log's end
        where there is none.

    Raises ConfigError if a bound lies behind the end of the log.
    """
    starts = _offsets(start, "--from", extents, at, dict.fromkeys(extents, 0))
    stops = _offsets(stop, "--to", extents, at, {n: e.after for n, e in extents.items()})
    spans, lost = {}, []
    for number, extent in sorted(extents.items()):
        wanted, end = starts[number], max(stops[number], extent.first)
        if isinstance(start, Moment):
            # a time is looked up in what is left: whether older records had it nobody knows
            earlier = extent.oldest is None or start.milliseconds < extent.oldest
            gone = range(extent.first if earlier else 0)
        else:
            gone = range(wanted, min(extent.first, stops[number]))
        if gone:
            oldest = (
                "" if extent.oldest is None else f" (what is left is of {_time(extent.oldest)})"
            )
            lost.append(f"offsets {gone[0]} to {gone[-1]} of partition {number}{oldest}")
        begin = max(wanted, extent.first)
        spans[number] = Span(min(begin, end), end)
    return spans, lost


def _offsets(
    bound: Bound,
    option: str,
    extents: Mapping[int, Extent],
    at: Callable[[int], Mapping[int, int]],
    default: dict[int, int],
) -> dict[int, int]:
    if bound is None:
        return default
    if isinstance(bound, Moment):
        return dict(at(bound.milliseconds))
    for number, offset in bound.at:
        if offset > extents[number].after:
            raise ConfigError(
                f"{option}: partition {number} ends at offset {extents[number].after}, before "
                f"{offset}"
            )
    return dict(bound.at)


def _time(milliseconds: int) -> str:
    return rfc3339(milliseconds / 1000)


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
            f"--every: {text!r} is not a rhythm; allowed are a number of releases such as 1000, or "
            "a time of the log such as 10s (s, m, h, d)"
        )
    number = int(found[1])
    return Rhythm(milliseconds=number * UNITS[found[2]]) if found[2] else Rhythm(releases=number)
