"""What a client's database holds, read without disturbing its producer, in numbers and words.

What a run of the client did, where study and budget stand, and what a changed study will cost.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import VeilstreamError
from pipeline.messages.spend import SpendsMessage
from pipeline.privacy.accounting import Unit, total_epsilon, total_mu
from pipeline.privacy.events import Event, NonPrivate
from pipeline.privacy.guarantee import loose_delta
from pipeline.release.quality import JUMP, worded
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.words import counted
from producers.budget import (
    HAIR,
    Rows,
    as_known,
    charges,
    known,
    protecting,
    spent,
    spent_by,
    unit_in_words,
)
from producers.database import Remembered, check_schema, clients_of, parsed, reading, vault_path
from producers.prior_spend import account
from producers.store import absent


def report(path: Path) -> dict[str, dict[str, Any]]:
    """Return for each study what the client has read, set aside, released and spent.

    LocalStoreError if the database cannot be read; ConfigError if it is of another version.
    """
    with _opened(path) as database:
        rows = database.execute(STREAMS).fetchall()
        return {row[0]: _study(database, row) for row in rows}


def ledger(path: Path) -> dict[str, dict[str, Any]]:
    """Return for each source its limit, what studies have spent of it, and what remains.

    All numbers are public: none is computed from records.

    LocalStoreError if the database cannot be read; ConfigError if it is of another version.
    """
    with _opened(path) as database:
        rows = database.execute(
            "SELECT source, epsilon, delta, unit_records, neighbours FROM sources ORDER BY source"
        ).fetchall()
        found = {row[0]: _source(database, *row) for row in rows}
        held = dict(database.execute("SELECT study, next_seq FROM streams").fetchall())
    missing = sum(absent(_remembered(path), held).values())
    if missing:
        for facts in found.values():
            facts["warnings"].append(
                f"this folder remembers {counted(missing, 'more release')} of this client than "
                "the database has: the database is an old copy, and more has been spent than it "
                "says"
            )
    return found


def held(path: Path, source: str, task: Task) -> float | None:
    """Return the epsilon that the limit of a source holds against, for a client of a study.

    As `ledger` adds it up, but for the study's own releases, of which it knows best what they cost
    together; None where nobody has a limit. LocalStoreError as `ledger`.
    """
    with _opened(path) as database:
        rows = rows_of(database)
        [(delta, *unit)] = rows(
            "SELECT delta, unit_records, neighbours FROM sources WHERE source = ?", source
        )
        found = as_known(charges(rows, source), task)
        return finite(total_epsilon(protecting(found, Unit(*unit)), delta))


def account_of(path: Path) -> SpendsMessage:
    """Return the whole account of a client, for a file.

    LocalStoreError if the database cannot be read; ConfigError if it is of another version.
    """
    with _opened(path) as database:
        return account(rows_of(database))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a database of this version; LocalStoreError, ConfigError as `report`."""
    with reading(path) as database:
        if row := database.execute("SELECT schema FROM identity").fetchone():
            check_schema(row[0])
        yield database


def rows_of(database: sqlite3.Connection) -> Rows:
    """Return what asks a database."""
    return lambda statement, *values: database.execute(statement, values).fetchall()


def _remembered(path: Path) -> Remembered:
    """Return what the lock file remembers."""
    try:
        return parsed(path.with_suffix(".lock").read_bytes())
    except OSError:
        return Remembered()


def _study(database: sqlite3.Connection, row: sqlite3.Row) -> dict[str, Any]:
    found = dict(row)
    waiting = database.execute("SELECT count(*) FROM outbox WHERE study = ?", (row["study"],))
    reasons = database.execute("SELECT reason, count FROM rejects WHERE study = ?", (row["study"],))
    del found["study"]
    return {
        **found,
        "reasons": dict(map(tuple, reasons)),
        "releases_unsent": waiting.fetchone()[0],
    }


def _source(
    database: sqlite3.Connection, source: str, epsilon: float | None, delta: float, records: int,
    neighbours: str,
) -> dict[str, Any]:  # fmt: skip
    unit = Unit(records, neighbours)
    paid = spent(rows_of(database), source, unit)
    reached = total_epsilon(paid, delta)
    studies = [
        dict(row) | _cost(spent_by(rows_of(database), row["study"]) or NonPrivate())
        for row in database.execute(STUDIES, (source,))
    ]
    elsewhere = [
        dict(row) | {"counts": bool(row["counts"])} | _cost(known(row["event"]))
        for row in database.execute(ELSEWHERE, (source,))
    ]
    refusals = database.execute(
        "SELECT refusals.study, refusals.at, refusals.reason FROM refusals "
        "JOIN streams ON streams.study = refusals.study WHERE streams.source = ?",
        (source,),
    )
    # a cost that protects anybody says against which change
    released_without_privacy = any(row["neighbours"] is None for row in [*studies, *elsewhere])
    return {
        "protects": unit_in_words(unit),
        "limit": None if epsilon is None else {"epsilon": epsilon, "delta": delta},
        "spent": None
        if released_without_privacy
        else {"epsilon": finite(reached), "delta": delta, "mu": finite(total_mu(paid))},
        "remaining": None
        if epsilon is None or released_without_privacy
        else {"epsilon": max(0.0, epsilon - reached)},
        "studies": studies,
        "elsewhere": elsewhere,
        "refusals": [dict(row) for row in refusals],
        "warnings": [
            *_warnings(studies, released_without_privacy),
            *(_NESTED.format(study=row["study"]) for row in database.execute(SLOTS, (source,))),
        ],
    }


#: Columns have the names that people read.
STREAMS = """
    SELECT study, revision, source, records AS records_used, rejected AS records_set_aside,
    clipped AS values_clipped, next_seq AS releases, owed AS slots_still_to_pass_over, follows,
    (SELECT CAST(total(lost) AS INTEGER) FROM ledger WHERE ledger.study = streams.study)
    AS releases_lost FROM streams"""
STUDIES = """
    SELECT study, mechanism, epsilon, iif(neighbours IS NULL, delta, ifnull(delta, 0.0)) AS delta,
    unit_records, neighbours, count(at) AS releases,
    CAST(total(lost) AS INTEGER) AS releases_lost, count(at) * slots AS record_slots,
    min(at) AS first, max(at) AS last,
    (SELECT min(scope) FROM spends WHERE spends.study = charged.study) AS scope
    FROM charged LEFT JOIN ledger USING (study) WHERE source = ? GROUP BY study ORDER BY study"""
#: Studies of values of planned age, whose records are individuals with a row in each slot.
SLOTS = """
    SELECT DISTINCT study FROM charged JOIN spends USING (study)
    WHERE source = ? AND scope = 'individual' ORDER BY study"""
_NESTED = (
    "study {study!r}: spent and remaining are the classical sum of its rounds: this is what they "
    "reveal about a record's history, to anybody. About its value at any one time they reveal "
    "less, if it changes as fast as the study promises (nested; epsilon_at_any_time of "
    "`veilstream schedule STUDY --round N`). A limit holds for the nested sum here, so the study "
    "may go on where nothing remains. If a history must not become known, give no limit, and "
    "stop the study yourself"
)
#: Spends of other ledgers, or of a lost state of this one.
ELSEWHERE = """
    SELECT ledger, study, mechanism, epsilon, delta, event, neighbours, releases,
    origin AS told_by, counts FROM inherited WHERE source = ? ORDER BY study, ledger"""


def _cost(event: Event) -> dict[str, Any]:
    """Return what an event costs one record, in each of the terms that it has a number in."""
    return {
        "mu": finite(total_mu([event])),
        "pure_epsilon": finite(total_epsilon([event], 0.0)),
        "event": msgspec.to_builtins(event),
    }


def _warnings(studies: list[dict[str, Any]], released_without_privacy: bool) -> Iterator[str]:
    if released_without_privacy:
        yield "a study without privacy has released this source: no limit holds for it any more"
    for study in studies:
        delta = None if study["neighbours"] is None else study["delta"]
        if warning := loose_delta(delta, study["record_slots"]):
            yield f"study {study['study']!r}: {warning}"


def finite(value: float) -> float | None:
    """Return an epsilon or mu; None where there is no such number."""
    return value if math.isfinite(value) else None


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
    done: dict[str, Any], after: dict[str, Any], study: Study, *, failed: bool = False,
    outside: Mapping[str, float] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Yield the lines with which a run ends: what it did, and what to look at.

    failed: Whether a fault has ended it, which says itself why nothing was done.
    outside: As `Progress.outside`; None or empty where nobody has counted by column.
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
    ranges = sum(kind in {"number", "count"} for kind in answered)
    if warning := cut(done, ranges, outside or {}):
        yield warning


def cut(done: dict[str, Any], ranges: int, outside: Mapping[str, float]) -> str:
    """Return a warning if many values of a column were cut; "" if not.

    ranges: How many columns with a range a record has.
    outside: As of `closing`; where it is empty, all columns are judged together.
    """
    values = done["records_used"] * ranges
    many = [f"{name} {share:.0%}" for name, share in outside.items() if share >= JUMP]
    if not outside and values and done["values_clipped"] >= JUMP * values:
        many = [f"{done['values_clipped'] / values:.0%} of those of all columns together"]
    if not values or not many:
        return ""
    return (
        "WARNING: so many values were outside their public range and cut to it: "
        f"{', '.join(many)}. Estimates are of other values than the records': the operator must "
        "see to `min` and `max` of these columns in the study's [data]"
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


_STANDING = """
    SELECT study, streams.source, next_seq, waiting, epsilon, delta, unit_records, neighbours
    FROM streams JOIN sources USING (source) WHERE study = ?"""


def costs(folder: Path, before: Sequence[str], task: Task) -> list[dict[str, Any]]:
    """Return for each client of a folder what it has spent on a source, and what a study adds.

    before: The studies whose clients are asked, the newest first: a client that was away stands at
        an older one.
    task: The study that comes: it takes the place of those, or reads their records again.

    Raises LocalStoreError if a database cannot be read; ConfigError if it is of another version.
    """
    found = []
    for client in clients_of(folder):
        with _opened(vault_path(folder, client)) as database:
            rows = [database.execute(_STANDING, (study,)).fetchone() for study in before]
            known = [row for row in rows if row is not None]
            # one that has released nothing has not moved there yet
            if row := next((row for row in known if row[2]), next(iter(known), None)):
                found.append({"client": client, **_study_cost(database, task, *row)})
    return found


def forecast(rows: Rows, task: Task, source: str, unit: Unit) -> list[Event]:
    """Return what a source's unit will have paid when a study is over, as `spent`.

    A study whose releases each pay is taken at all that it may spend.
    """
    budget, neighbours = task.budget, task.study.privacy.neighbours
    found = charges(rows, source)
    own = [charge for charge in found if charge.own and charge.study == task.study.name]
    if own and budget.scope == "record":
        return protecting(found, unit)
    # what it had cost before the first release was paid with that
    events = [budget.whole, *(() if own else budget.beforehand.values())]
    return [
        *protecting([charge for charge in found if charge not in own], unit),
        *(
            unit.convert(event, neighbours, noise_per_record=budget.noise_per_record)
            for event in events
        ),
    ]


def _study_cost(
    database: sqlite3.Connection, task: Task, study: str, source: str, releases: int, unsent: int,
    limit: float | None, delta: float, records: int, neighbours: str,
) -> dict[str, Any]:  # fmt: skip
    rows = rows_of(database)
    moved = rows("SELECT 1 FROM streams WHERE study = ? AND next_seq > 0", task.study.name)
    facts = {
        "study": study, "source": source, "releases": releases, "releases_unsent": unsent,
        "has_moved": bool(moved),
    }  # fmt: skip
    if not task.study.private or limit is None:
        # no limit holds for such a source, and the ledger refuses what has one
        return {**facts, "epsilon": None}
    unit = Unit(records, neighbours)
    then = total_epsilon(forecast(rows, task, source, unit), delta)
    return {
        **facts,
        "epsilon": {
            "spent": finite(total_epsilon(spent(rows, source, unit), delta)),
            "after": finite(then),
            "limit": limit,
            "delta": delta,
        },
        "fits": then <= limit * (1 + HAIR),
    }
