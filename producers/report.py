"""What a client's database holds, read without disturbing its producer."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipeline.messages.spend import SpendsMessage
from pipeline.privacy.accounting import Unit, total_epsilon, total_mu
from pipeline.privacy.events import Event, NonPrivate
from pipeline.privacy.guarantee import loose_delta
from pipeline.release.task import Task
from pipeline.words import counted
from producers.budget import (
    Rows,
    as_known,
    charges,
    known,
    protecting,
    spent,
    spent_by,
    unit_in_words,
)
from producers.database import Remembered, check_schema, parsed, reading
from producers.prior_spend import account
from producers.store import absent


def report(path: Path) -> dict[str, dict[str, Any]]:
    """Return for each study what the client has read, set aside, released and spent.

    LocalStoreError if the database cannot be read; ConfigError if it is of another version.
    """
    with reading(path) as database:
        check_version(database)
        rows = database.execute(STREAMS).fetchall()
        return {row[0]: _study(database, row) for row in rows}


def ledger(path: Path) -> dict[str, dict[str, Any]]:
    """Return for each source its limit, what studies have spent of it, and what remains.

    All numbers are public: none is computed from records.

    LocalStoreError if the database cannot be read; ConfigError if it is of another version.
    """
    with reading(path) as database:
        check_version(database)
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
    with reading(path) as database:
        check_version(database)
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
    with reading(path) as database:
        check_version(database)
        return account(rows_of(database))


def check_version(database: sqlite3.Connection) -> None:
    """Refuse a database of another version; ConfigError."""
    if row := database.execute("SELECT schema FROM identity").fetchone():
        check_schema(row[0])


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
    database: sqlite3.Connection,
    source: str,
    epsilon: float | None,
    delta: float,
    records: int,
    neighbours: str,
) -> dict[str, Any]:
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
