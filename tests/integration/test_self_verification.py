"""A worker that folds its log again beside itself: what it says, and that a difference ends it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from agents.history import Shadow
from infra.local.processes import free_port
from pipeline.cli.client import admit_here
from state import RedisStore, codec
from tests.stage import PATIENCE, Stage, lent, study_text, until, write_csv
from tests.trusted import TRUST

#: A verification has the lowest priority: on a busy machine it comes last.
LAST = 4 * PATIENCE


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text()))


def page(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def verified(port: int) -> dict[str, Any]:
    text = page(port, "healthz")
    found: dict[str, Any] = json.loads(text).get("verified", {}) if text else {}
    return found


def forge(stage: Stage, number: int) -> None:
    """Change a sum of a state, with checksums that fit, as whoever may write to Redis can."""
    state = stage.store.load(number)
    bucket = state.sums.states[0]
    other = stage.store.load(number).sums.states[0]
    bucket.add(other)
    stage.store.replace(number, state)


@pytest.mark.takes("a worker, a client and a verification are processes of their own")
def test_a_worker_verifies_itself_and_a_difference_stops_publishing(stage: Stage) -> None:
    port = free_port()
    options = ("--verify", "every=1s", "--health-port", port)
    stage.start("w0", "worker", stage.study, "--instance", "w0", *options)
    stage.produced("north", write_csv(stage.folder / "a.csv", 200))
    stage.caught_up()
    ends = {str(n): {"since": 0, "next_offset": end} for n, end in enumerate(stage.watermarks())}
    until(
        lambda: verified(port).get("partitions") == ends,
        "it verifies up to the end of the log",
        LAST,
    )
    metrics = page(port, "metrics")
    assert "veilstream_verified_age_seconds " in metrics
    for n, end in enumerate(stage.watermarks()):
        assert f'veilstream_verified_offset{{partition="{n}"}} {end}' in metrics

    number = next(n for n, end in enumerate(stage.watermarks()) if end)
    forge(stage, number)
    assert stage.code("w0", LAST) == 40
    assert "differs from what the log folds to" in stage.said("w0")
    assert "Nothing more is published" in stage.said("w0")

    stage.worker()
    assert stage.code("w0") == 40
    assert "a verification has found" in stage.said("w0")
    shown = stage.run("state", "verify", stage.study, "--json")
    assert shown.returncode == 40
    found = json.loads(shown.stdout)["partitions"][number]["differences"]
    assert found
    assert all(name.startswith("sums.") for name in found)

    assert stage.run("state", "rebuild", stage.study, "--yes").returncode == 0
    assert stage.verified()
    stage.start("w0", "worker", stage.study, "--instance", "w0", *options)
    stage.until(
        lambda: verified(port).get("partitions") == ends, "it verifies what was rebuilt", LAST
    )


def test_a_doubt_that_a_second_look_does_not_share_is_cleared(stage: Stage) -> None:
    stage.ensure_topics()
    stage.produce("north", write_csv(stage.folder / "a.csv", 40))
    stage.worker()
    assert stage.code("north") == 0
    stage.caught_up()
    stage.kill("w0")
    number = next(n for n, end in enumerate(stage.watermarks()) if end)
    stage.store.doubt(number, "sums.0.counts")
    assert stage.run("state", "show", stage.study).returncode == 40
    assert stage.verified()
    assert not stage.redis.hexists(codec.snapshot_key(stage.task.study.name, number), "doubt")
    assert stage.run("state", "show", stage.study).returncode == 0


@pytest.mark.parametrize("given", ["1h", "every=0s", "every=1w"])
def test_a_rhythm_that_is_none_is_refused(stage: Stage, given: str) -> None:
    done = stage.run("worker", stage.study, "--verify", given)
    assert done.returncode == 10
    assert "--verify" in done.stderr


def test_a_verification_ends_with_the_process_that_started_it(stage: Stage) -> None:
    stage.ensure_topics()
    words = ("state", "verify", stage.study, "--every", "1h", "--parent", "1")
    done = stage.run_beside(*words, seconds=LAST)
    assert done.returncode == 0


@pytest.mark.slow
def test_a_difference_that_another_machine_finds_ends_a_worker_that_runs(stage: Stage) -> None:
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "a.csv", 100))
    stage.caught_up()
    forge(stage, next(n for n, end in enumerate(stage.watermarks()) if end))
    # as `state verify --every` does
    Shadow(stage.task, stage.settings, lambda: False).compare()
    assert stage.code("w0") == 40
    assert "Nothing more is published" in stage.said("w0")


@pytest.mark.takes("a worker and a client are processes of their own")
def test_a_state_that_the_study_has_not_stored_is_refused_where_it_has_keys(
    kafka: str, redis_url: str, tmp_path: Path
) -> None:
    """Whoever may write to Redis can make every checksum anew that has no key."""
    for stage in lent(Stage(tmp_path, kafka, redis_url, study_text() + TRUST)):
        assert stage.run("study", "keys", stage.study).returncode == 0
        admit_here(stage.task.study, stage.settings, ["north"])
        stage.worker()
        stage.produced("north", write_csv(stage.folder / "a.csv", 200))
        stage.caught_up()
        stage.stop("w0")
        number = next(n for n, end in enumerate(stage.watermarks()) if end)
        state = stage.store.load(number)
        key = codec.snapshot_key(stage.task.study.name, number)
        stored = dict(cast("dict[bytes, bytes]", stage.redis.hgetall(key)))
        for bucket in state.sums.states.values():
            bucket.add(bucket)
        # he who forges has no key, and may keep what he likes of the values
        forger = RedisStore(stage.redis, stage.task)
        forger.replace(number, state)
        for kept in ([], [b"head"], [name for name in stored if name != b"head"]):
            for name in kept:
                stage.redis.hset(key, name, stored[name])  # type: ignore[arg-type]
            done = stage.run("worker", stage.study, "--instance", "w0")
            assert done.returncode == 40, (kept, done.stderr)
            assert "state rebuild" in done.stderr
        done = stage.ran("state", "rebuild", stage.study, "--yes")
        assert stage.run("state", "verify", stage.study).returncode == 0
