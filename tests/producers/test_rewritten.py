"""Files that are rewritten or replaced while they are read; records known by the most in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, DataError
from producers.source_registry import KnownSources, Looks, head_of, looks_of
from producers.sources import open_source
from producers.sources.base import Source
from tests.stage import HEADER, lines, write_csv


def opened(path: Path, **options: bool) -> Source:
    return open_source(str(path), None, folder=path.parent, follow=True, **options)


def sort(path: Path) -> None:
    path.write_text(HEADER + "".join(sorted(path.read_text().splitlines(keepends=True)[1:])))


def truncate(path: Path) -> None:
    with path.open("r+") as file:
        file.truncate()
        file.write(HEADER + "".join(lines(60, 7)))


def awaited(source: Source) -> None:
    """Wait for more of a source, which ends it."""
    for _ in range(20):
        source.read(100, 0.2)


@pytest.mark.parametrize("rewrite", [sort, truncate])
def test_a_followed_file_that_is_rewritten_in_place_ends_before_anything_is_stored(
    tmp_path: Path, rewrite: Callable[[Path], None]
) -> None:
    path = write_csv(tmp_path / "data.csv", 40)
    source = opened(path)
    first = source.read(20, 1.0)
    source.anchored(first[-1].position)
    rewrite(path)
    # another time than it had, whatever the file system's clock
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="not what was released"):
        source.anchored(source.read(10, 1.0)[-1].position)


def test_a_longer_copy_in_the_place_of_a_followed_file_is_read_on(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "data.csv", 20)
    source = opened(path)
    assert len(source.read(100, 0.5)) == 20
    copy = tmp_path / "copy"
    copy.write_text(path.read_text() + "".join(lines(10, 3)))
    copy.replace(path)
    slots = source.read(100, 2.0) or source.read(100, 2.0)
    assert [slot.record is not None for slot in slots] == [True] * 10
    source.anchored(slots[-1].position)
    with path.open("a") as file:
        file.writelines(lines(5, 4))
    assert len(source.read(100, 2.0)) == 5


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "data.csv", 20)
    source = opened(path)
    assert len(source.read(100, 0.5)) == 20
    with path.open("a") as file:
        file.writelines(lines(7, 3))
    path.rename(tmp_path / "data.csv.1")
    path.write_text(HEADER + "".join(lines(40, 5)))
    assert len(source.read(100, 1.0)) == 7
    with pytest.raises(DataError, match="another file was put in its place"):
        awaited(source)


def test_a_short_file_in_the_place_of_a_followed_one_may_grow_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.sources.text.GRACE", 1.0)
    path = write_csv(tmp_path / "data.csv", 20)
    source, text = opened(path), path.read_text()
    assert len(source.read(100, 0.5)) == 20
    path.unlink()
    path.write_text(text[:50])
    assert source.read(100, 0.2) == []
    with path.open("a") as file:
        file.write(text[50:] + "".join(lines(3, 3)))
    assert len(source.read(100, 1.0)) == 3
    path.unlink()
    path.write_text(text[:50])
    with pytest.raises(DataError, match="another file was put in its place"):
        awaited(source)


def looks(path: Path) -> Looks:
    return looks_of(str(path), follow=False)


def known(folder: Path) -> KnownSources:
    return KnownSources(folder)


def check(register: KnownSources, client: str, path: Path) -> None:
    register.check(client, path.name, looks(path), releases=True, other_data=False)


def test_sources_that_share_their_first_records_alone_share_records(tmp_path: Path) -> None:
    register, same = known(tmp_path), list(lines(600, 1))
    for name, seed in (("one.csv", 2), ("two.csv", 3)):
        (tmp_path / name).write_text(HEADER + "".join(same) + "".join(lines(1000, seed)))
    check(register, "a", tmp_path / "one.csv")
    with pytest.raises(ConfigError, match="the same first 512 records"):
        check(register, "b", tmp_path / "two.csv")


@pytest.mark.parametrize(("equal", "refused"), [(8, False), (64, False), (300, True)])
def test_records_that_are_all_alike_are_no_sign_but_where_there_are_many(
    tmp_path: Path, equal: int, refused: bool
) -> None:
    register, same = known(tmp_path), [next(iter(lines(1, 1)))] * equal
    for name, seed in (("one.csv", 2), ("two.csv", 3)):
        (tmp_path / name).write_text(HEADER + "".join(same) + "".join(lines(1000, seed)))
    check(register, "a", tmp_path / "one.csv")
    if refused:
        with pytest.raises(ConfigError, match="the same first 256 records"):
            check(register, "b", tmp_path / "two.csv")
    else:
        check(register, "b", tmp_path / "two.csv")


def test_tests_of_records_are_counted_whatever_they_are_called(tmp_path: Path) -> None:
    register = known(tmp_path)
    one, other = write_csv(tmp_path / "one.csv", 100), tmp_path / "other.csv"
    other.write_text(HEADER + "".join(lines(100, 9)))
    copy = tmp_path / "copy.csv"
    copy.write_text(one.read_text() + "".join(lines(50, 8)))
    register.refused("study", looks(one))
    assert [register.tested("study", looks(path)) for path in (one, copy, other)] == [1, 1, 0]
    register.refused("study", looks(copy))
    assert register.tested("study", looks(one)) == 2
    assert register.tested("another", looks(one)) == 0


def test_what_tells_is_how_many_records_differ(tmp_path: Path) -> None:
    same = [next(iter(lines(1, 1)))] * 40
    path = tmp_path / "data.csv"
    path.write_text(HEADER + "".join(same) + "".join(lines(100, 2)))
    assert head_of(open_source(str(path), None, folder=tmp_path)).telling == 55
