"""Histories: releases carry the times of their records, through crashes, and never in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from infra.topics import TimeRules
from pipeline.errors import ConfigError, DataError
from pipeline.messages.envelope import header, milliseconds
from pipeline.messages.release import header_of
from pipeline.records.batch import Records
from producers.client import Client
from producers.intake import EventTimes
from producers.models import ModelFeed
from producers.sources import open_source
from producers.store import ClientStore
from tests.builders import task_of
from tests.databases import sqlite_file
from tests.stage import OPEN, Stage, lines, study_text

#: 2026-03-01T12:00:00Z
BEGIN = 1_772_366_400
Build = Callable[..., Stage]


@pytest.fixture
def build(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    made: list[Stage] = []

    def make(kept: str = "forever") -> Stage:
        text = study_text(
            privacy=OPEN, records=10, partitions=1, stream="max_in_flight_windows = 0"
        )
        made.append(Stage(tmp_path, kafka, redis_url, text.replace('"1d"', f'"{kept}"')))
        made[-1].ensure_topics()
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


def history(path: Path, times: list[object]) -> Path:
    """Write records with these times."""
    rows = [f"{time},{line}" for time, line in zip(times, lines(len(times)), strict=True)]
    path.write_text("when,heat,load,failed\n" + "".join(rows))
    return path


def taken(stage: Stage) -> list[tuple[int, int]]:
    """Return time, in seconds after the beginning, and records of each release."""
    found = []
    for record in stage.releases():
        release = header_of(record.value)
        assert milliseconds((header(record.headers, "ce_time") or b"").decode()) == record.timestamp
        found.append((record.timestamp // 1000 - BEGIN, release.records))
    return found


def test_a_release_carries_the_latest_time_so_far_of_its_window(build: Build) -> None:
    stage = build()
    times: list[object] = [BEGIN + k for k in range(50)]
    times[14] = f"{BEGIN + 14}999"  # milliseconds
    times[19] = "2026-03-01T13:00:18.75+01:00"  # back by a second, in another zone
    times[25] = "2026-03-01T12:00:25"  # no zone: this record is set aside
    times[29] = ""
    times[30:40] = [BEGIN + 5] * 10  # a whole window that goes back
    times[45] = BEGIN + 10**9  # of the future: Kafka would refuse the release
    source = history(stage.folder / "h.csv", times)
    stage.produced("site", source, "--event-time", "when")
    assert taken(stage) == [(9, 10), (18, 10), (28, 8), (28, 10), (49, 9)]
    reasons = dict(stage.query("site", "SELECT reason, count FROM rejects"))
    assert sum(reasons.values()) == 3
    assert all(reason.startswith("column 'when' holds") for reason in reasons)


def test_an_input_is_a_source_by_another_name_and_a_column_must_be_there(build: Build) -> None:
    stage = build()
    source = history(stage.folder / "h.csv", list(range(BEGIN, BEGIN + 10)))
    done = stage.run("produce", stage.study, "--client", "a", "--input", source,
                     "--event-time", "then")  # fmt: skip
    assert done.returncode == 20
    assert "no column 'then' (--event-time)" in done.stderr
    done = stage.run("produce", stage.study, "--client", "a", "--input", source,
                     "--event-time", "heat")  # fmt: skip
    assert done.returncode == 10
    assert "would leave without noise" in done.stderr
    assert taken(stage) == []
    # nothing was released: it may still begin in another way, and then goes on in that
    stage.ran("produce", stage.study, "--client", "a", "--input", source)
    done = stage.run("produce", stage.study, "--client", "a", "--input", source,
                     "--event-time", "when")  # fmt: skip
    assert done.returncode == 10
    assert "began study" in done.stderr
    assert "without --event-time" in done.stderr


def test_what_kafka_would_remove_at_once_is_refused_before_it_is_spent(build: Build) -> None:
    stage = build(kept="1d")
    source = history(stage.folder / "h.csv", list(range(BEGIN, BEGIN + 30)))
    ask = ("produce", stage.study, "--client", "a", "--source", source, "--event-time", "when")
    done = stage.run(*ask)
    assert done.returncode == 10
    assert "removes what is older than 1 days" in done.stderr
    assert stage.query("a", "SELECT count(*), (SELECT next_seq FROM streams) FROM ledger") == [
        (0, 0)
    ]
    look = ("doctor", "connect", stage.study, "--source", source, "--event-time")
    assert stage.run(*look, "then").returncode == 20
    done = stage.run(*look, "when")
    assert (done.returncode, done.stdout.count("FAULT")) == (10, 1)
    assert "removes what is older than 1 days" in done.stdout
    # what the message names as the remedy
    assert "`veilstream topics STUDY --retention`" in done.stdout
    text = stage.study.read_text()
    stage.study.write_text(text.replace('retention = "1d"', 'retention = "forever"'))
    assert stage.run("topics", stage.study).stdout.count("keeps") == 0
    assert stage.run(*look, "when").returncode == 10
    assert stage.run("topics", stage.study, "--retention").stdout.count("for forever now") == 2
    assert stage.run(*look, "when").returncode == 0
    set_config(stage, {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    assert "LogAppendTime" in stage.run(*ask).stderr
    set_config(stage, {"retention.ms": "-1", "message.timestamp.type": "CreateTime"})
    assert stage.run(*ask).returncode == 0
    assert taken(stage) == [(9, 10), (19, 10), (29, 10)]


def set_config(stage: Stage, values: dict[str, str]) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, stage.topics.releases.name, configs=values)
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.alter_configs([resource])


def test_times_survive_a_crash_byte_for_byte(build: Build) -> None:
    stage = build()
    source = history(stage.folder / "h.csv", [BEGIN + 60 * k for k in range(40)])
    ask = ("produce", stage.study, "--client", "a", "--source", source, "--event-time", "when")
    # a client that dies with everything stored, and nothing sent
    path = stage.database("a")
    with ClientStore(path, "a") as store:
        name = "csv:h.csv"
        store.open_stream(stage.task, name, location=str(source.resolve()), event_time="when")
        times = EventTimes(stage.task.study, "when", None, TimeRules(False, None))
        client = Client(
            stage.task,
            open_source(str(source), None, folder=stage.folder),
            store,
            Dead(),  # type: ignore[arg-type]
            ModelFeed(stage.task, stage.settings, stage.topics, "a"),
            source_name=name,
            times=times,
        )
        client.turn()
    with sqlite_file(path) as db:
        stored = db.execute("SELECT seq, payload, headers FROM outbox ORDER BY seq").fetchall()
        assert db.execute("SELECT latest FROM event_times").fetchall() == [
            ((BEGIN + 60 * (10 * len(stored) - 1)) * 1000,)
        ]
    assert stored
    assert stage.run(*ask).returncode == 0
    sent = stage.releases()
    assert taken(stage) == [(60 * (10 * k + 9), 10) for k in range(4)]
    for (_, payload, marks), record in zip(stored, sent, strict=False):
        assert record.value == payload
        assert list(record.headers) == msgspec.msgpack.decode(marks, type=list[tuple[str, bytes]])


class Dead:
    """A sender of a client that dies before it sends."""

    claiming = False

    def pump(self) -> None:
        """Send nothing."""

    def unseen(self, offset: int | None) -> tuple[int, int]:
        """Say that all is seen."""
        return 0, 0


def times_of(**rules: Any) -> EventTimes:
    study = task_of().study
    found = TimeRules(False, rules.get("keeps"))
    return EventTimes(study, "when", rules.get("latest"), found, clock=lambda: float(BEGIN))


def noted(times: EventTimes, *values: object) -> dict[int, str]:
    """Show records with these times."""
    return times.read(Records([{"when": value} for value in values]))


def test_times_never_go_back_and_begin_where_they_were() -> None:
    times = times_of(latest=5000)
    assert times.at_close() == 5000
    noted(times, 4)
    assert times.at_close() == 5000
    noted(times, "6.9")
    assert (times.at_close(), times.closed) == (6000, 6000)


def test_the_very_first_second_is_a_time() -> None:
    times = times_of()
    assert not noted(times, 0, "0.5")
    assert times.at_close() == 0


def test_a_first_window_without_a_time_is_the_data_owners_to_mend() -> None:
    times = times_of()
    wrong = noted(times, "soon", BEGIN + 601)
    assert wrong[0].startswith("column 'when' holds no time")
    assert "of the future" in wrong[1]
    with pytest.raises(DataError, match="no record of the first window has a time"):
        times.at_close()
    noted(times, BEGIN + 599)
    assert times.at_close() == 1000 * (BEGIN + 599)


def test_old_windows_are_refused_to_the_millisecond() -> None:
    times = times_of(keeps=10_000)
    noted(times, BEGIN - 10)
    assert times.at_close() == 1000 * (BEGIN - 10)
    late = times_of(keeps=9_999)
    noted(late, BEGIN - 10)
    with pytest.raises(ConfigError, match="--event-time: this window is of 2026-03-01T11:59:50"):
        late.at_close()
