"""Records have one budget under whatever client id and name, in one folder of clients."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import feather, parquet

from pipeline.errors import ConfigError, DataError, LocalStoreError
from pipeline.methods import task_of
from pipeline.records.encoder import Encoder
from pipeline.study_file.load import parse_study
from producers.source_registry import NAME, Admission, Entry, Looks, _refusal
from producers.sources import known_as, open_source
from producers.sources.samples import STREAMED, share_rows
from producers.store import ClientStore, Outgoing, Tally
from tests.databases import sqlite_file
from tests.stage import HEADER, Stage, lent, lines, study_text, write_csv


class Folder:
    """A clients' folder, and what happens in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def run(
        self, client: str, spec: Path | str, name: str | None = None, *,
        other_data: bool = False,
    ) -> None:  # fmt: skip
        """Start a client on a source and release from it."""
        run = self.start(client, spec, name, other_data=other_data)
        run.enter()
        run.before_release()

    def start(
        self, client: str, spec: Path | str, name: str | None = None, *, other_data: bool = False
    ) -> Admission:
        name = name or known_as(str(spec)).name
        return Admission(self.path, client, name, str(spec), follow=False, other_data=other_data)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "clients")


@pytest.fixture
def first(tmp_path: Path, folder: Folder) -> Path:
    """Return a file that client north has released."""
    path = write_csv(tmp_path / "data.csv", 40)
    folder.run("north", path)
    return path


def copy(path: Path) -> Path:
    target = path.with_name("copy.csv")
    target.write_bytes(path.read_bytes())
    return target


def rename(path: Path) -> Path:
    return path.rename(path.with_name("renamed.csv"))


def hard_link(path: Path) -> Path:
    target = path.with_name("linked.csv")
    os.link(path, target)
    return target


def symbolic_link(path: Path) -> Path:
    target = path.with_name("symbolic.csv")
    target.symlink_to(path)
    return target


def grown_copy(path: Path) -> Path:
    target = copy(path)
    with target.open("a") as file:
        file.writelines(lines(500, 7))
    return target


def shorter_copy(path: Path) -> Path:
    target = path.with_name("short.csv")
    target.write_text("".join(path.read_text().splitlines(keepends=True)[:6]))
    return target


def json_lines(path: Path) -> Path:
    """Return the same records as JSON lines, with numbers and their columns in another order."""
    target = path.with_suffix(".jsonl")
    with path.open() as file:
        rows = [
            {
                name: float(row[name]) if name in ("heat", "load") else row[name]
                for name in reversed(row)
            }
            for row in csv.DictReader(file)
        ]
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return target


def other_line_ends(path: Path) -> Path:
    target = path.with_name("dos.csv")
    target.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    return target


WAYS: list[Callable[[Path], Path]] = [
    copy, rename, hard_link, symbolic_link, grown_copy, shorter_copy, json_lines, other_line_ends,
]  # fmt: skip


def test_a_second_client_on_the_same_file_is_refused(folder: Folder, first: Path) -> None:
    with pytest.raises(ConfigError, match=r"go on with --client 'north'$"):
        folder.run("south", first)
    with pytest.raises(ConfigError, match="the same file"):
        folder.run("south", first, other_data=True)
    folder.run("north", first)


def test_posted_records_that_were_a_file_are_told_by_a_way_that_listeners_have() -> None:
    entry = Entry(1, "north", "csv:a.csv", Looks("file", "a.csv", None, None, {}))
    told = str(_refusal("north", entry, "http", "the same first 9 records", certain=False))
    assert "--source-name" not in told
    assert ".input folder" in told


@pytest.mark.parametrize("way", WAYS)
def test_the_same_records_are_known_under_another_name(
    folder: Folder, first: Path, way: Callable[[Path], Path]
) -> None:
    other = way(first)
    known = "--client 'north' --source-name 'csv:data.csv'"
    with pytest.raises(ConfigError, match=f"{known}"):
        folder.run("south", other)
    with pytest.raises(ConfigError, match=r"this client .* --source-name 'csv:data.csv'"):
        folder.run("north", other)
    folder.run("north", other, "csv:data.csv")


@pytest.mark.parametrize("form", ["jsonl", "null.jsonl", "parquet", "arrow", "db"])
def test_missing_values_truth_values_and_times_are_the_same_in_every_form(
    folder: Folder, tmp_path: Path, form: str
) -> None:
    moments = [datetime(2025, 1, 1, 0, 0, n, tzinfo=UTC) for n in range(40)]
    rows: list[dict[str, Any]] = [
        {"heat": None if n % 3 else n / 8, "on": None if n % 5 == 0 else n % 2 == 0, "at": moment}
        for n, moment in enumerate(moments)
    ]
    text = [
        {**row, "heat": "" if row["heat"] is None else row["heat"], "at": row["at"].isoformat()}
        for row in rows
    ]
    with (tmp_path / "data.csv").open("w") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(text)
    folder.run("north", tmp_path / "data.csv")
    path = tmp_path / f"data.{form}"
    if "jsonl" in form:
        kept = [{k: v for k, v in {**a, "at": b["at"]}.items() if v is not None or "null" in form}
                for a, b in zip(rows, text, strict=True)]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    elif form == "db":
        values = [(row["heat"], row["on"], row["at"].isoformat()) for row in rows]
        with closing(sqlite3.connect(path)) as database, database:
            database.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, heat, "on", at)')
            database.executemany('INSERT INTO t (heat, "on", at) VALUES (?, ?, ?)', values)
    else:
        write = parquet.write_table if form == "parquet" else feather.write_feather
        write(pyarrow.Table.from_pylist(rows), path)
    spec = f"sqlite://{path}?table=t&key=id" if form == "db" else path
    with pytest.raises(ConfigError, match="the same first 32 records"):
        folder.run("south", spec)


@pytest.mark.parametrize("shared", [0, 1, 3])
def test_files_that_share_a_header_and_few_records_are_other_data(
    tmp_path: Path, folder: Folder, first: Path, shared: int
) -> None:
    rows = first.read_text().splitlines(keepends=True)[1 : 1 + shared]
    other = tmp_path / "other.csv"
    other.write_text(HEADER + "".join(rows) + "".join(lines(40, 9)))
    folder.run("south", other)


def test_a_table_is_known_by_its_place_whatever_its_rows(tmp_path: Path, folder: Folder) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER, heat REAL)")
        database.executemany("INSERT INTO t VALUES (?, 0.5)", [(at,) for at in range(40)])
        database.commit()
        spec = f"sqlite://{tmp_path}/a.db?table=t&key=id"
        folder.run("north", spec)
        database.execute("UPDATE t SET id = id + 100")
        database.commit()
    with pytest.raises(ConfigError, match=r"the same table.* --other-data"):
        folder.run("south", spec)
    folder.run("south", spec, other_data=True)


def test_that_it_is_other_data_is_said_once(tmp_path: Path, folder: Folder, first: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("".join(first.read_text().splitlines(keepends=True)[:21]) + lines(1, 9)[0])
    with pytest.raises(ConfigError, match=r"the same first 16 records.*--other-data"):
        folder.run("south", other)
    folder.run("south", other, other_data=True)
    folder.run("south", other)
    folder.run("north", first)
    with pytest.raises(ConfigError, match="'north'"):
        folder.run("east", copy(first))


def test_a_name_that_other_records_had_claims_nothing_before_a_release(
    tmp_path: Path, folder: Folder, first: Path
) -> None:
    later = tmp_path / "later" / first.name
    later.parent.mkdir()
    later.write_text(HEADER + "".join(lines(40, 9)))
    said: list[str] = []
    folder.start("north", first).enter(say=said.append)
    assert said == []
    # a start that goes no further, as the budget of the name is spent
    folder.start("north", later).enter(say=said.append)
    assert "--source-name" in said.pop()
    folder.run("north", later, "later")
    with pytest.raises(ConfigError, match="--source-name 'later'"):
        folder.run("north", later)


def test_a_short_file_is_compared_again_as_it_grows(
    tmp_path: Path, folder: Folder, first: Path
) -> None:
    rows = first.read_text().splitlines(keepends=True)
    later = tmp_path / "later.csv"
    later.write_text("".join(rows[:3]))
    run = folder.start("south", later)
    run.enter()
    run.before_release()
    later.write_text("".join(rows))
    with pytest.raises(ConfigError, match="'north'"):
        run.before_release()


def test_columns_come_before_what_other_clients_have(folder: Folder, first: Path) -> None:
    folder.run("north", first)
    study = parse_study(study_text().replace("heat =", "warmth ="))
    check = Encoder(study).check_columns
    with pytest.raises(DataError, match="no column 'warmth'"):
        folder.start("south", first).enter(check=check)


def test_of_two_that_start_at_once_one_releases(tmp_path: Path, folder: Folder) -> None:
    """Also where neither has made the register yet."""
    path = write_csv(tmp_path / "data.csv", 40)
    together, refused = threading.Barrier(2), []

    def run(client: str) -> None:
        admission = folder.start(client, path)
        admission.enter()
        together.wait(10)
        try:
            admission.before_release()
        except ConfigError:
            refused.append(client)

    threads = [threading.Thread(target=run, args=(client,)) for client in ("north", "south")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1


def test_standard_input_is_known_by_what_has_come(folder: Folder, first: Path) -> None:
    def feed(client: str, seed: int) -> None:
        run = folder.start(client, "-", "stdin:csv")
        run.enter()
        run.begins(None)
        text = first.read_bytes() if seed == 0 else (HEADER + "".join(lines(40, seed))).encode()
        place = folder.path / f"{client}-{seed}"
        source = open_source("-", None, folder=place, stream=io.BytesIO(text))
        while not source.ended:
            run.take(source.read(100, 0.2))
        source.close()
        run.before_release()

    with pytest.raises(ConfigError, match="'north'"):
        feed("south", 0)
    feed("south", 5)
    with pytest.raises(ConfigError, match=r"'south'.*'stdin:csv'"):
        feed("east", 5)
    feed("east", 6)


def test_shares_of_packaged_rows_overlap_by_arithmetic(folder: Folder) -> None:
    for k in range(8):
        folder.run(f"site-{k}", f"shuttle:{k}/8")
    for spec in ("shuttle:0/1", "shuttle:1/2", "shuttle:3/16", "shuttle:2/3"):
        with pytest.raises(ConfigError, match="they share rows"):
            folder.run("other", spec, other_data=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [((0, 1), (5, 7)), ((1, 8), (3, 8)), ((2, 6), (5, 9)), ((2, 6), (4, 9)), ((1, 4), (3, 6)),
     ((7, 300), (8, 401)), ((150, 300), (400, 401)), ((1, 16000), (2, 15999)),
     # whose first common row is the last that is streamed, or the one behind it
     *(((row % 300, 300), (row % 401, 401)) for row in (STREAMED - 1, STREAMED))],
)  # fmt: skip
def test_the_arithmetic_is_that_of_the_rows(one: tuple[int, int], other: tuple[int, int]) -> None:
    rows = [set(range(k, STREAMED, n)) for k, n in (one, other)]
    specs = ["shuttle:{}/{}".format(*share) for share in (one, other)]
    assert share_rows(*specs) == bool(rows[0] & rows[1])


def test_airlines_share_no_flights() -> None:
    assert share_rows("flights:HA", "flights:HA")
    assert not share_rows("flights:HA", "flights:OO")
    assert not share_rows("flights:HA", "shuttle:0/1")


def spend(folder: Folder, client: str, spec: Path | str, study: str = "old") -> None:
    """Write what a client of an earlier version had: a database, and no register."""
    task, name = task_of(parse_study(study_text(study))), known_as(str(spec)).name
    with ClientStore(folder.path / f"{client}.db", client) as store:
        store.open_stream(task, name, location=known_as(str(spec)).location)
        store.release(
            task, name, [Outgoing(0, b"bytes", [])], position=b"place", now=1e9,
            tally=Tally(20, {}, 0),
        )  # fmt: skip


def test_clients_of_earlier_versions_enter_together(tmp_path: Path, folder: Folder) -> None:
    paths = [write_csv(tmp_path / f"{k}.csv", 40, k) for k in range(3)]
    for k, path in enumerate(paths):
        spend(folder, f"client-{k}", path)
    folder.run("client-2", paths[2])
    with pytest.raises(ConfigError, match="'client-0'"):
        folder.run("new", copy(paths[0]))
    for k, path in enumerate(paths):
        folder.run(f"client-{k}", path)


def test_of_two_earlier_clients_with_the_same_records_the_older_goes_on(
    tmp_path: Path, folder: Folder
) -> None:
    path = write_csv(tmp_path / "data.csv", 40)
    spend(folder, "b-older", path)
    spend(folder, "a-newer", copy(path))
    with pytest.raises(ConfigError, match="'b-older'"):
        folder.start("a-newer", path.with_name("copy.csv")).enter()
    folder.run("b-older", path)


def test_a_number_that_the_system_gave_anew_is_no_sign(folder: Folder, first: Path) -> None:
    """Another file under the same path and number, with records that are others."""
    with first.open("r+") as file:
        file.write(HEADER + "".join(lines(41, 11)))
    folder.run("south", first)
    with pytest.raises(ConfigError, match="'south'"):
        folder.run("north", first, "fresh")


def test_the_register_holds_hashes_and_is_for_the_owner_alone(folder: Folder, first: Path) -> None:
    path = folder.path / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    held = path.read_bytes()
    for line in first.read_text().splitlines()[1:]:
        for value in line.split(",")[:2]:
            assert value.encode() not in held


def test_a_register_that_cannot_be_used_lets_nothing_out(folder: Folder, first: Path) -> None:
    path = folder.path / NAME
    path.write_bytes(b"no database at all, but long enough for one" * 100)
    with pytest.raises(LocalStoreError, match=r"register of sources.*nothing was spent"):
        folder.run("south", first)
    path.unlink()
    spend(folder, "north", first)
    with pytest.raises(ConfigError, match="'north'"):
        folder.run("south", first)


def test_a_crash_while_the_register_is_made_leaves_one_that_is_made_again(
    folder: Folder, first: Path
) -> None:
    path = folder.path / NAME
    path.unlink()
    path.touch(mode=0o600)
    spend(folder, "north", first)
    with pytest.raises(ConfigError, match="'north'"):
        folder.run("south", first)
    folder.run("north", first)
    with sqlite_file(path) as database:
        assert database.execute("SELECT count(*) FROM known").fetchall() == [(1,)]


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(
        Stage(tmp_path / "stage", kafka, redis_url, study_text(stream="max_in_flight_windows = 0"))
    )


def test_the_command_refuses_the_same_records_before_anything_is_bound_to_them(
    stage: Stage,
) -> None:
    """Five starts of the command, as nothing less shows that the parts are joined."""
    source = write_csv(stage.folder / "data.csv", 40)
    produce = ("produce", stage.study, "--quiet", "--source")
    assert stage.run(*produce, source, "--client", "north").returncode == 0
    done = stage.run(*produce, copy(source), "--client", "south")
    assert done.returncode == 10
    assert "--client 'north' --source-name 'csv:data.csv'" in done.stderr
    # fed, they are found out when the first window is to leave
    done = stage.run_beside(*produce, "-", "--client", "south", stdin=source.read_bytes())
    assert done.returncode == 10
    assert len(stage.releases()) == 2
    other = write_csv(stage.folder / "other.csv", 20, 5)
    assert stage.run(*produce, other, "--client", "east").returncode == 0
    stage.ran(*produce, copy(source), "--client", "north", "--source-name", "csv:data.csv")
    assert len(stage.releases()) == 3
