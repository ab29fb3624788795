"""Replays of a log with times of its own: ranges, losses, outputs, signals, faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from agents import replay as replaying
from pipeline.cli.main import cli
from pipeline.errors import (
    BrokerError,
    ConfigError,
    LocalStoreError,
    NumericError,
    OffsetGap,
    VeilstreamError,
)
from pipeline.records.encoder import Row
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from tests.stage import OPEN, PATIENCE, Stage, send, study_text
from tests.wire import edited

#: 2026-03-01T12:00:00Z
BEGIN = 1_772_366_400_000
RELEASES, STEP = 120, 1000


def text_of(partitions: int = 2) -> str:
    """Return a study that keeps releases of any time: Kafka looks for old ones now and then."""
    text = study_text(privacy=OPEN, records=5, partitions=partitions)
    return text.replace('"1d"', '"forever"')


def fill(stage: Stage, count: int = RELEASES, revision: str = "") -> None:
    """Send releases of three clients, one a second; some say a time before the one before."""
    stage.ensure_topics()
    rng = np.random.default_rng(3)
    records = []
    for k in range(count):
        client = f"c{k % 3}"
        rows = [
            Row(x, float(np.sign(x[0] + rng.normal())), 0)
            for x in rng.uniform(-1, 1, (stage.task.slots, 2))
        ]
        payload = release_of(
            stage.task, rows, stage.task.first_model, client=client, ledger="l", seq=k // 3
        )
        if revision:
            payload = edited(stage.task, payload, revision=revision)
        time = BEGIN + STEP * (k - (3 if k % 10 == 7 else 0))
        records.append({"key": client.encode(), "value": payload, "timestamp_ms": time})
    send(stage.settings.kafka, stage.topics.releases.name, records)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("ranges"), kafka, redis_url, text_of())
    try:
        fill(made)
        yield made
    finally:
        made.remove()


@pytest.fixture(autouse=True)
def here(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands in this process find the servers, and leave its signals alone."""
    for name in ("KAFKA", "REDIS", "FOLDER"):
        monkeypatch.setenv(f"VEILSTREAM_{name}", stage.environment[f"VEILSTREAM_{name}"])
    held = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in held.items():
        signal.signal(number, handler)


def replay(stage: Stage, *options: object) -> None:
    cli.main(["replay", str(stage.study), *map(str, options)], standalone_mode=False)


def code_of(stage: Stage, *options: object) -> int:
    try:
        replay(stage, *options)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def lines(stage: Stage, capfd: pytest.CaptureFixture[str], *options: object) -> list[Any]:
    capfd.readouterr()
    replay(stage, "--json", *options)
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def folded(stage: Stage, keep: Any) -> Any:
    """Return the estimate of some records of the log, folded here, and without a replay."""
    states = {}
    for number in range(2):
        mine = [r for r in stage.releases() if r.partition == number and keep(r)]
        state = Partition.empty(stage.task)
        state.midway = True
        if mine:
            state.starting_at(mine[0].offset)
            Reducer(stage.task).fold(state, mine, allow_gaps=True)
        states[number] = state
    return combine(stage.task, states, topic=None, model_version=None, published_at=0.0)[1]


def values(message: Any) -> list[float]:
    return [c["value"] if isinstance(c, dict) else c.value for c in message.coefficients]


def test_a_range_of_time_is_the_estimate_of_its_releases_alone(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    span = ["--from", "2026-03-01T12:00:40Z", "--to", "2026-03-01T13:01:20+01:00"]
    *_, last = lines(stage, capfd, *span)
    low, high = BEGIN + 40_000, BEGIN + 80_000
    # what a partition holds from its first record of the time on; times may go back behind it
    bounds = {}
    for number in range(2):
        mine = [r for r in stage.releases() if r.partition == number]
        first = next(r.offset for r in mine if r.timestamp >= low)
        bounds[number] = first, next(r.offset for r in mine if r.timestamp >= high)
    wanted = folded(stage, lambda r: bounds[r.partition][0] <= r.offset < bounds[r.partition][1])
    assert [c["value"] for c in last["coefficients"]] == values(wanted)
    assert last["releases"] == wanted.releases < 50
    assert (last["diagnostics"]["missing"], last["diagnostics"]["dead_letters"]) == (0, 0)
    offsets = [",".join(f"{n}:{bounds[n][end]}" for n in bounds) for end in (0, 1)]
    *_, same = lines(stage, capfd, "--from", offsets[0], "--to", offsets[1])
    assert same == last


def test_estimates_come_at_the_rhythm_of_the_log_and_twice_the_same(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    by_time = lines(stage, capfd, "--every", "10s")
    assert by_time == lines(stage, capfd, "--every", "10s")
    assert [m["published_at"][14:19] for m in by_time[:3]] == ["00:10", "00:20", "00:30"]
    assert by_time[-1]["releases"] == RELEASES
    by_count = lines(stage, capfd, "--every", "7")
    assert [m["state_version"] for m in by_count] == [*range(7, RELEASES, 7), RELEASES]
    # both cut one order: an estimate of a time is the one after as many releases
    counts = {m["state_version"]: m["coefficients"] for m in lines(stage, capfd, "--every", "1")}
    assert all(counts[m["state_version"]] == m["coefficients"] for m in by_time)


def test_a_file_that_is_there_is_whole_and_the_same_as_the_lines(
    stage: Stage, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = lines(stage, capfd, "--every", "7")
    replay(stage, "--every", "7", "--out", tmp_path / "a.jsonl")
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").open()] == wanted
    replay(stage, "--every", "7", "--out", tmp_path / "a.parquet")
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["value"] for row in rows] == [
        c["value"] for message in wanted for c in message["coefficients"]
    ]
    assert {row["coefficient"] for row in rows} == {"intercept", "heat", "load"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "a.parquet"]


@pytest.mark.parametrize("name", ["b.jsonl", pytest.param("b.parquet", marks=pytest.mark.slow)])
def test_a_signal_leaves_no_file_and_the_same_command_gives_the_same_bytes(
    stage: Stage, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    whole = tmp_path / f"whole-{name}"
    replay(stage, "--every", "3", "--out", whole)
    out = tmp_path / name
    ask = ["--every", "3", "--out", out]
    write, seen = replaying.write_estimate, [0]

    def interrupted(message: Any) -> bytes:
        seen[0] += 1
        if seen[0] == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return write(message)

    monkeypatch.setattr(replaying, "write_estimate", interrupted)
    assert code_of(stage, *ask) == 130
    assert seen == [4]
    assert "start the replay again" in capfd.readouterr().err
    assert not out.exists()
    assert code_of(stage, *ask) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, whole.name])


@pytest.mark.slow
def test_a_pace_takes_as_long_as_the_log_did(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    span = ["--from", "2026-03-01T12:00:10Z", "--to", "2026-03-01T12:00:30Z"]
    begun = time.monotonic()
    slow = lines(stage, capfd, *span, "--every", "5s", "--speed", "10")
    passed = time.monotonic() - begun
    assert slow == lines(stage, capfd, *span, "--every", "5s")
    # 19 s of the log, at ten times its pace
    assert passed >= 1.8


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        (["--from", "2030-01-01T00:00:00Z"], NumericError, "there is no release in this range"),
        (["--to", "2020-01-01T00:00:00Z"], NumericError, "holds offsets 0 to"),
        (["--from", "noon"], ConfigError, "--from: 'noon' is not a time or offset"),
        (["--from", "-1h", "--to", "-2h"], ConfigError, "is not before --to"),
        (["--from", "0:0,1:999999"], ConfigError, "--from: partition 1 ends at offset"),
        (["--every", "often"], ConfigError, "--every"),
        (["--set", "privacy.epsilon=9"], ConfigError, "privacy.epsilon: a replay cannot change"),
        (["--level", "2"], ConfigError, "estimator.level"),
        (["--interval", "plug-in"], ConfigError, "estimator.path"),
        (["--out", "x.csv"], ConfigError, "--out: the file must end in"),
        (["--out", "/nowhere/x.jsonl"], LocalStoreError, "cannot be written"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(
    stage: Stage, options: list[str], kind: type[VeilstreamError], word: str
) -> None:
    with pytest.raises(kind, match=word):
        replay(stage, *options)


@pytest.mark.slow
def test_a_full_disk_ends_it_with_61(stage: Stage, tmp_path: Path) -> None:
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    with pytest.raises(LocalStoreError, match="No space left"):
        replay(stage, "--out", full, "--every", "1")
    with Path("/dev/full").open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", "replay", str(stage.study), "--json"],
            stdout=output, stderr=subprocess.PIPE, check=False, text=True, timeout=PATIENCE,
            env={**stage.environment, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert done.returncode == 61, done.stderr
    assert "standard output cannot be written (No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_retention_took_is_named_and_only_left_out_when_that_is_accepted(
    kafka: str, redis_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Stage(tmp_path, kafka, redis_url, text_of(partitions=1))
    try:
        fill(made, 60)
        with KafkaAdminClient(bootstrap_servers=kafka) as admin:
            admin.delete_records({TopicPartition(made.topics.releases.name, 0): 25})
        with pytest.raises(OffsetGap, match=r"offsets 0 to 24 of partition 0 .*12:00:25"):
            replay(made)
        with pytest.raises(OffsetGap, match="offsets 10 to 19 of partition 0"):
            replay(made, "--from", "10", "--to", "20")
        with pytest.raises(OffsetGap, match="offsets 0 to 24"):
            replay(made, "--from", "2026-03-01T12:00:20Z")
        with pytest.raises(OffsetGap, match="removed offsets 0 to 24 of partition 0"):
            replay(made, "--check")
        *_, last = lines(made, capfd, "--accept-loss")
        assert last["releases"] == 35
        assert last["diagnostics"]["missing"] == 0
        *_, later = lines(made, capfd, "--from", "2026-03-01T12:00:26Z")
        assert later["releases"] == 34
    finally:
        made.remove()


def test_an_admission_in_front_of_a_history_hides_none_of_its_times(
    kafka: str, redis_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Stage(tmp_path, kafka, redis_url, text_of(partitions=1))
    try:
        made.ensure_topics()
        now = {"key": b"c0", "value": b"{}", "timestamp_ms": round(time.time() * 1000)}
        send(kafka, made.topics.releases.name, [now])
        fill(made, 60)
        send(kafka, made.topics.releases.name, [now])
        *_, last = lines(
            made, capfd, "--from", "2026-03-01T12:00:20Z", "--to", "2026-03-01T12:00:50Z"
        )
        assert last["releases"] == 30
        with pytest.raises(NumericError, match="no release in this range"):
            replay(made, "--from", "2026-03-01T13:00:00Z")
        by_time = lines(made, capfd, "--every", "20s")
        assert [m["published_at"][14:19] for m in by_time] == ["00:20", "00:40", "00:59"]
    finally:
        made.remove()


def test_releases_of_another_revision_end_it_unless_that_is_accepted(
    kafka: str, redis_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Stage(tmp_path, kafka, redis_url, text_of(partitions=1))
    try:
        fill(made, 30)
        fill(made, 3, revision="00112233445566ff")
        with pytest.raises(ConfigError, match=r"offset 30 of partition 0 .* 00112233445566ff"):
            replay(made)
        *_, last = lines(made, capfd, "--accept-other-revisions")
        assert (last["releases"], last["diagnostics"]["dead_letters"]) == (30, 3)
    finally:
        made.remove()


def test_a_published_estimate_that_the_log_does_not_give_is_found(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    with pytest.raises(NumericError, match="no published estimate"):
        replay(stage, "--check")
    good = [json.loads(line) for line in _published(stage, capfd)]
    tampered = json.loads(json.dumps(good[2]))
    tampered["coefficients"][1]["value"] = np.nextafter(tampered["coefficients"][1]["value"], 9)
    other = {**good[3], "study_revision": "00112233445566ff"}
    first, *rest = good[3]["watermark"]
    far = {**good[3], "watermark": [{**first, "next_offset": 10**15}, *rest]}
    below = {**good[3], "watermark": [{**first, "next_offset": -1}, *rest]}
    unknown = {**good[3], "watermark": [{**first, "partition": 7}, *rest]}
    # the fourth goes back, as after a rebuild, and is checked all the same
    for message in (*(good[0], far, below, unknown, good[1]), *(good[3], good[1], tampered, other)):
        send(
            stage.settings.kafka,
            stage.topics.estimates.name,
            [{"value": json.dumps(message).encode()}],
        )
    capfd.readouterr()
    with pytest.raises(SystemExit) as caught:
        replay(stage, "--check", "--json")
    assert caught.value.code == 40
    said = capfd.readouterr()
    found = json.loads(said.out)
    assert (found["compared"], found["different"]) == (5, 1)
    assert found["not_compared"] == {"of another revision": 1, "no estimate": 1}
    assert found["first_difference"]["field"] == "coefficients[1].value"
    assert (found["offsets_impossible"], found["offsets_different"]) == ([1, 3], [7])
    assert not found["equal"]
    assert "first difference, at state version" in said.err
    assert "2 refer to log positions that do not exist, at offsets 1, 3 of" in said.err
    assert "privacy spent: 0" in said.err


def _published(stage: Stage, capfd: pytest.CaptureFixture[str]) -> list[str]:
    replay(stage, "--json", "--every", "20")
    return capfd.readouterr().out.splitlines()


def test_servers_that_do_not_answer_end_it_with_their_codes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEILSTREAM_KAFKA", "127.0.0.1:9")
    with pytest.raises(BrokerError, match="does not answer"):
        replay(stage)
