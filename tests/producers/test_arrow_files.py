"""Parquet and Arrow files, and folders of them: where they resume, and what is told."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from producers.source_registry import looks_of
from producers.sources import kind_of, known_as, open_source
from producers.sources.base import CELLS, Slot, Source
from tests.compliance.sources import CHECKS, Case, drain, some, waits

ROWS = [{"x": number, "y": f"n{number}"} for number in range(11)]


def table(first: int, last: int) -> pa.Table:
    return pa.Table.from_pylist(ROWS[first:last], pa.schema({"x": pa.int64(), "y": pa.string()}))


def parquet(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path, row_group_size=2)


def arrow(path: Path, rows: pa.Table) -> None:
    with pa.ipc.new_file(str(path), rows.schema) as file:
        file.write_table(rows, max_chunksize=2)


def arrow_whole(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), rows.schema) as file:
        file.write_table(rows)


def folder(at: Path) -> Path:
    """Return a folder whose files hold ROWS, with one that is empty and one that is hidden."""
    made = at / "day"
    (made / "b").mkdir(parents=True)
    parquet(made / "a.parquet", table(0, 5))
    arrow(made / "b" / "1.arrow", table(5, 6))
    parquet(made / "b" / "2.parquet", table(6, 6))
    arrow(made / "c.feather", table(6, 11))
    (made / "d.parquet.tmp").write_bytes(b"half")
    (made / "_e.parquet").write_bytes(b"half")
    return made


def source(spec: object, position: bytes | None = None, *, follow: bool = False) -> Source:
    return open_source(str(spec), position, folder=Path(), follow=follow)


def of_one(write: Callable[[Path, pa.Table], None], name: str) -> Callable[[Path], str]:
    def made(at: Path) -> str:
        write(at / name, table(0, 11))
        return str(at / name)

    return made


def of_store(at: Path) -> str:
    made = f"memory://{at.name}/day/"
    fsspec.filesystem("memory").put(f"{folder(at)}/", made, recursive=True)
    return made


PLACES: dict[str, Callable[[Path], str]] = {
    "parquet": of_one(parquet, "a.parquet"),
    "arrow": of_one(arrow, "a.arrow"),
    "folder": lambda at: f"{folder(at)}/",
    "store": of_store,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_files_keep_what_every_source_must(
    check: Callable[[Case], None], place: str, tmp_path: Path
) -> None:
    spec = PLACES[place](tmp_path)
    check(Case(lambda position: source(spec, position)))


@pytest.mark.parametrize("place", PLACES)
def test_records_come_in_the_order_of_the_names(place: str, tmp_path: Path) -> None:
    assert [slot.record for slot in drain(source(PLACES[place](tmp_path)))] == ROWS


def test_files_that_come_later_are_read_when_it_follows_or_starts_again(tmp_path: Path) -> None:
    made = folder(tmp_path)
    following = source(f"{made}/", follow=True)
    found = some(following, 11)
    assert (len(found), following.read(1, 0.0), following.progress) == (11, [], None)
    assert waits(following)
    (made / "a.parquet").unlink()
    parquet(made / "d.parquet", table(0, 2))
    new: Sequence[Slot] = []
    while not new:
        new = following.read(5, 2.0)
    assert [slot.record for slot in new] == ROWS[:2]
    assert not following.ended
    assert drain(source(f"{made}/", found[-1].position)) == new


def test_a_file_that_comes_before_what_was_read_is_told(tmp_path: Path) -> None:
    made = folder(tmp_path)
    position = drain(source(f"{made}/"))[7].position
    parquet(made / "b" / "0.parquet", table(0, 2))
    with pytest.raises(DataError, match=r"1 files have come before .* the data owner"):
        source(f"{made}/", position)


@pytest.mark.parametrize("copied", [False, True])
def test_a_file_that_was_read_is_known_again_under_a_later_name(
    copied: bool, tmp_path: Path
) -> None:
    made = folder(tmp_path)
    following = source(f"{made}/", follow=True)
    found = some(following, 11)
    first = made / "a.parquet"
    (shutil.copy if copied else shutil.move)(first, made / "e.parquet")
    for wait in (lambda: following.read(5, 3.0), lambda: source(f"{made}/", found[-1].position)):
        with pytest.raises(DataError, match=r"e\.parquet: it is a file that was read"):
            wait()
    (made / "e.parquet").unlink()
    parquet(made / "f.parquet", table(0, 2).take([1, 0]))
    assert len(drain(source(f"{made}/", found[-1].position))) == 2


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_file_of_the_same_size_with_other_rows_is_not_what_it_was(
    write: Callable[[Path, pa.Table], None], tmp_path: Path
) -> None:
    made = tmp_path / "a.arrow"
    write(made, table(0, 10))
    size = made.stat().st_size
    position = drain(source(made))[4].position
    write(made, table(0, 10).take(list(reversed(range(10)))))
    assert made.stat().st_size == size
    with pytest.raises(DataError, match="is not what it was"):
        source(made, position)


def test_a_file_that_was_read_to_its_end_and_written_anew_is_told(tmp_path: Path) -> None:
    made, said = tmp_path / "a.parquet", list[str]()
    parquet(made, table(0, 3))
    position = drain(source(made))[-1].position
    for rows, told in ((table(0, 3), 0), (table(0, 5), 1)):
        parquet(made, rows)
        opened = open_source(str(made), position, folder=Path(), say=said.append)
        assert drain(opened) == []
        assert len(said) == told
    assert "a file of their own" in said[0]


@pytest.mark.parametrize("change", ["written", "gone"])
def test_the_file_that_was_left_in_its_middle_must_be_what_it_was(
    change: str, tmp_path: Path
) -> None:
    made = folder(tmp_path)
    position = drain(source(f"{made}/"))[7].position
    (made / "c.feather").unlink()
    if change == "written":
        arrow(made / "c.feather", table(5, 11))
    with pytest.raises(DataError, match=r"c\.feather was released from and is not what it was"):
        source(f"{made}/", position)


@pytest.mark.parametrize("wrong", [b"{}", b"\xff", b'{"kind":"arrow","name":"arrow:other"}'])
def test_a_position_of_another_source_is_refused(wrong: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not one of these files"):
        source(f"{folder(tmp_path)}/", wrong)


def test_another_format_in_the_middle_ends_it_before_that_file_and_it_goes_on(
    tmp_path: Path,
) -> None:
    made = folder(tmp_path)
    (made / "b" / "3.parquet").write_text("x,y\n1,2\n")
    opened = source(f"{made}/")
    found = some(opened, 6)
    with pytest.raises(DataError, match=r"b/3\.parquet: it is not a Parquet or Arrow file"):
        opened.read(100, 1.0)
    parquet(made / "b" / "3.parquet", table(0, 1))
    rest = drain(source(f"{made}/", found[-1].position))
    assert [slot.record for slot in [*found, *rest]] == [*ROWS[:6], ROWS[0], *ROWS[6:]]


def test_a_damaged_part_is_told_and_what_lies_before_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": list(range(4000))}), path, row_group_size=1000, compression="none",
        use_dictionary=False, write_page_checksum=True,
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    at = data.index((2500).to_bytes(8, "little") + (2501).to_bytes(8, "little"))
    data[at] ^= 1
    path.write_bytes(data)
    opened = source(path)
    found = some(opened, 2000)
    with pytest.raises(DataError, match=r"a part of it is damaged; the data owner"):
        opened.read(1000, 1.0)
    assert [slot.record["x"] for slot in found if slot.record] == list(range(2000))


@pytest.mark.parametrize("spec", ["no.parquet", "no/", "memory://nothing/here/", "odd://x/"])
def test_what_is_not_there_is_told(spec: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read .* the data owner"):
        source(spec if "://" in spec else tmp_path / spec if spec[-1] != "/" else f"{tmp_path}/no/")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    both = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    arrow(tmp_path / "a.arrow", both)
    with pytest.raises(DataError, match=r"column 'x' is there twice"):
        source(tmp_path / "a.arrow")


@pytest.mark.parametrize("missing", ["pyarrow.parquet", "fsspec.core"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = of_store(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"veilstream\[arrow\]"):
        source(spec)


def test_files_are_known_by_name_place_and_content(tmp_path: Path) -> None:
    made, store = folder(tmp_path), of_store(tmp_path / "other")
    assert (known_as(f"{made}/").name, kind_of(f"{made}/")) == ("arrow:day", "file")
    assert known_as(f"{made}/").location == str(made)
    assert known_as(store).location == store
    assert looks_of(f"{made}/", follow=False).marks == looks_of(store, follow=False).marks
    assert looks_of(store, follow=False).inode is None


def test_what_may_be_secret_in_a_url_is_neither_kept_nor_shown() -> None:
    spec = "https://t0ken@127.0.0.1:1/a/x.parquet?sig=S3CRET"
    assert known_as(spec).name == "arrow:x.parquet"
    assert known_as(spec).location == "https://127.0.0.1:1/a/x.parquet"
    assert known_as("abfs://box@account/a/").location == "abfs://box@account/a/"
    with pytest.raises(DataError) as caught:
        source(spec.replace("https:", "nowhere:"))
    assert "nowhere://127.0.0.1:1/a/x.parquet: cannot be read" in str(caught.value)
    for function in (known_as, source):
        with pytest.raises(ConfigError, match="a password has no place") as refused:
            function("https://u:S3CRET@host/x.parquet")
        assert "S3CRET" not in str(refused.value)


def test_a_signature_is_not_part_of_a_files_name(tmp_path: Path) -> None:
    at = f"{tmp_path.name}/x.parquet?sig=S3CRET"
    parquet(tmp_path / "x.parquet", table(0, 3))
    fsspec.filesystem("memory").put(str(tmp_path / "x.parquet"), at)
    slots = drain(source(f"memory://{at}"))
    assert [slot.record for slot in slots] == ROWS[:3]
    assert all(b"S3CRET" not in slot.position for slot in slots)


@pytest.mark.parametrize("write", [pq.write_table, arrow_whole], ids=["parquet", "arrow"])
def test_files_of_many_columns_are_read_in_small_pieces(
    tmp_path: Path, write: Callable[[pa.Table, Path], None]
) -> None:
    """They are in memory, however long the file."""
    column, path = pa.array(range(9000)), tmp_path / "a.parquet"
    write(pa.table({f"c{at}": column for at in range(400)}), path)
    src, sizes = source(path), list[int]()
    while not src.ended:
        sizes.append(len(src.read(10**6, 1.0)))
    src.close()
    assert (sum(sizes), max(sizes)) == (9000, CELLS // 400)
