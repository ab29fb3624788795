"""A client whose database came back from an old copy releases no record a second time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.messages.release import header_of, read
from tests.stage import OPEN, PRIVATE, Stage, lines, study_text

Build = Callable[[str], Stage]
SLOTS = 20


@pytest.fixture
def build(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    made: list[Stage] = []

    def make(privacy: str) -> Stage:
        text = study_text(records=SLOTS, privacy=privacy, stream="max_in_flight_windows = 0")
        made.append(Stage(tmp_path / "stage", kafka, redis_url, text))
        made[-1].ensure_topics()
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


def grow(stage: Stage, windows: int, seed: int) -> Path:
    """Add records to the client's file; no two of them have the same load."""
    path = stage.folder / "data.csv"
    if not path.exists():
        path.write_text("heat,load,failed\n")
    with path.open("a") as file:
        file.writelines(lines(windows * SLOTS, seed))
    return path


def run(stage: Stage, *options: str) -> int:
    stage.produce("site", stage.folder / "data.csv", *options)
    return stage.code("site")


def copy(stage: Stage, *, back: bool, lock: bool) -> None:
    """Copy the client's files aside, or back over those that there are."""
    here, there = Path(stage.settings.folder) / "clients", stage.folder / "copy"
    source, target = (there, here) if back else (here, there)
    target.mkdir(exist_ok=True)
    for path in target.glob("site.db*"):
        path.unlink()
    for path in source.glob("site.*"):
        if path.suffix != ".lock" or lock:
            shutil.copy(path, target / path.name)


def numbers(stage: Stage) -> list[int]:
    return [header_of(record.value).seq for record in stage.releases()]


#: Privacy, releases before the copy, and whether the lock is copied: each of them in every run,
#: and all with all in the slow tests.
QUICK = ((PRIVATE, 3, True), (OPEN, 0, False))
CASES = [
    pytest.param(
        privacy, before, lock,
        marks=[] if (privacy, before, lock) in QUICK else [pytest.mark.slow],
        id=f"{'open' if privacy is OPEN else 'private'}-after {before}-lock {lock}",
    )
    for privacy in (PRIVATE, OPEN) for before in (0, 3) for lock in (True, False)
]  # fmt: skip


@pytest.mark.parametrize(("privacy", "before", "lock"), CASES)
def test_an_old_copy_is_refused_and_goes_on_behind_what_it_has_lost(
    build: Build, privacy: str, before: int, lock: bool
) -> None:
    stage = build(privacy)
    grow(stage, before, 1)
    assert run(stage) == 0, stage.said("site")
    copy(stage, back=False, lock=lock)
    grow(stage, 4, 2)
    assert run(stage) == 0, stage.said("site")
    sent = numbers(stage)
    assert sent == list(range(before + 4))

    copy(stage, back=True, lock=lock)
    for _ in range(2):
        assert run(stage) == 44, stage.said("site")
        assert "--skip-lost" in stage.said("site")
        assert numbers(stage) == sent
        assert stage.query("site", "SELECT next_seq FROM streams") == [(before,)]

    grow(stage, 2, 3)
    assert run(stage, "--skip-lost") == 0, stage.said("site")
    assert numbers(stage) == list(range(before + 6))
    lost = stage.query("site", "SELECT seq FROM ledger WHERE lost = 1 ORDER BY seq")
    assert lost == [(seq,) for seq in range(before, before + 4)]
    grow(stage, 1, 4)
    assert run(stage) == 0, stage.said("site")
    assert numbers(stage) == list(range(before + 7))
    if privacy == OPEN:
        _check_each_record_entered_once(stage)
    stage.worker()
    stage.caught_up()
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.diagnostics.missing) == (before + 7, 0)
    if privacy == PRIVATE:
        done = stage.run("privacy", "ledger", "site", "--json")
        [account] = json.loads(done.stdout)["site"].values()
        assert [s["releases_lost"] for s in account["studies"]] == [4]


def _check_each_record_entered_once(stage: Stage) -> None:
    """Exact sums tell: all windows are full, and no two hold the same records."""
    releases = [read(stage.task, record.value) for record in stage.releases()]
    assert all(r.header.records == SLOTS for r in releases)
    assert len({r.parts["gradient"].tobytes() for r in releases}) == len(releases)


def test_an_ordinary_restart_is_never_refused(build: Build) -> None:
    """Also after a crash with unsent releases, and while another client fills the partition."""
    stage = build(PRIVATE)
    for seed in range(3):
        grow(stage, 2, seed)
        assert run(stage) == 0, stage.said("site")
    grow(stage, 10, 9)
    stage.produce("site", stage.folder / "data.csv", "--rate", 200)
    for _ in range(3):
        stage.kill("site")
        stage.produce("site", stage.folder / "data.csv", "--rate", 200)
    stage.ended("site")
    other = stage.folder / "other.csv"
    other.write_text("heat,load,failed\n" + "".join(lines(40 * SLOTS, 50)))
    stage.produced("other", other)
    grow(stage, 1, 10)
    assert run(stage) == 0, stage.said("site")
    mine = [header_of(r.value).seq for r in stage.releases() if r.key == b"site"]
    assert sorted(set(mine)) == list(range(17))
