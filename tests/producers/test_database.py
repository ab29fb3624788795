"""The client's database file: one owner, one identity for ever, and clear words when it is hurt."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import AlreadyRunning, ConfigError, LocalStoreError
from pipeline.methods import task_of
from pipeline.study_file.load import parse_study
from producers.database import SCHEMA, Database
from producers.report import account_of, ledger, report
from producers.store import ClientStore, Outgoing, Tally
from tests.databases import rows, sqlite_file
from tests.stage import study_text

SOURCE = "csv:data.csv"
TASK = task_of(parse_study(study_text("one")))


def release(store: ClientStore, seq: int) -> None:
    store.release(
        TASK, SOURCE, [Outgoing(seq, b"x" * 3000, [("a", b"b")])], position=b"place %d" % seq,
        tally=Tally(20, {}, 0), now=1e9,
    )  # fmt: skip


def filled(path: Path, releases: int = 40) -> str:
    """Make a client that has released; return its ledger."""
    with ClientStore(path, "site") as store:
        store.open_stream(TASK, SOURCE)
        for seq in range(releases):
            release(store, seq)
        return store.ledger


def use(path: Path) -> None:
    """Do what a producer does with a database."""
    with ClientStore(path, "site") as store:
        stream = store.open_stream(TASK, SOURCE)
        store.waiting("one")
        store.unsent("one", -1, 100)
        release(store, stream.next_seq)


def remove(path: Path) -> None:
    for name in ("site.db", "site.db-wal", "site.db-shm"):
        path.with_name(name).unlink(missing_ok=True)


def test_a_second_holder_is_refused_and_the_first_goes_on(path: Path) -> None:
    with ClientStore(path, "site") as store:
        store.open_stream(TASK, SOURCE)
        with pytest.raises(AlreadyRunning, match="another producer"):
            ClientStore(path, "site")
        release(store, 0)
    with ClientStore(path, "site") as again:
        assert again.waiting("one") == 1


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        with ClientStore(path, "site") as store:
            store.open_stream(TASK, SOURCE)
            release(store, 0)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.glob("site.db*")}
    finally:
        os.umask(before)
    assert set(modes) >= {"site.db", "site.db-wal"}
    assert set(modes.values()) == {0o600}


def test_every_commit_is_durable(path: Path) -> None:
    """With less than FULL, a power cut takes back a release whose bytes have been published."""
    database = Database(path, "site")
    assert database.row("PRAGMA journal_mode") == ("wal",)
    assert database.row("PRAGMA synchronous") == (2,)
    database.close()


def test_a_transaction_is_all_or_nothing(path: Path) -> None:
    database = Database(path, "site")
    statement = "INSERT INTO locations VALUES (?, ?)"

    def write(*places: str) -> None:
        with database.transaction():
            for place in places:
                database.write(statement, place, "one")
            if len(places) == 1:
                raise KeyError

    with pytest.raises(LocalStoreError, match="UNIQUE"):
        write("here", "here")
    with pytest.raises(KeyError):
        write("there")
    with database.transaction():
        database.write_many(statement, [("a", "one"), ("b", "one")])
    database.close()
    assert rows(path, "SELECT location FROM locations ORDER BY 1") == [("a",), ("b",)]


def test_another_clients_file_is_refused_and_stays_usable_for_its_owner(path: Path) -> None:
    ClientStore(path, "site").close()
    with pytest.raises(ConfigError, match="belongs to client 'site', not 'other'"):
        ClientStore(path, "other")
    with ClientStore(path, "site") as store:
        assert store.client == "site"


@pytest.mark.parametrize("schema", [1, SCHEMA - 1, SCHEMA + 1])
def test_a_file_of_another_version_is_refused_and_not_changed(path: Path, schema: int) -> None:
    """Costs that are read as something else would be spent again."""
    filled(path, 2)
    with sqlite_file(path) as db:
        db.execute("UPDATE identity SET schema = ?", (schema,))
        before = list(db.iterdump())
    with pytest.raises(ConfigError, match=f"schema {schema}, this version uses {SCHEMA}"):
        ClientStore(path, "site")
    for read in (report, ledger, account_of):
        with pytest.raises(ConfigError, match=f"schema {schema}.*--export"):
            read(path)
    with sqlite_file(path) as db:
        assert list(db.iterdump()) == before


def test_a_file_that_is_no_database_gives_a_clear_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database at all" * 200)
    with pytest.raises(LocalStoreError, match="not a database"):
        ClientStore(path, "site")


def test_a_folder_that_cannot_be_used_gives_a_clear_error(path: Path) -> None:
    path.parent.parent.joinpath("clients").write_text("a file where the folder should be")
    with pytest.raises(LocalStoreError, match="VEILSTREAM_FOLDER"):
        ClientStore(path, "site")
    path.parent.unlink()
    path.mkdir(parents=True)
    with pytest.raises(LocalStoreError, match="cannot be used"):
        ClientStore(path, "site")
    path.rmdir()
    # a start that failed holds no lock
    use(path)


def test_a_file_that_lost_its_end_gives_a_clear_error(path: Path) -> None:
    filled(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(LocalStoreError):
        use(path)


def lose_everything(path: Path) -> None:
    remove(path)


def lose_the_contents(path: Path) -> None:
    os.truncate(path, 0)


def lose_to_another_ledger(path: Path) -> None:
    other = path.parent.parent / "other"
    filled(other / "site.db", 2)
    shutil.copy(other / "site.db", path)


def lose_the_rows(path: Path) -> None:
    with sqlite_file(path) as db:
        db.execute("DELETE FROM identity")
    db.close()


@pytest.mark.parametrize(
    "lose", [lose_everything, lose_the_contents, lose_to_another_ledger, lose_the_rows]
)
def test_a_folder_remembers_its_ledger_until_the_file_is_back(path: Path, lose: Any) -> None:
    """A fresh ledger would read the source from its start and noise every window again."""
    ledger = filled(path)
    kept = path.read_bytes()
    lose(path)
    for _ in range(2):  # the first refusal must not heal anything
        with pytest.raises(LocalStoreError, match=f"{ledger}.*put the file back"):
            use(path)
    remove(path)
    path.write_bytes(kept)
    use(path)
    assert rows(path, "SELECT ledger FROM identity") == [(ledger,)]
    assert rows(path, "SELECT count(*) FROM ledger") == [(41,)]


def test_a_crash_before_the_folder_remembers_keeps_the_ledger(path: Path) -> None:
    ledger = filled(path)
    lock = path.with_name("site.lock")
    for remains in (b"", None):
        if remains is None:
            lock.unlink()
        else:
            lock.write_bytes(remains)
        use(path)
        assert lock.read_bytes().split()[0] == ledger.encode()
    assert rows(path, "SELECT ledger FROM identity") == [(ledger,)]


def test_only_a_file_that_was_made_here_and_is_empty_is_removed(path: Path) -> None:
    with ClientStore(path, "site") as store:
        store.leave_nothing()
    assert not list(path.parent.iterdir())
    use(path)
    with ClientStore(path, "site") as store:  # another made it
        store.leave_nothing()
    assert path.exists()
    assert path.with_name("site.lock").exists()
    remove(path)
    path.with_name("site.lock").unlink()
    with ClientStore(path, "site") as store:  # a test of a source counts, whatever else is missing
        store.tests.refuse("study", 1, "stamp")
        store.leave_nothing()
    use(path)
    assert rows(path, "SELECT tries FROM source_tests") == [(1,)]


def test_a_removal_leaves_the_files_of_whoever_comes_in_between(path: Path) -> None:
    with ClientStore(path, "site") as store:
        path.with_name("site.lock").rename(path.with_name("old.lock"))
        with ClientStore(path, "site") as other:
            other.tests.refuse("study", 1, "stamp")
        store.leave_nothing()
    use(path)
    assert rows(path, "SELECT tries FROM source_tests") == [(1,)]


def test_clients_whose_names_look_alike_do_not_share_a_lock(path: Path) -> None:
    names = ["a", "a.b", "a.c", ".a"]
    stores = [ClientStore(path.with_name(f"{name}.db"), name) for name in names]
    for store in stores:
        store.close()
    assert len(list(path.parent.glob("*.lock"))) == len(names)
