"""Releases of a client: spend, bytes and position move together, and no window is noised twice."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, LocalStoreError, StateError
from pipeline.messages.release import header_of
from pipeline.methods import task_of as make_task
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.store import ClientStore, Outgoing, Stream, Tally
from tests.databases import rows
from tests.forks import files_below
from tests.stage import Stage, lent, study_text, write_csv

SOURCE = "csv:data.csv"
TALLY = Tally(records=20, rejected={"a reason": 2}, clipped=1)
HEADERS = [("a", b"b"), ("a", b"c")]


def task_of(name: str, epsilon: float = 1.0) -> Task:
    budget = f'mechanism = "discrete-gaussian"\nepsilon = {epsilon}\ndelta = 1e-5'
    return make_task(parse_study(study_text(name, privacy=budget)))


def release(store: ClientStore, task: Task, *seqs: int) -> None:
    store.release(
        task, SOURCE, [Outgoing(seq, b"bytes %d" % seq, HEADERS) for seq in seqs],
        position=b"place %d" % max(seqs, default=0), tally=TALLY, now=1e9,
    )  # fmt: skip


def test_one_release_moves_ledger_outbox_and_position_together(path: Path) -> None:
    task = task_of("one")
    with ClientStore(path, "site") as store:
        assert store.open_stream(task, SOURCE) == Stream(None, 0)
        release(store, task, 0)
        assert store.open_stream(task, SOURCE) == Stream(b"place 0", 1)
        assert store.unsent("one", -1, 10) == [Outgoing(0, b"bytes 0", HEADERS)]
        store.sent("one", [0], (1, 7))
        assert store.waiting("one") == 0
        assert store.open_stream(task, SOURCE) == Stream(b"place 0", 1, (1, 7))
    assert rows(path, "SELECT * FROM ledger") == [("one", 0, "2001-09-09T01:46:40.000000Z", 0)]
    assert rows(path, "SELECT study, source, epsilon, delta, slots FROM charged") == [
        ("one", SOURCE, 1.0, 1e-5, 20)
    ]
    assert rows(path, "SELECT reason, count FROM rejects") == [("a reason", 2)]


def test_a_group_is_stored_as_its_releases_one_after_the_other_would_be(path: Path) -> None:
    task = task_of("one")
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        release(store, task, 0, 1, 2)
        release(store, task, 3)
        release(store, task, 4, 5)
        assert store.open_stream(task, SOURCE) == Stream(b"place 5", 6)
        stored = [Outgoing(seq, b"bytes %d" % seq, HEADERS) for seq in range(6)]
        assert store.unsent("one", -1, 100) == stored
        assert store.unsent("one", 1, 3) == stored[2:5]
    assert rows(path, "SELECT seq, lost FROM ledger") == [(seq, 0) for seq in range(6)]
    assert rows(path, "SELECT count(*) FROM spends") == [(1,)]
    assert rows(path, "SELECT records, rejected, clipped FROM streams") == [(60, 6, 3)]
    assert rows(path, "SELECT reason, count FROM rejects") == [("a reason", 6)]


@pytest.mark.parametrize("seqs", [(), (1,), (3,), (5,), (4, 6), (4, 4), (5, 4), (3, 4)])
def test_numbers_must_go_on_where_the_database_is(path: Path, seqs: tuple[int, ...]) -> None:
    task = task_of("one")
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        release(store, task, 0, 1, 2, 3)
        before = rows(path, "SELECT * FROM streams")
        with pytest.raises(StateError, match="start this client again"):
            release(store, task, *seqs)
        assert rows(path, "SELECT * FROM streams") == before
        assert [row[0] for row in rows(path, "SELECT seq FROM ledger")] == [0, 1, 2, 3]
        release(store, task, 4, 5)


def test_a_study_that_was_never_opened_releases_nothing(path: Path) -> None:
    with ClientStore(path, "site") as store:
        store.open_stream(task_of("other"), SOURCE)
        with pytest.raises(StateError):
            release(store, task_of("one"), 0)
    assert rows(path, "SELECT * FROM ledger UNION SELECT study, 0, 0, 0 FROM spends") == []


def test_lost_releases_are_charged_and_passed_over(path: Path) -> None:
    task = task_of("one")
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        store.charge_lost(task, SOURCE, range(3), owed=60, sent=(1, 7), now=1e9)
        assert store.open_stream(task, SOURCE) == Stream(None, 3, (1, 7), owed=60)
        assert store.unsent("one", -1, 10) == []
        with pytest.raises(StateError, match="60 slots"):
            release(store, task, 3)
        for slots in (0, 61):
            with pytest.raises(StateError):
                store.pass_over("one", slots, b"x")
        store.pass_over("one", 59, b"before")
        with pytest.raises(StateError, match="1 slots"):
            release(store, task, 3)
        store.pass_over("one", 1, b"behind")
        assert store.peek("one") == Stream(b"behind", 3, (1, 7))
        release(store, task, 3)
        with pytest.raises(StateError):
            store.charge_lost(task, SOURCE, range(3, 5), owed=40, now=1e9)
    assert rows(path, "SELECT seq, lost FROM ledger") == [(0, 1), (1, 1), (2, 1), (3, 0)]
    assert rows(path, "SELECT count(*), sum(epsilon) FROM spends JOIN charged USING (study)") == [
        (1, 1.0)
    ]
    assert rows(path, "SELECT records, rejected FROM streams") == [(20, 2)]


def test_another_revision_or_source_of_a_begun_study_is_refused(path: Path) -> None:
    with ClientStore(path, "site") as store:
        store.open_stream(task_of("one", 2.0), SOURCE)
        # nothing was released under the first one
        store.open_stream(task_of("one"), SOURCE)
        release(store, task_of("one"), 0)
        with pytest.raises(ConfigError, match="under revision"):
            store.open_stream(task_of("one", 2.0), SOURCE)
        with pytest.raises(ConfigError, match="--source-name"):
            store.open_stream(task_of("one"), "csv:other.csv")
    assert rows(path, "SELECT source, epsilon FROM sources") == [(SOURCE, 2.0)]


def test_a_full_disk_spends_nothing_and_a_later_release_succeeds(path: Path) -> None:
    task = task_of("one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        release(store, task, 0)
        wal = path.with_name("site.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal, before[1]))
        try:
            with pytest.raises(LocalStoreError, match="disk"):
                release(store, task, 1, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert store.open_stream(task, SOURCE) == Stream(b"place 0", 1)
        assert [item.seq for item in store.unsent("one", -1, 10)] == [0]
        release(store, task, 1, 2)
    assert rows(path, "SELECT seq FROM ledger") == [(0,), (1,), (2,)]


# from here on: real producers as processes of their own


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(
        Stage(tmp_path / "stage", kafka, redis_url, study_text(stream="max_in_flight_windows = 0"))
    )


def test_two_producers_under_one_client_id_end_with_43_for_the_second(stage: Stage) -> None:
    # as many records as a source is tested with, or the first would wait for more of them
    first = stage.produce("site", source := write_csv(stage.folder / "data.csv", 60), "--follow")
    stage.until(stage.releases, "the first is in its stream")
    second = stage.run("produce", stage.study, "--client", "site", "--source", source, "--quiet")
    assert second.returncode == 43
    assert "another producer runs as client 'site'" in second.stderr
    assert first.poll() is None


def test_a_producer_on_a_full_disk_ends_with_61_and_later_goes_on(stage: Stage) -> None:
    source = write_csv(stage.folder / "data.csv", 4000)
    stage.produce("site", source, before=files_below(200_000))
    assert stage.code("site") == 61, stage.said("site")
    assert "nothing was spent and nothing is lost" in stage.said("site")
    assert "Traceback" not in stage.said("site")
    [(spent,)] = stage.query("site", "SELECT count(*) FROM ledger")
    assert 0 < spent < 200
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [(spent, 20 * spent)]
    stage.produced("site", source)
    check_complete(stage, 200)


#: Each way to be half done is in every run, all others in the slow tests.
QUICK = ("within outbox", "after COMMIT", "after ack")
STEPS = [
    pytest.param(step, marks=[] if step in QUICK else [pytest.mark.slow])
    for step in (
        "before BEGIN", "before ledger", "before outbox", "within outbox", "before COMMIT",
        "after COMMIT", "after send", "after ack", "after sent",
    )
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_between_two_steps_never_noises_a_window_twice(stage: Stage, step: str) -> None:
    source = write_csv(stage.folder / "data.csv", 100)
    made_at = stage.folder / "made"
    dying = (step, stage.study, source, made_at, "site")
    stage.start("dying", *dying, module="tests.dying_release")
    assert stage.code("dying") == -signal.SIGKILL, stage.said("dying")
    committed = step.startswith("after")
    [(spent,)] = stage.query("site", "SELECT count(*) FROM ledger")
    assert spent >= 4 if committed else spent == 2
    kept = dict(stage.query("site", "SELECT seq, payload FROM outbox"))
    made = {int(n): bytes.fromhex(data) for n, data in json.loads(made_at.read_text()).items()}
    assert set(made) == {2, 3}
    assert kept.get(2) == (made[2] if committed and step != "after sent" else None)
    assert 3 not in kept or kept[3] == made[3]
    stage.produced("site", source)
    found = check_complete(stage, 5)
    # what was committed went out in its first bytes; what was not never left
    assert [data in found[seq] for seq, data in made.items()] == [committed] * 2
    assert all(payload in found[seq] for seq, payload in kept.items())


def check_complete(stage: Stage, windows: int) -> dict[int, set[bytes]]:
    """Check that each window was released once, and return the payloads by number."""
    found: dict[int, set[bytes]] = {}
    for record in stage.releases():
        found.setdefault(header_of(record.value).seq, set()).add(record.value)
    assert sorted(found) == list(range(windows))
    assert [seq for seq, payloads in found.items() if len(payloads) > 1] == []
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [
        (windows, windows * stage.task.slots)
    ]
    assert stage.query("site", "SELECT count(*) FROM ledger") == [(windows,)]
    assert stage.query("site", "SELECT count(*) FROM outbox") == [(0,)]
    return found
