"""When intervals of a path come, how long they are, and in which windows its records should leave.

By the formulas of `facts`, for features that are uniform on their public ranges: of a path no
number of records makes intervals certain, since no ridge holds directions in which records say
nothing.
"""

from __future__ import annotations

from scipy.special import ndtri

from pipeline.methods.facts import Design, Outlook
from pipeline.methods.ldp_sgd.facts import needed, slope_error
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.study import Study, with_keys

#: Windows that are tried, the largest first: a larger one is cheaper, and makes models later.
WINDOWS = (500, 250, 100, 50, 20, 10)
#: Windows that a client should have, so that it hears of many models.
LEAST = 20
#: What a smaller window must save, as a share of the records that intervals need.
WORTH = 0.05


def outlook(task: GradientTask, records: int) -> Outlook:
    """As `Method.outlook`."""
    error = slope_error(task, records)
    return Outlook(
        latest=None,
        usual=needed(task),
        longest=None,
        usual_half=float(ndtri((1 + task.study.estimator.level) / 2)) * error,
        why="a path has no bound for all records: features that use half of their range need four "
        "times as many",
    )


def design(study: Study, records: int, clients: int) -> Design:
    """As `Method.design`."""
    most = max(records // (LEAST * clients), WINDOWS[-1])
    best, least = WINDOWS[-1], float("inf")
    for window in WINDOWS:
        if window > most:
            continue
        task = GradientTask(with_keys(study, {"window.records": window}, name="the design"))
        found = needed(task)
        if found < (1 - WORTH) * least:
            best, least = window, found
    reason = (
        f"the largest window with {LEAST} of each client whose models are not so late that steps "
        "must be shorter"
    )
    return Design({"window.records": best}, {"window.records": reason})
