"""Whatever is restored, a record is noised once: old copies, searches, and slots that stay owed."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from pipeline.errors import VeilstreamError
from pipeline.messages.release import header_of, read
from producers import rollback as reconcile
from producers.report import report
from producers.start import Job, run_client
from producers.store import ClientStore, Stream
from tests.databases import sqlite_file
from tests.stage import OPEN, PRIVATE, Stage, lines, send, study_text, until
from tests.wire import edited

Build = Callable[..., Stage]
SLOTS = 10


@pytest.fixture
def build(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    made: list[Stage] = []

    def make(privacy: str = PRIVATE) -> Stage:
        text = study_text(
            records=SLOTS, partitions=1, privacy=privacy, stream="max_in_flight_windows = 0"
        )
        text = text.replace('retention = "1d"', 'retention = "forever"')
        made.append(Stage(tmp_path / "stage", kafka, redis_url, text))
        made[-1].ensure_topics()
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


def grow(stage: Stage, records: int, seed: int) -> None:
    """Add records of 2013 to the client's file; no two of them have the same load."""
    path = stage.folder / "data.csv"
    if not path.exists():
        path.write_text("heat,load,failed,at\n")
    with path.open("a") as file:
        for number, line in enumerate(lines(records, seed)):
            file.write(f"{line.rstrip()},2013-01-0{seed}T00:{number:02d}:00Z\n")


def run(stage: Stage, **options: Any) -> tuple[int, str]:
    """Run the client in this process, which takes a tenth of the time; return code and words."""
    said: list[str] = []
    options = {"client": "site", "source": str(stage.folder / "data.csv"), **options}
    job = Job(**options)
    try:
        run_client(stage.task, stage.settings, job, report=lambda *_: None, say=said.append)
    except VeilstreamError as error:
        return error.exit_code, str(error)
    return 0, "\n".join(said)


def goes(stage: Stage, **options: Any) -> str:
    code, said = run(stage, **options)
    assert code == 0, said
    return said


def refused(stage: Stage, **options: Any) -> str:
    code, said = run(stage, **options)
    assert code == 44, said
    return said


def home(stage: Stage) -> Path:
    return Path(stage.settings.folder) / "clients"


def save(stage: Stage, name: str = "saved", *, lock: bool = True) -> None:
    """Copy the whole folder of the client aside."""
    shutil.copytree(home(stage), stage.folder / name)
    if not lock:
        (stage.folder / name / "site.lock").unlink()


def restore(stage: Stage, name: str = "saved") -> None:
    shutil.rmtree(home(stage))
    shutil.copytree(stage.folder / name, home(stage))


def numbers(stage: Stage) -> list[int]:
    return [header_of(record.value).seq for record in stage.releases()]


def sums(stage: Stage) -> set[bytes]:
    return {read(stage.task, r.value).parts["gradient"].tobytes() for r in stage.releases()}


def once(stage: Stage) -> bool:
    """Exact sums tell: all windows are full, and no two hold the same records."""
    releases = [read(stage.task, record.value) for record in stage.releases()]
    assert all(r.header.records == SLOTS for r in releases)
    return len({r.parts["gradient"].tobytes() for r in releases}) == len(releases)


def copy(stage: Stage, *, back: bool, lock: bool) -> None:
    """Copy the client's own files aside, or back over those that there are."""
    here, there = home(stage), stage.folder / "copy"
    source, target = (there, here) if back else (here, there)
    target.mkdir(exist_ok=True)
    for path in target.glob("site.db*"):
        path.unlink()
    for path in source.glob("site.*"):
        if path.suffix != ".lock" or lock:
            shutil.copy(path, target / path.name)


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
    grow(stage, before * SLOTS, 1)
    goes(stage)
    copy(stage, back=False, lock=lock)
    grow(stage, 4 * SLOTS, 2)
    goes(stage)
    sent = numbers(stage)
    assert sent == list(range(before + 4))
    copy(stage, back=True, lock=lock)
    for _ in range(2):
        assert "--skip-lost" in refused(stage)
        assert numbers(stage) == sent
        assert stage.query("site", "SELECT next_seq FROM streams") == [(before,)]
    grow(stage, 2 * SLOTS, 3)
    goes(stage, skip_lost=True)
    assert numbers(stage) == list(range(before + 6))
    lost = stage.query("site", "SELECT seq FROM ledger WHERE lost = 1 ORDER BY seq")
    assert lost == [(seq,) for seq in range(before, before + 4)]
    grow(stage, SLOTS, 4)
    goes(stage)
    assert numbers(stage) == list(range(before + 7))
    assert privacy == PRIVATE or once(stage)
    stage.worker()
    stage.caught_up()
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.diagnostics.missing) == (before + 7, 0)
    if privacy == PRIVATE:
        done = stage.run("privacy", "ledger", "site", "--json")
        [account] = json.loads(done.stdout)["site"].values()
        assert [s["releases_lost"] for s in account["studies"]] == [4]


def test_an_ordinary_restart_is_never_refused(build: Build) -> None:
    """Also after a crash with unsent releases, and while another client fills the partition."""
    stage = build(PRIVATE)
    for seed in range(3):
        grow(stage, 2 * SLOTS, seed)
        goes(stage)
    grow(stage, 10 * SLOTS, 9)
    for _ in range(3):
        stage.produce("site", stage.folder / "data.csv", "--rate", 100)
        stage.kill("site")
    stage.produced("site", stage.folder / "data.csv", "--rate", 100)
    other = stage.folder / "other.csv"
    other.write_text("heat,load,failed\n" + "".join(lines(40 * SLOTS, 50)))
    goes(stage, client="other", source=str(other))
    grow(stage, SLOTS, 8)
    goes(stage)
    mine = [header_of(r.value).seq for r in stage.releases() if r.key == b"site"]
    assert sorted(set(mine)) == list(range(17))


@pytest.mark.slow
@pytest.mark.parametrize("times", ["records", "clock"])
def test_a_copy_from_before_the_first_acknowledgement_is_found_whatever_times_say(
    build: Build, times: str
) -> None:
    """Records of 2013, or a ledger that a clock far ahead has made: times tell nothing."""
    stage = build()
    options = {"event_time": "at"} if times == "records" else {}
    grow(stage, 0, 1)
    goes(stage, **options)
    if times == "clock":
        with sqlite_file(stage.database("site")) as db:
            db.execute("UPDATE identity SET created_at = created_at + 100000")
    save(stage)
    grow(stage, 3 * SLOTS, 1)
    goes(stage, **options)
    restore(stage)
    refused(stage, **options)
    assert numbers(stage) == [0, 1, 2]
    grow(stage, SLOTS, 2)
    goes(stage, skip_lost=True, **options)
    goes(stage, **options)
    assert numbers(stage) == [0, 1, 2, 3]
    # what was found in the topic is where the next search begins
    save(stage, "later", lock=False)
    grow(stage, SLOTS, 3)
    goes(stage, **options)
    restore(stage, "later")
    refused(stage, **options)
    assert numbers(stage) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_source_shorter_than_what_was_lost_stays_owed(build: Build) -> None:
    """Its rows come back later, and are not released a second time."""
    stage = build(OPEN)
    path = stage.folder / "data.csv"
    grow(stage, 0, 1)
    goes(stage)
    save(stage, lock=False)
    grow(stage, 5 * SLOTS, 1)
    whole = path.read_text().splitlines(keepends=True)
    goes(stage)

    restore(stage)
    path.write_text("".join(whole[:1]))
    said = goes(stage, skip_lost=True)
    assert f"{5 * SLOTS} record slots are still to be passed over" in said
    assert "done" not in said
    # the folder with its debt is an old copy, too, once more is lost on top
    save(stage, "in debt", lock=False)

    # without the flag, and in pieces that fill no window
    for end in (4, 3 * SLOTS + 4):
        path.write_text("".join(whole[:end]))
        left = 5 * SLOTS - end + 1
        assert f"{left} record slots are still to be passed over" in goes(stage)
        [shown] = report(stage.database("site")).values()
        assert shown["slots_still_to_pass_over"] == left
        assert numbers(stage) == list(range(5))
    # a source that grows, and a process that ends in between
    stage.produce("site", path, "--follow")
    path.write_text("".join(whole[: 4 * SLOTS + 1]))
    stage.until(
        lambda: stage.query("site", "SELECT owed FROM streams") == [(SLOTS,)], "one window left"
    )
    stage.kill("site")
    grown = whole + [f"{line.rstrip()},2013-02-01T00:00:00Z\n" for line in lines(2 * SLOTS, 7)]
    path.write_text("".join(grown))
    stage.produce("site", path, "--follow")
    stage.until(lambda: len(numbers(stage)) == 7, "the new records are released")
    stage.processes["site"].send_signal(signal.SIGTERM)
    stage.ended("site")
    assert once(stage)

    restore(stage, "in debt")
    refused(stage)
    goes(stage, skip_lost=True)
    assert stage.query("site", "SELECT next_seq, owed FROM streams") == [(7, 0)]
    path.write_text("".join(grown + [f"{line.rstrip()},0\n" for line in lines(SLOTS, 8)]))
    goes(stage)
    assert numbers(stage) == list(range(8))
    assert once(stage)


@pytest.mark.slow
def test_records_of_lost_releases_are_known_under_other_names(build: Build) -> None:
    """A folder that comes back whole brings an old register: what is passed over enters it anew."""
    stage = build()
    grow(stage, 0, 1)
    goes(stage)
    save(stage)
    grow(stage, 2 * SLOTS, 1)
    goes(stage)
    restore(stage)
    goes(stage, skip_lost=True)
    other = shutil.copy(stage.folder / "data.csv", stage.folder / "other.csv")
    code, said = run(stage, client="other", source=str(other))
    assert (code, "client 'site' has released these records" in said) == (10, True), said
    assert numbers(stage) == [0, 1]


def test_a_study_is_bound_to_a_source_by_its_first_release(build: Build) -> None:
    """Before it another source may be named; not where lost releases are to be passed over."""
    stage = build()
    grow(stage, 0, 1)
    other = str(shutil.copy(stage.folder / "data.csv", stage.folder / "other.csv"))
    goes(stage, source=other)
    save(stage)
    grow(stage, SLOTS, 1)
    goes(stage)
    code, said = run(stage, source=other)
    assert (code, "reads one source of a client" in said) == (10, True), said
    restore(stage)
    code, said = run(stage, skip_lost=True)
    assert (code, "reads one source of a client" in said) == (10, True), said


def test_releases_that_only_the_folder_remembers_are_passed_over(build: Build) -> None:
    """The topic was made anew, or retention has passed: the lock file counts each study."""
    stage = build(OPEN)
    grow(stage, SLOTS, 1)
    goes(stage)
    database = stage.folder / "old.db"
    shutil.copy(stage.database("site"), database)
    grow(stage, 2 * SLOTS, 2)
    goes(stage)
    before = sums(stage)
    shutil.copy(database, stage.database("site"))
    _make_topic_anew(stage)
    refused(stage)
    goes(stage, skip_lost=True)
    grow(stage, SLOTS, 3)
    # nothing is missing from now on
    goes(stage)
    assert numbers(stage) == [3]
    assert not before & sums(stage)


def _make_topic_anew(stage: Stage) -> None:
    name = stage.topics.releases.name
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics(), "the topic is gone")
    stage.ensure_topics()


def test_another_ledger_is_found_by_a_client_that_has_released(build: Build) -> None:
    stage = build()
    grow(stage, SLOTS, 1)
    goes(stage)
    [mine] = stage.releases()
    foreign = edited(stage.task, mine.value, ledger="0123456789abcdef")
    send(stage.settings.kafka, mine.topic, [{"key": b"site", "value": foreign}])
    assert "another ledger has released" in refused(stage)


@pytest.mark.slow
def test_a_search_goes_on_where_retention_has_cut_and_says_how_far_it_is(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = build()
    grow(stage, 3 * SLOTS, 1)
    goes(stage)
    save(stage, lock=False)
    grow(stage, 3 * SLOTS, 2)
    goes(stage)
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_records({TopicPartition(stage.topics.releases.name, 0): 5})
    # its own last release is still there: nothing to say
    assert "WARNING" not in goes(stage)
    restore(stage)
    monkeypatch.setattr(reconcile, "TELL", 0.0)
    assert "the releases topic has 6" in refused(stage)
    said = goes(stage, skip_lost=True)
    assert "no longer reaches back" in said
    assert "1 of 1 messages" in said
    assert numbers(stage) == [5]
    grow(stage, SLOTS, 3)
    assert "WARNING" not in goes(stage)
    assert numbers(stage) == [5, 6]


def test_a_search_that_is_asked_to_end_does(build: Build) -> None:
    stage = build()
    grow(stage, 3 * SLOTS, 1)
    goes(stage)
    with ClientStore(stage.database("site"), "site") as store:
        lost = reconcile.lost_releases(
            stage.task, stage.settings, store, Stream(None, 0), [].append, lambda: True
        )
    assert (lost.seqs, lost.sent) == (range(0), None)
