"""What a client's database holds, read without disturbing its producer."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from pipeline.errors import LocalStoreError


def report(path: Path) -> dict[str, dict[str, Any]]:
    """Return for each study what the client has read, set aside, released and spent.

    Raises
    ------
    LocalStoreError
        If the database cannot be read.
    """
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            rows = database.execute(
                "SELECT study, revision, source, next_seq, records, rejected, clipped FROM streams"
            ).fetchall()
            return {row[0]: _study(database, row) for row in rows}
        finally:
            database.close()
    except sqlite3.Error as error:
        raise LocalStoreError(f"the client database cannot be read ({error})") from error


def _study(database: sqlite3.Connection, row: tuple[Any, ...]) -> dict[str, Any]:
    study, revision, source, next_seq, records, rejected, clipped = row
    waiting = database.execute("SELECT count(*) FROM outbox WHERE study = ?", (study,))
    limit = database.execute("SELECT epsilon, delta FROM sources WHERE source = ?", (source,))
    spent = database.execute(
        "SELECT mechanism, epsilon, delta, max(mu) FROM ledger WHERE study = ?", (study,)
    )
    reasons = database.execute("SELECT reason, count FROM rejects WHERE study = ?", (study,))
    refusals = database.execute("SELECT count(*) FROM refusals WHERE study = ?", (study,))
    mechanism, epsilon, delta, mu = spent.fetchone()
    return {
        "revision": revision,
        "source": source,
        "records_used": records,
        "records_set_aside": rejected,
        "reasons": dict(reasons.fetchall()),
        "values_clipped": clipped,
        "releases": next_seq,
        "releases_unsent": waiting.fetchone()[0],
        "spent": {"mechanism": mechanism, "epsilon": epsilon, "delta": delta, "mu": mu},
        "limit_of_source": limit.fetchone(),
        "refusals": refusals.fetchone()[0],
    }
