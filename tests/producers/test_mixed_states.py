"""Pages of two states of a client's database: what opens is one of the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import BudgetExceeded, LocalStoreError
from pipeline.release.task import Task
from producers.budget import Limit
from producers.store import ClientStore, Outgoing, Tally
from tests.databases import sqlite_file
from tests.producers.test_release_scope import SOURCE, task_of
from tests.toy_mean import MeanTask

#: Small pages: tables have inner pages after few rows.
PAGE = 512
ONCE, EACH = task_of(name="once", made=MeanTask), task_of(name="each")


def release(store: ClientStore, task: Task, first: int, count: int = 1) -> None:
    group = [Outgoing(first + n, b"%d" % (first + n) * 40, []) for n in range(count)]
    store.release(
        task, SOURCE, group, position=b"p%d" % (first + count), now=1e9 + first,
        tally=Tally(20 * count, {"a reason": count}, 0), latest=1000 * first,
    )  # fmt: skip


def life(store: ClientStore) -> Iterator[None]:
    """Do all that changes a client's database; each step is a state."""
    store.open_stream(ONCE, SOURCE, Limit(9.0, 1e-5), event_time="at")
    store.open_stream(EACH, SOURCE, location="/data/site.csv")
    for first in range(0, 60, 4):
        release(store, ONCE, first, 4)
        yield
        store.sent("once", range(max(0, first - 8), first), (0, first))
        yield
    for seq in range(3):
        release(store, EACH, seq)
        yield
    with pytest.raises(BudgetExceeded):
        release(store, EACH, 3)
    yield
    store.open_stream(ONCE, SOURCE, Limit(5.0), event_time="at")
    yield
    store.charge_lost(ONCE, SOURCE, range(60, 64), owed=10, now=2e9, sent=(0, 99))
    yield
    store.pass_over("once", 10, b"p70")
    store.tests.refuse("once", 1, "a file")
    yield
    release(store, ONCE, 64, 2)
    yield


def contents(path: Path) -> str:
    with sqlite_file(f"file:{path}?mode=ro", uri=True) as db:
        return "\n".join(db.iterdump())


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[bytes], str]]:
    """Return the pages and the rows of each state of one client's database."""
    path, found = tmp_path_factory.mktemp("states") / "site.db", []
    with sqlite_file(path) as db:
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("VACUUM")
    with ClientStore(path, "site") as store:
        for _ in life(store):
            store.heritage._db.row("PRAGMA wal_checkpoint(TRUNCATE)")
            data = path.read_bytes()
            pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
            found.append((pages, contents(path)))
    return found


def opens(folder: Path, pages: list[bytes]) -> str | None:
    """Return what a client finds in these pages; None where it refuses them."""
    path = folder / "site.db"
    path.with_suffix(".lock").unlink(missing_ok=True)
    path.write_bytes(b"".join(pages))
    try:
        with ClientStore(path, "site"):
            pass
    except LocalStoreError:
        return None
    return contents(path)


def test_every_state_opens_as_it_was(states: list[tuple[list[bytes], str]], tmp_path: Path) -> None:
    for pages, rows in states:
        assert opens(tmp_path, pages) == rows


@pytest.mark.parametrize("later", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 7])
def test_a_page_of_another_state_is_found(
    states: list[tuple[list[bytes], str]], tmp_path: Path, later: int
) -> None:
    """As a copy has it that was made while SQLite moved pages from its log into the file."""
    tried = refused = 0
    for one, other in zip(states, states[later:], strict=False):
        for kept, strange in ((one, other), (other, one)):
            for number, page in enumerate(strange[0][: len(kept[0])]):
                if page == kept[0][number]:
                    continue
                found = opens(tmp_path, [*kept[0][:number], page, *kept[0][number + 1 :]])
                tried, refused = tried + 1, refused + (found is None)
                assert found in (None, one[1], other[1]), (number, states.index(one))
    assert tried > 200
    assert refused > tried / 2
