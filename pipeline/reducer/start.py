"""When clients may leave the public start of a private study."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.estimators.private_state import PrivateState
from pipeline.local.plan import Plan
from pipeline.reducer.partition import Summed


def start_is_over(plan: Plan, partitions: Iterable[Summed]) -> bool:
    """Whether the first model may go out.

    The first model is one step from zero, and its noise falls with the releases behind it only.
    Later estimates leave it slowly in directions whose curvature is below its noise, so a first
    model of one or two releases can spoil a long stream. Waiting costs nothing: releases at the
    start carry less noise than later ones. Nobody is held up either: it is over as soon as one
    client has sent all that `stream.lead` allows.

    Parameters
    ----------
    partitions
        All partitions of the study.
    """
    if not plan.study.noised:
        return True
    stream, releases = plan.study.stream, 0
    for partition in partitions:
        for sums in partition.sums.states.values():
            if not isinstance(sums, PrivateState) or sums.epochs:
                return True
            releases += int(sums.start[-1])
        if stream.lead and partition.head.furthest + 1 >= stream.lead:
            return True
    return releases >= stream.publish.releases
