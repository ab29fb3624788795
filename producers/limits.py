"""What a refusal says of the limit of a source: what would pass it, and which flags raise it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.privacy.accounting import Unit, total_epsilon
from pipeline.privacy.events import Event

#: Deltas that an advice to raise one looks through: the first, if there was none, and the last.
LEAST_DELTA, LARGEST_DELTA = 1e-6, 1e-2
_OR_STOP = " if the data owner agrees, or stop this study"


def beyond(events: Sequence[Event], epsilon: float, delta: float, unit: Unit, limit: float) -> str:
    """Say what events would cost beyond a limit, and how a data owner would allow it.

    epsilon: What they cost together at `delta`; infinite if none holds, as delta is too small.
    """
    at = f"at delta {delta:g} for {worded(unit)}"
    if math.isfinite(epsilon):
        return (
            f"would reach epsilon {epsilon:.4g} {at}, the limit is {limit:g}; raise it with "
            f"--epsilon-limit{_OR_STOP}"
        )
    larger, reached = delta or LEAST_DELTA / 2, math.inf
    while math.isinf(reached) and larger < LARGEST_DELTA:
        larger *= 2
        reached = total_epsilon(events, larger)
    if math.isinf(reached):
        return f"have no epsilon {at} or at any delta below {LARGEST_DELTA:g}: stop this study"
    raised = f"--delta-limit {larger:.3g}"
    if reached > limit:
        raised += f" and --epsilon-limit {reached * 1.01:.3g}"
    return f"have no epsilon {at}: delta is used up; raise it with {raised}{_OR_STOP}"


def worded(unit: Unit) -> str:
    """Return a unit in words."""
    who = "one record" if unit.records == 1 else f"a user's {unit.records} records"
    return f"{who} ({unit.neighbours})"
