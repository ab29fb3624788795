"""A database of an older version: what it says was spent is the same number afterwards.

`schema4` was written by the last version before costs became events: a database with studies of
every kind of cost, what an export and the ledger topic had told it, its reports and its account.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, LocalStoreError
from pipeline.messages.spends import hide, read_spends
from pipeline.privacy.accounting import event_of, mu_of_pure, total_epsilon, total_mu
from pipeline.privacy.events import Gaussian, NonPrivate, Pure
from producers import report
from producers.client_store import ClientStore
from producers.heritage import account
from producers.upgrades import SCHEMA
from producers.whole import Whole
from tests.databases import sqlite_file

OLD = Path(__file__).parent / "schema4"


def schema_3(db: sqlite3.Connection) -> None:
    for column in ("owed", "tested"):
        db.execute(f"ALTER TABLE streams DROP COLUMN {column}")


def schema_2(db: sqlite3.Connection) -> None:
    schema_3(db)
    db.execute("DROP VIEW charges")
    # it had no such study yet, and knew nothing of what was inherited
    db.execute("DELETE FROM streams WHERE study IN (SELECT study FROM spends WHERE apart)")
    db.execute("DELETE FROM ledger WHERE study IN (SELECT study FROM spends WHERE apart)")
    db.execute("DELETE FROM outbox WHERE study IN (SELECT study FROM spends WHERE apart)")
    db.execute("DELETE FROM spends WHERE apart")
    db.execute("ALTER TABLE spends DROP COLUMN apart")
    db.execute("DROP TABLE inherited")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The old database, and what its folder remembers."""
    found = tmp_path / "clients" / "site.db"
    found.parent.mkdir()
    with sqlite_file(found) as db:
        db.executescript((OLD / "database.sql").read_text())
    db.close()
    shutil.copy(OLD / "client.lock", found.with_suffix(".lock"))
    return found


def same(before: Any, after: Any, at: str = "") -> None:
    """Check that all of an old report stands in a new one, which may say more."""
    if isinstance(before, dict):
        for key, value in before.items():
            same(value, after[key], f"{at}.{key}")
    elif isinstance(before, list):
        assert len(before) == len(after), at
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            same(one, other, f"{at}[{i}]")
    elif isinstance(before, float):
        assert after == pytest.approx(before, rel=1e-12, abs=1e-12), at
    else:
        assert after == before, at


def test_every_report_is_the_same_number(path: Path) -> None:
    before = json.loads((OLD / "reports.json").read_text())
    with pytest.raises(LocalStoreError, match="start its producer once"):
        report.ledger(path)
    for _ in range(2):
        with ClientStore(path, "site") as store:
            store.heritage._db._whole.check()
        same(before["report"], report.report(path))
        same(before["ledger"], report.ledger(path))
    costs = [study["mu"] for source in before["ledger"].values() for study in source["studies"]]
    # nothing is compared with nothing
    assert sum(cost is not None for cost in costs) >= 7


def test_accounts_of_the_version_before_say_the_same(path: Path) -> None:
    with ClientStore(path, "site") as store:
        now = store.heritage.account()
        assert read_spends((OLD / "export.json").read_bytes()) == now
        assert read_spends((OLD / "topic.json").read_bytes()) == hide(now)
        # the folder knows all of it
        assert store.heritage.take_file(read_spends((OLD / "export.json").read_bytes())) == 0
    with ClientStore(path.with_name("new.db"), "site") as empty:
        told = read_spends((OLD / "export.json").read_bytes())
        assert empty.heritage.take_file(told) > 0
        for one, other in zip(told.sources, empty.heritage.account().sources, strict=True):
            assert [s.event for s in one.spends] == [s.event for s in other.spends]


def test_records_that_were_kept_to_send_sums_again_are_dropped(path: Path) -> None:
    with sqlite_file(path) as db:
        db.execute("CREATE TABLE IF NOT EXISTS kept (study, seq, records, window)")
        db.execute("INSERT INTO kept VALUES ('one', 0, 1, x'00')")
    db.close()
    for _ in range(2):
        with ClientStore(path, "site") as store:
            store.heritage._db._whole.check()
    with sqlite_file(path) as db:
        assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'kept'").fetchall()
    db.close()


@pytest.mark.parametrize("older", [schema_3, schema_2])
def test_older_schemas_come_by_the_same_way(path: Path, older: Any) -> None:
    with sqlite_file(path) as db:
        older(db)
        [(spent,)] = db.execute("SELECT count(*) FROM spends").fetchall()
        db.execute("UPDATE identity SET schema = ?", (int(older.__name__[-1]),))
    db.close()
    before = json.loads((OLD / "reports.json").read_text())["ledger"]
    with ClientStore(path, "site") as store:
        store.heritage._db._whole.check()
        assert store.peek("one").next_seq == 2
    with sqlite_file(f"file:{path}?mode=ro", uri=True) as db:
        assert db.execute("SELECT count(*) FROM spends").fetchall() == [(spent,)]
        assert db.execute("SELECT schema FROM identity").fetchall() == [(SCHEMA,)]
    db.close()
    # a source of which nothing was dropped
    kept = "csv:p.csv" if older is schema_3 else "csv:c.csv"
    same(before[kept]["spent"], report.ledger(path)[kept]["spent"])


def test_an_upgrade_that_fails_changes_nothing(path: Path) -> None:
    with sqlite_file(path) as db:
        # a cost that is no number: a hand was at it
        db.execute("UPDATE inherited SET mu = 'much' WHERE study = 'told'")
    db.close()
    dump = contents(path)
    with pytest.raises(LocalStoreError):
        ClientStore(path, "site")
    assert contents(path) == dump


def test_an_unknown_event_is_refused_and_never_counted_as_nothing(path: Path) -> None:
    ClientStore(path, "site").close()
    for table, study in (("spends", "one"), ("inherited", "told")):
        copy = path.with_name(f"{table}.db")
        shutil.copy(path, copy)
        with sqlite_file(copy) as db:
            event = json.dumps({"kind": "subsampled/1", "rate": 0.1})
            db.execute(f"UPDATE {table} SET event = ? WHERE study = ?", (event, study))  # noqa: S608
            # as a version that knows it would have
            Whole(db).settle()
        db.close()
        with pytest.raises(LocalStoreError, match=r"'subsampled/1'.*use the version"):
            report.ledger(copy)
        with (
            ClientStore(copy, "site") as store,
            pytest.raises(LocalStoreError, match=r"'subsampled/1'.*use the version"),
        ):
            account(store.heritage._db.rows)


def test_a_newer_or_a_truncated_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    with sqlite_file(path) as db:
        db.execute("UPDATE identity SET schema = ?", (SCHEMA + 1,))
    db.close()
    with pytest.raises(ConfigError, match=f"schema {SCHEMA + 1}.*use the version"):
        ClientStore(path, "site")
    with pytest.raises(LocalStoreError, match=f"schema {SCHEMA + 1}.*use the version"):
        report.ledger(path)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(LocalStoreError, match=r"damaged|cannot be used"):
        ClientStore(path, "site")
    assert path.read_bytes()[:4096] == whole[:4096]


def test_a_copy_that_lacks_a_spend_is_refused_after_the_upgrade(path: Path) -> None:
    """A copy that was under way has rows of two states; none of them is forgiven."""
    with sqlite_file(path) as db:
        db.execute("DELETE FROM spends WHERE study = 'one'")
    db.close()
    with pytest.raises(LocalStoreError, match="'one': the spends has gaps"):
        ClientStore(path, "site")


def test_releases_that_wait_are_counted_once_for_all(path: Path) -> None:
    """The version before had no count of them, and no sum of its tables."""
    with ClientStore(path, "site") as store:
        waiting = {study: store.waiting(study) for study in ("one", "two")}
    before = contents(path)
    with sqlite_file(path) as db:
        for column in ("held", "follows", "waiting"):
            db.execute(f"ALTER TABLE streams DROP COLUMN {column}")
        db.execute("ALTER TABLE identity DROP COLUMN tables_sum")
        db.execute("UPDATE identity SET schema = 5")
        held = dict(db.execute("SELECT study, count(*) FROM outbox GROUP BY study").fetchall())
    db.close()
    assert held
    with ClientStore(path, "site") as store:
        assert {study: store.waiting(study) for study in held} == held
        assert {study: store.waiting(study) for study in waiting} == waiting
    assert contents(path) == before


def test_a_stored_cost_becomes_the_event_that_costs_as_much() -> None:
    assert event_of(0.3, None) == Gaussian(0.3)
    assert event_of(mu_of_pure(0.7), 0.7) == Pure(0.7)
    assert event_of(None, None) == NonPrivate()
    # no version wrote that: it is charged for both
    odd = event_of(0.1, 5.0)
    assert total_mu([odd]) > mu_of_pure(5.0)
    assert total_epsilon([odd], 1e-6) > 5.0


def contents(path: Path) -> list[str]:
    with sqlite_file(f"file:{path}?mode=ro", uri=True) as db:
        found = list(db.iterdump())
    db.close()
    return found
