"""Tables as sources: SQLite, DuckDB and a real PostgreSQL, by a key that grows."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.records.batch import Columns
from producers.source_registry import compare, goes_on, looks_of
from producers.sources import kind_of, known_as, open_source
from producers.sources.base import CELLS, Slot, Source
from producers.sources.databases import DuckDb
from tests.compliance.sources import CHECKS, Case, drain, waits
from tests.postgres import postgres
from tests.producers.killed_sources import duck_connection

COLUMNS = "id BIGINT, heat DOUBLE PRECISION, failed TEXT"


class Base:
    """A database of one kind, which tests write to."""

    def __init__(self, scheme: str, place: str, connect: Callable[[], Any]) -> None:
        self.place = f"{scheme}://{place}" if scheme != "postgresql" else place
        self.follows, self.connect = scheme != "duckdb", connect

    def run(self, *statements: str) -> None:
        with closing(self.connect()) as database:
            cursor = database.cursor()
            for statement in statements:
                cursor.execute(statement)
            database.commit()

    def make(self, *ids: int, table: str = "t") -> str:
        """Make a table anew with rows of these keys; return it as a source."""
        self.run(f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} ({COLUMNS})")
        self.add(*ids, table=table)
        return self.source(table)

    def add(self, *ids: int, table: str = "t") -> None:
        self.run(*(f"INSERT INTO {table} VALUES ({at}, {at}.5, 'yes')" for at in ids))  # noqa: S608

    def source(self, table: str, key: str = "id") -> str:
        mark = "&" if "?" in self.place else "?"
        return f"{self.place}{mark}table={table}&key={key}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return the address of a PostgreSQL."""
    with postgres() as address:
        yield address


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    if request.param == "postgresql":
        uri = request.getfixturevalue("server")
        return Base("postgresql", uri, lambda: adbc_driver_postgresql.dbapi.connect(uri))
    connect = {"sqlite": sqlite3.connect, "duckdb": duck_connection}[request.param]
    return Base(request.param, str(tmp_path / "a.db"), lambda: connect(str(tmp_path / "a.db")))


@pytest.fixture
def lite(tmp_path: Path) -> Base:
    return Base("sqlite", str(tmp_path / "a.db"), lambda: sqlite3.connect(tmp_path / "a.db"))


def source(
    spec: str, position: bytes | None = None, *, follow: bool = False, said: list[str] | None = None
) -> Source:
    say = [].append if said is None else said.append
    return open_source(spec, position, folder=Path(), follow=follow, say=say)


def keys(slots: list[Slot]) -> list[object]:
    return [slot.record["id"] for slot in slots if slot.record]


def test_a_table_keeps_what_every_source_must(base: Base) -> None:
    spec = base.make(-3, 1, 2, 7, 9)
    for check in CHECKS:
        check(Case(lambda position: source(spec, position)))


def test_rows_come_by_their_key_whatever_their_order(base: Base) -> None:
    spec = base.make(9, 1, 7, 2)
    slots = drain(source(spec))
    assert [slot.record for slot in slots] == [
        {"id": key, "heat": key + 0.5, "failed": "yes"} for key in (1, 2, 7, 9)
    ]
    base.add(10, 12)
    assert keys(drain(source(spec, slots[-1].position))) == [10, 12]


def test_it_ends_at_what_was_there_at_the_start_and_follows_when_asked(base: Base) -> None:
    spec = base.make(1, 2)
    if not base.follows:
        with pytest.raises(DataError, match="without --follow"):
            source(spec, follow=True)
        return
    bounded, following = source(spec), source(spec, follow=True)
    base.add(5)
    assert keys(drain(bounded)) == [1, 2]
    found: list[Slot] = []
    while len(found) < 3:
        found += following.read(10, 1.0)
    assert keys(found) == [1, 2, 5]
    assert not following.ended
    assert following.progress is None
    assert waits(following)
    following.close()


def test_rows_that_came_behind_the_key_are_told_and_left_out_only_when_asked(base: Base) -> None:
    spec = base.make(2, 4, 6)
    position = drain(source(spec))[1].position
    base.add(1, 3)
    with pytest.raises(DataError, match=r"2 rows have come behind .* late=skip"):
        source(spec, position)
    assert keys(drain(source(f"{spec}&late=skip", position))) == [6]


@pytest.mark.parametrize(
    "change",
    [
        ["UPDATE t SET heat = 0 WHERE id = 1"],
        ["DELETE FROM t WHERE id = 2"],
        ["UPDATE t SET id = id + 100"],
        ["DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (0, 0, 'no')"],
    ],
)
def test_rows_that_were_read_and_are_not_what_they_were_end_it_unless_the_source_says_so(
    change: list[str], lite: Base
) -> None:
    spec = lite.make(1, 2, 3)
    first = source(spec)
    position = first.anchored(first.read(2, 1.0)[-1].position)
    first.close()
    said: list[str] = []
    assert keys(drain(source(spec, position, said=said))) == [3]
    assert said == []
    lite.run(*change)
    with pytest.raises(DataError, match=r"changed or removed .* changed=skip"):
        source(spec, position)
    with closing(source(f"{spec}&changed=skip", position, said=said)):
        assert "released a second time" in said[0]


def test_rows_that_were_read_may_be_removed_where_the_source_says_so(base: Base) -> None:
    spec = base.make(1, 2, 3) + "&changed=skip"
    position = drain(source(spec))[1].position
    base.run("DELETE FROM t WHERE id < 3")
    rest = drain(source(spec, position))
    assert keys(rest) == [3]
    base.run("DELETE FROM t")
    assert drain(source(spec, rest[0].position)) == []


def test_a_table_that_is_filled_anew_while_it_is_followed_ends_it(lite: Base) -> None:
    with closing(source(lite.make(1, 2), follow=True)) as following:
        assert keys(following.read(9, 1.0)) == [1, 2]
        lite.run("UPDATE t SET id = id + 100")
        with pytest.raises(DataError, match="changed=skip"):
            following.read(9, 1.0)


AGAIN = "INSERT INTO t SELECT id + {}, heat, failed FROM t WHERE id < 1000"
ANEW = (["UPDATE t SET id = id + 1000"], [AGAIN.format(5000), "DELETE FROM t WHERE id < 1000"])


@pytest.mark.parametrize(
    ("change", "kept"), [(ANEW[0], 100), (ANEW[1], 64), ([AGAIN.format(1000)], 100)]
)
def test_a_table_that_is_filled_anew_under_new_keys_is_known_by_its_first_rows(
    change: list[str], kept: int, base: Base
) -> None:
    spec = base.make(*range(kept)) + "&changed=skip"
    needed = ["heat", "failed"]
    with closing(open_source(spec, None, folder=Path(), columns=needed)) as first:
        position = first.anchored(first.read(200, 1.0)[-1].position)
    base.run(*change)
    with (
        closing(open_source(spec, position, folder=Path(), columns=needed)) as anew,
        pytest.raises(DataError, match=r"filled anew under new keys.* again=skip"),
    ):
        anew.read(9, 1.0)
    again = open_source(f"{spec}&again=skip", position, folder=Path(), columns=needed)
    assert len(drain(again)) == kept


@pytest.mark.parametrize("rows", ["new", "few", "alike"])
def test_rows_that_come_again_by_chance_or_in_turn_are_no_table_filled_anew(
    rows: str, lite: Base
) -> None:
    count = 50 if rows == "few" else 120
    spec = lite.make(*range(count))
    if rows == "alike":
        lite.run("UPDATE t SET heat = id % 40")
    with closing(source(spec)) as first:
        position = first.anchored(first.read(200, 1.0)[-1].position)
    lite.run(AGAIN.format(1000))
    if rows == "new":
        lite.run("UPDATE t SET heat = -heat WHERE id = 1063")
    assert len(drain(source(spec, position))) == count


def test_a_table_is_known_elsewhere_under_other_keys(base: Base) -> None:
    known = looks_of(base.make(*range(8)), follow=False)
    base.make(table="u")
    base.run("INSERT INTO u SELECT id + 70, heat, failed FROM t")
    assert compare(looks_of(base.source("u"), follow=False).marks, known.marks) == 8
    base.run("UPDATE u SET heat = 0 WHERE id = 71")
    assert compare(looks_of(base.source("u"), follow=False).marks, known.marks) == 0
    # a register of before has marks of whole rows, and a file without keys has no others
    for kept in (0, 1):
        assert compare(known.marks, {n: m.split("/")[kept] for n, m in known.marks.items()}) == 8


def test_what_a_driver_says_of_rows_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    base = Base("duckdb", str(path), lambda: duck_connection(str(path)))
    base.run(
        "CREATE TABLE raw AS SELECT 1 AS id, 'S3CRET' AS x",
        "CREATE VIEW t AS SELECT id, CAST(x AS DOUBLE) AS x FROM raw",
    )
    with pytest.raises(DataError, match=r"cannot be read \(ConversionException\)") as caught:
        drain(source(base.source("t")))
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("INSERT INTO t VALUES (2, 0, 'no')", "is there twice"),
        ("INSERT INTO t VALUES (NULL, 0, 'no')", "is missing in a row"),
    ],
)
def test_a_key_that_does_not_grow_is_refused(statement: str, why: str, base: Base) -> None:
    spec = base.make(1, 2, 3)
    base.run(statement)
    with pytest.raises(DataError, match=rf"its key 'id' {why}; the data owner"):
        drain(source(spec))


def test_a_key_of_no_whole_numbers_is_refused(base: Base) -> None:
    base.make(1, 2)
    with pytest.raises(DataError, match="its key 'heat' is no whole number"):
        drain(source(base.source("t", "heat")))
    with pytest.raises(DataError, match="no column 'no'"):
        source(base.source("t", "no"))


def test_a_table_that_is_not_there_or_empty(base: Base) -> None:
    spec = base.make()
    opened = source(spec)
    assert (opened.ended, opened.progress, opened.columns) == (True, 1.0, ["id", "heat", "failed"])
    opened.close()
    with pytest.raises(DataError, match=r"cannot be read .* the data owner"):
        source(base.source("nothing"))


def test_names_are_quoted(base: Base) -> None:
    base.make(1, table='"a b""; DROP TABLE t; --"')
    spec = base.source("a%20b%22;%20DROP%20TABLE%20t;%20--")
    assert keys(drain(source(spec))) == [1]


@pytest.mark.parametrize("wrong", [b"{}", b"\xff", b'{"kind":"sql","name":"sql:o","key":1}'])
def test_a_position_of_another_source_is_refused(wrong: bytes, lite: Base) -> None:
    with pytest.raises(DataError, match="not one of this table"):
        source(lite.make(1), wrong)


def test_a_smaller_key_that_is_committed_late_is_waited_for(server: str) -> None:
    base = Base("postgresql", server, lambda: adbc_driver_postgresql.dbapi.connect(server))
    spec = base.make(1)
    with closing(base.connect()) as late, late.cursor() as cursor:
        following = source(spec, follow=True)
        assert keys(following.read(9, 1.0)) == [1]
        cursor.execute("INSERT INTO t VALUES (2, 0, 'no')")
        base.add(3)
        assert [following.read(9, 0.6) for _ in range(2)] == [[], []]
        bounded = source(spec)
        assert (bounded.read(9, 0.0), bounded.ended) == ([], False)
        late.commit()
        assert keys(drain(bounded)) == [1, 2, 3]
    found: list[Slot] = []
    while len(found) < 2:
        found += following.read(9, 1.0)
    assert keys(found) == [2, 3]
    following.close()


def test_a_poisoned_row_takes_no_other_with_it(lite: Base) -> None:
    spec = lite.make(1, 2, 3)
    lite.run("UPDATE t SET failed = CAST(x'ff' AS TEXT) WHERE id = 2")
    with closing(lite.connect()) as database:
        database.execute("UPDATE t SET failed = ? WHERE id = 3", ["n" * 10**7])
        database.commit()
    slots = drain(source(spec))
    assert keys(slots) == [1, 2, 3]
    assert all(len(slot.position) < 200 for slot in slots)


@pytest.mark.parametrize(
    "spec",
    [
        "sqlite://?table=t&key=id",
        "sqlite://a.db",
        "sqlite://a.db?table=t",
        "sqlite://a.db?table=a..b&key=id",
        "sqlite://a.db?table=t&key=id&key=x",
        "sqlite://a.db?table=t&key=id&changed=yes",
        "duckdb://a.db?table=t&key=id&other=1",
        "postgresql://host/?table=t",
    ],
)
def test_what_names_no_table_is_refused_with_the_form_that_does(spec: str) -> None:
    with pytest.raises(DataError, match=r"must write sqlite://FILE"):
        known_as(spec)


@pytest.mark.parametrize(
    "place", ["u:s3cret@host/db?", "host/db?password=s3cret&", "host/db?%70assword=s3cret&"]
)
def test_a_password_is_refused_and_never_shown(place: str) -> None:
    with pytest.raises(ConfigError, match="PGPASSWORD") as caught:
        known_as(f"postgresql://{place}table=t&key=id")
    assert "s3cret" not in str(caught.value)


def test_a_table_is_known_by_its_name_its_place_and_its_rows(lite: Base, tmp_path: Path) -> None:
    spec = lite.make(1, 2, 3, 4)
    assert (known_as(spec).name, kind_of(spec)) == ("sql:t", "table")
    assert known_as(spec).location == f"sqlite://{tmp_path}/a.db?table=t"
    remote = "postgresql://me@host:1/db?sslmode=require&table=a.t&key=id"
    assert known_as(remote).location == "postgresql://host:1/db?table=a.t"
    looks = looks_of(spec, follow=False)
    assert (looks.inode, list(looks.marks)) == (None, [4])


@pytest.mark.parametrize("missing", ["duckdb", "adbc_driver_postgresql.dbapi"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.db").touch()
    monkeypatch.setitem(sys.modules, missing, None)
    place = f"{tmp_path}/a.db" if missing == "duckdb" else "host/db"
    with pytest.raises(ConfigError, match=r"veilstream\[sql\]"):
        source(f"{missing.removeprefix('adbc_driver_').split('.')[0]}://{place}?table=t&key=id")


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("x,y\n1,2\n" * 400)
    for scheme in ("sqlite", "duckdb"):
        with pytest.raises(DataError, match=r"cannot be read"):
            source(f"{scheme}://{tmp_path}/a.db?table=t&key=id")
        with pytest.raises(DataError, match="no such file"):
            source(f"{scheme}://{tmp_path}/no.db?table=t&key=id")


def test_changes_that_leave_the_columns_of_a_study_alone_change_no_rows(base: Base) -> None:
    spec = base.make(1, 2, 3)
    base.run("ALTER TABLE t ADD COLUMN extra INTEGER")
    needed = ["heat", "failed"]
    with closing(open_source(spec, None, folder=Path(), columns=needed)) as first:
        position = first.anchored(first.read(2, 1.0)[-1].position)
    for change in (
        "ALTER TABLE t ADD COLUMN note TEXT",
        "UPDATE t SET extra = 7",
        "ALTER TABLE t RENAME COLUMN extra TO other",
        "ALTER TABLE t DROP COLUMN other",
    ):
        base.run(change)
        # also for a study that follows, and reads other columns
        for columns in (needed, ["heat"]):
            again = open_source(spec, position, folder=Path(), columns=columns)
            assert [slot.record["heat"] for slot in drain(again)] == [3.5], change  # type: ignore[index]
    base.run("UPDATE t SET heat = 9 WHERE id = 2")
    for columns in (needed, ["heat"]):
        with pytest.raises(DataError, match="changed or removed"):
            open_source(spec, position, folder=Path(), columns=columns)


def test_a_table_whose_schema_has_grown_is_no_other_one(base: Base) -> None:
    spec = base.make(*range(8))
    before = looks_of(spec, follow=False)
    base.run("ALTER TABLE t ADD COLUMN note TEXT")
    assert goes_on(before, looks_of(spec, follow=False))


@pytest.mark.parametrize("text", ["infinity", pytest.param("20000-01-01", marks=pytest.mark.slow)])
def test_a_time_beyond_the_years_of_python_costs_no_row(text: str, base: Base) -> None:
    spec = base.make(1, 2, 3)
    for kind in ("DATE", "TIMESTAMP", "TIMESTAMPTZ"):
        base.run(f"ALTER TABLE t ADD COLUMN a_{kind} {kind}", f"UPDATE t SET a_{kind} = '{text}'")  # noqa: S608
        looks_of(spec, follow=False)
    assert [slot.record["heat"] for slot in drain(source(spec))] == [1.5, 2.5, 3.5]  # type: ignore[index]
    found = open_source(spec, None, folder=Path(), columns=["heat"])
    assert drain(found)[0].record == {"id": 1, "heat": 1.5}


def test_tables_of_many_columns_are_read_in_small_pieces(lite: Base) -> None:
    """They are in memory, however many rows and columns there are."""
    wide = ", ".join(f"id * 0.5 AS c{at}" for at in range(400))
    ids = "WITH RECURSIVE n(id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM n WHERE id < 6000)"
    lite.run(f"CREATE VIEW wide AS {ids} SELECT id, {wide} FROM n")  # noqa: S608
    sizes = [len(piece) for piece in pieces_of(source(lite.source("wide")))]
    assert (sum(sizes), max(sizes)) == (6000, CELLS // 401)


def pieces_of(src: Source) -> Iterator[Sequence[Slot]]:
    with closing(src):
        while not src.ended:
            yield src.read(10**6, 1.0)


def test_ranges_of_keys_fit_dense_sparse_and_unordered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query asks for more rows than it may, and no row is passed over."""
    monkeypatch.setattr("producers.sources.sql.FETCH", 16)
    path = str(tmp_path / "a.db")
    spec = Base("duckdb", path, lambda: duck_connection(path)).make()
    wanted = [*range(-400, 0), 5, 10**6, *range(10**9, 10**9 + 9000, 3), 2**62]
    with closing(duck_connection(path)) as database:
        rows = ", ".join(f"({key}, 0.5, 'yes')" for key in reversed(wanted))
        database.execute(f"INSERT INTO t VALUES {rows}")  # noqa: S608
    sizes, fetched = list[int](), DuckDb._batch

    def seen(database: DuckDb, statement: str) -> Columns:
        found = fetched(database, statement)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(DuckDb, "_batch", seen)
    pieces = [keys(list(piece)) for piece in pieces_of(source(spec))]
    assert [key for piece in pieces for key in piece] == wanted
    # the row before, one that says whether a key comes twice, and one that there are more
    assert 16 * 16 < max(sizes) <= 16 * 64 + 3
    again = source(spec, source(spec).read(700, 1.0)[-1].position)
    assert keys(drain(again))[0] == wanted[wanted.index(pieces[0][-1]) + 1]
