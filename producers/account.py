"""What one run of a client did, and where its study and its budget stand, for local eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import VeilstreamError
from pipeline.release.quality import JUMP, worded
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.words import counted
from producers.report import held, ledger, report

_COUNTS = ("records_used", "values_clipped", "records_set_aside", "releases")


def standing(path: Path, task: Task) -> dict[str, Any]:
    """Return what a client's database says of a study and its source; nothing if it is not there.

    `once` says whether the study pays once for all records, since each enters one release alone.
    Where a study's releases cost less together than their sum, and its limit holds that, `spent`
    and `remaining` are of that, and `added_up` is the sum. A fault of the database is told by
    whoever writes to it.
    """
    if not path.exists():
        return {}
    with suppress(VeilstreamError):
        found = report(path).get(task.study.name, {})
        source = found.get("source", "")
        once = task.budget.scope == "record"
        facts = {**found, **ledger(path).get(source, {}), "once": once}
        if task.budget.scope == "individual" and facts.get("remaining"):
            reached, limit = held(path, source, task), facts["limit"]["epsilon"]
            facts["added_up"], facts["spent"] = facts["spent"], {"epsilon": reached}
            left = 0.0 if reached is None else max(0.0, limit - reached)
            facts["remaining"] = {"epsilon": left}
        return facts
    return {}


def begun(revision: str, now: dict[str, Any], *, study: str, follow: bool) -> str:
    """Return the line with which a run begins."""
    slots = now.get("records_used", 0) + now.get("records_set_aside", 0)
    start = (
        f"behind the records of study {now['follows']}" if now.get("follows") else "from its start"
    )
    place = f"behind {slots} record slots" if now.get("releases") else start
    reads = "and waits for more" if follow else "to its end"
    return (
        f"study {study} (revision {revision}), source {now.get('source', '')} {place}, {reads}; "
        f"{_budget(now)}"
    )


def run_of(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what a run did, from what stood there before and after it."""
    done: dict[str, Any] = {key: after.get(key, 0) - before.get(key, 0) for key in _COUNTS}
    reasons = Counter(after.get("reasons", {}))
    reasons.subtract(before.get("reasons", {}))
    done["reasons"] = dict(+reasons)
    # what was lost is charged, and this run did not make it
    done["releases_lost"] = after.get("releases_lost", 0) - before.get("releases_lost", 0)
    done["releases"] -= done["releases_lost"]
    done["releases_unsent"] = after.get("releases_unsent", 0)
    done["in_all"] = {key: after.get(key, 0) for key in _COUNTS}
    done["epsilon"] = {
        name: (after.get(name) or {}).get("epsilon")
        for name in ("limit", "spent", "remaining", "added_up")
        if name != "added_up" or name in after
    }
    return done


def closing(
    done: dict[str, Any], after: dict[str, Any], study: Study, *, failed: bool = False
) -> Iterator[str]:
    """Yield the lines with which a run ends: what it did, and what to look at.

    failed: Whether a fault has ended it, which says itself why nothing was done.
    """
    kinds = f" ({worded(Counter(done['reasons']))})" if done["reasons"] else ""
    unsent = f" ({done['releases_unsent']} not sent yet)" if done["releases_unsent"] else ""
    lost = (
        f", {counted(done['releases_lost'], 'lost one')} charged" if done["releases_lost"] else ""
    )
    used, clipped, aside, released = (
        f"{done[key]} {noun}" + "s" * (done[key] != 1)
        for key, noun in zip(_COUNTS, ("record", "value", "record", "release"), strict=True)
    )
    yield (
        f"{used} used, {clipped} clipped to the public range, {aside} set aside{kinds}, "
        f"{released}{unsent}{lost}; {_budget(after)}"
    )
    if not failed and not any(done[key] for key in _COUNTS):
        yield (
            "the source had nothing new: no record of it is released twice, and more records go "
            "on behind what this client has released"
            if done["in_all"]["releases"]
            else "WARNING: nothing is released: the source had no records, or too few for a window "
            "(window.records); the data owner must look whether it is the right one"
        )
    data = study.data
    answered = [data.response.kind, *(feature.kind for feature in data.features.values())]
    if warning := cut(done, sum(kind in {"number", "count"} for kind in answered)):
        yield warning


def cut(done: dict[str, Any], ranges: int) -> str:
    """Return a warning if many values were cut, of records with so many ranges; "" if not."""
    values = done["records_used"] * ranges
    if not values or done["values_clipped"] < JUMP * values:
        return ""
    return (
        f"WARNING: {done['values_clipped'] / values:.0%} of the values were outside their public "
        "range and cut to it, so estimates are of other values than the records': the operator "
        "must see to `min` and `max` in the study's [data]"
    )


def _budget(now: dict[str, Any]) -> str:
    limit, spent, left = (
        (now.get(k) or {}).get("epsilon") for k in ("limit", "spent", "remaining")
    )
    if limit is None:
        return "no privacy, no budget"
    if spent is None:
        return f"epsilon limit {limit:.4g}, of which nobody can say what is left"
    # what rounding leaves over is nothing
    left = 0.0 if left < 1e-9 * limit else left
    allowed = "nothing is left" if spent <= limit * (1 + 1e-9) else "more than is allowed"
    if "added_up" not in now:
        once = spent and now.get("once")
        again = " (charged once: further records of this study cost no more)" if once else ""
        rest = f"{left:.4g} left" if left else allowed
        return f"epsilon {spent:.4g} of {limit:.4g} spent, {rest}{again}"
    return (
        f"epsilon {spent:.4g} of {limit:.4g} spent about a value at any one time (nested), "
        f"{left:.4g} left; {now['added_up']['epsilon']:.4g} about the history of all releases "
        "(classical, no limit holds it)"
    )
