"""How many releases of one client count among those around them in the log."""

from __future__ import annotations

from bisect import bisect_right

from pipeline.study.release_tables import Rate


def within(rate: Rate, recent: list[int], offset: int) -> bool:
    """Whether a release may count; if so, it is noted in `recent`.

    It may, if fewer than `rate.releases` of its client count among the `rate.of` positions of the
    log that end with its own: so no run of that length holds more of them.

    recent: Offsets of the client's releases that count, in order; older ones than the rate asks
        for are left out.
    offset: Of the release, above all of these.
    """
    del recent[: bisect_right(recent, offset - rate.of)]
    if len(recent) >= rate.releases:
        return False
    recent.append(offset)
    return True
