"""A log folded again, from anywhere to anywhere: the pure parts of `veilstream replay`.

- `ranges`: where a replay begins and ends, what the log has lost of that, and when an estimate is
  due, in the time of the log or in releases.
- `run`: records of several partitions in one order in, estimates out.
- `saved`: a replay that was interrupted, as bytes.
- `what_if`: which settings may differ from the live ones.
- `comparing`: two estimates, number by number.
"""

from pipeline.replay.comparing import Difference, difference
from pipeline.replay.ranges import (
    Bound,
    Extent,
    Rhythm,
    Span,
    check_order,
    parse_bound,
    parse_rhythm,
    resolve,
)
from pipeline.replay.run import Replay, in_order
from pipeline.replay.saved import Saved
from pipeline.replay.what_if import altered, parse_change, parse_forgetting

__all__ = [
    "Bound",
    "Difference",
    "Extent",
    "Replay",
    "Rhythm",
    "Saved",
    "Span",
    "altered",
    "check_order",
    "difference",
    "in_order",
    "parse_bound",
    "parse_change",
    "parse_forgetting",
    "parse_rhythm",
    "resolve",
]
