"""A client's database, as a test looks into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def sqlite_file(path: Path | str, *, uri: bool = False) -> Iterator[sqlite3.Connection]:
    """Yield a database in one transaction, and close it.

    The context of `sqlite3` itself only commits. What it leaves open is in a cycle, with its
    statements, so it stays open, with its log, until the next look through all garbage.
    """
    with closing(sqlite3.connect(path, uri=uri)) as db, db:
        yield db


def rows(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask a client's database, also while its producer runs."""
    with sqlite_file(f"file:{path}?mode=ro", uri=True) as db:
        return db.execute(statement, values).fetchall()
