"""What a changed study will cost the clients of a folder, before anything is spent."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

from pipeline.privacy.accounting import Unit, total_epsilon
from pipeline.release.task import Task
from producers.charges import Rows
from producers.following import forecast, spent
from producers.ledger import HAIR
from producers.report import check_version, reading
from producers.run import clients_of, vault_path


def costs(folder: Path, before: str, task: Task) -> list[dict[str, Any]]:
    """Return for each client of a folder what it has spent on a source, and what a study adds.

    before: The study whose clients are asked.
    task: The study that comes: it takes the place of that one, or reads its records again.

    Raises LocalStoreError if a database cannot be read, or is of an older version.
    """
    found = []
    for client in clients_of(folder):
        with reading(vault_path(folder, client)) as database:
            check_version(database)
            row = database.execute(
                "SELECT streams.source, next_seq, waiting, epsilon, delta, unit_records, "
                "neighbours FROM streams JOIN sources USING (source) WHERE study = ?",
                (before,),
            ).fetchone()
            if row is not None:
                found.append({"client": client, **_cost(database, task, *row)})
    return found


def _cost(
    database: sqlite3.Connection, task: Task, source: str, releases: int, unsent: int,
    limit: float | None, delta: float, records: int, neighbours: str,
) -> dict[str, Any]:  # fmt: skip
    def rows(statement: str, *values: object) -> list[tuple[Any, ...]]:
        return database.execute(statement, values).fetchall()

    facts = {"source": source, "releases": releases, "releases_unsent": unsent}
    facts |= {"has_moved": _has_moved(rows, task.study.name)}
    if not task.study.private or limit is None:
        # no limit holds for such a source, and the ledger refuses what has one
        return {**facts, "epsilon": None}
    unit = Unit(records, neighbours)
    then = total_epsilon(forecast(rows, task, source, unit), delta)
    return {
        **facts,
        "epsilon": {
            "spent": _finite(total_epsilon(spent(rows, source, unit), delta)),
            "after": _finite(then),
            "limit": limit,
            "delta": delta,
        },
        "fits": then <= limit * (1 + HAIR),
    }


def _has_moved(rows: Rows, study: str) -> bool:
    return bool(rows("SELECT 1 FROM streams WHERE study = ? AND next_seq > 0", study))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
