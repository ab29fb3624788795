"""Whether both classes stand out of the noise of their counts: in a stream, and in a plan.

One class alone has no best fit, so no intervals come before. A release has the same noise whatever
its size: n records in windows of W have the noise of n / W releases, and the count of a class with
the share r is n r. It is k deviations above 0 after n = (k sigma / r)^2 / W records.
"""

from __future__ import annotations

import math

from pipeline.methods.renewable.precision import releases_needed
from pipeline.methods.renewable.private_sums import Weighed, total_of
from pipeline.methods.renewable.readiness import Condition, progress_of
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study.reference import rarer_share
from pipeline.types import Vector

#: A class is taken to occur when its count is so many standard deviations of the noise above 0.
COUNTS_NOISE = 3.0
#: A plan has the count so many above 0: 98 of 100 streams are then past the former.
COUNTS_PLANNED = 5.0
#: No study is told to give its class counts more of its budget.
MOST_COUNTS = 0.3
#: Of a count that is nearer to 0, in shares of what is needed, noise alone says how rare it is.
LEAST_SHARE = 1e-3


def slots_until(task: RenewableTask, share: float) -> int | None:
    """Return after how many record slots a class of this share stands out of its noise.

    None: the study's releases hold no class counts.
    """
    channel = task.update_channels.counts
    if channel is None or not task.classes:
        return None
    releases = (COUNTS_PLANNED * channel.standard_deviation / (share * task.slots)) ** 2
    return math.ceil(releases) * task.slots


def share_for(task: RenewableTask, records: float) -> float:
    """Return the share of the budget with which counts stand out after so many records.

    It may be above 1: no share is then enough.
    """
    channel = task.update_channels.counts
    if channel is None or not task.classes:
        return 0.0
    wanted = rarer_share(task.study) * math.sqrt(records * task.slots) / COUNTS_PLANNED
    return _share(task) * _raised(task, channel.standard_deviation / wanted)


def both_classes(task: RenewableTask, parts: Weighed) -> Condition:
    """Return whether both noised counts stand out of their noise.

    A regression has no classes that could be missing.
    """
    channel = task.update_channels.counts
    if channel is None or not task.classes:
        return Condition(1.0, "")
    counts = _counts(task, parts)
    releases = sum(weight**2 * state.releases for weight, state in parts)
    least = COUNTS_NOISE * math.sqrt(releases) * channel.standard_deviation
    share = min(1.0, max(0.0, float(counts.min()) / least) ** 2)
    if share >= 1:
        return Condition(share, "")
    slots = sum(state.slots for _, state in parts)
    return Condition(
        share,
        "one class is so rare that its noised count may be only noise: it is "
        f"{max(float(counts.min()), 0.0):,.0f}, and intervals need "
        f"{least:,.0f}, which is {COUNTS_NOISE:g} standard deviations of the noise. "
        f"{_ways(task, share, slots, 2 * least / COUNTS_NOISE)}",
    )


def _counts(task: RenewableTask, parts: Weighed) -> Vector:
    """Return the noised counts of both classes, shape (2,)."""
    counts = total_of(parts, lambda state: state.counts)[:2]
    return counts * task.update_channels.counts.unit if task.update_channels.counts else counts


def _ways(task: RenewableTask, share: float, slots: int, noise: float) -> str:
    """Say what would make the counts large enough: each of these alone.

    noise: How far noise moves the count in 95 of 100 streams.
    """
    missing = progress_of([Condition(share, "")], slots).records
    if missing is None or share < LEAST_SHARE:
        return "What would give intervals: more records of both classes"
    unit = 10 ** max(len(str(missing)) - 2, 0)
    records = (
        f"about {-(-missing // unit) * unit:,} more records, if the count is right (noise moves it "
        f"by up to {noise:,.0f}, so it may take many more)"
    )
    ways = [records]
    # a new study would draw new noise, and some room is for that
    times, own = COUNTS_PLANNED / COUNTS_NOISE / math.sqrt(share), _share(task)
    largest = slots // releases_needed(task.size)
    counts = math.ceil(100 * own * _raised(task, times)) / 100
    larger = math.ceil(task.slots * times**2)
    if counts <= MOST_COUNTS:
        ways.append(_split_with(task, counts))
    if larger <= largest:
        ways.append(f"window.records = {larger} (a release has the same noise whatever its size)")
    if len(ways) == 1 and own < MOST_COUNTS:
        # neither alone is enough, so both
        gained = (MOST_COUNTS / own) ** (2 / _power(task))
        larger = math.ceil(task.slots * times**2 / gained)
        if larger <= largest:
            ways.append(
                f"{_split_with(task, MOST_COUNTS)} with window.records = {larger} (a release has "
                "the same noise whatever its size)"
            )
    told = f"What would give intervals: {ways[0]}"
    if len(ways) == 1:
        return told
    return f"{told}. By the same count, in a new study of as many: {' or '.join(ways[1:])}"


def _split_with(task: RenewableTask, counts: float) -> str:
    """Write a split in which counts have this share and the others stand to each other as now."""
    whole = task.split.shares["gradient"] + task.split.shares["curvature"]
    gradient = round((1 - counts) * task.split.shares["gradient"] / whole, 3)
    return (
        f"privacy.split = {{ gradient = {gradient:g}, curvature = {1 - counts - gradient:.3g}, "
        f"counts = {counts:g} }}"
    )


def _share(task: RenewableTask) -> float:
    """Return the share of the budget that counts have, in (0, 1)."""
    split = task.split
    return split.counts / (split.shares["gradient"] + split.shares["curvature"] + split.counts)


def _raised(task: RenewableTask, times: float) -> float:
    """Return how many times the share must be to have noise so many times smaller."""
    return times ** _power(task)


def _power(task: RenewableTask) -> int:
    # shares are of the squared budget where the noise is Gaussian, of epsilon where it is Laplace
    return 2 if task.budget.mechanism.order == 2 else 1
