"""What a changed study will cost the clients of a folder, before anything is spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.privacy.accounting import Unit, total_epsilon
from pipeline.privacy.events import Event
from pipeline.release.task import Task
from producers.budget import HAIR, Rows, charges, protecting, spent
from producers.database import clients_of, reading, vault_path
from producers.report import check_version, finite, rows_of

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
        with reading(vault_path(folder, client)) as database:
            check_version(database)
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
