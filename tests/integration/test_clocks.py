"""Clients whose clock is far from that of everybody else, on a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.client import admit_here
from pipeline.messages.release import read
from pipeline.messages.topics import partition_of
from pipeline.release.task import release_bytes
from tests.stage import Stage, lent, study_text, write_csv
from tests.trusted import TRUST

CLOCKS = {
    "twenty minutes ago": -1200,
    "tomorrow": 86_400,
    "9999": 2.5340e11,
}


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text() + TRUST))


@pytest.mark.slow
def test_a_clock_that_is_wrong_is_named_before_anything_is_spent(stage: Stage) -> None:
    assert stage.run("study", "keys", stage.study).returncode == 0
    # all in one partition
    names = [f"site{n}" for n in range(99) if partition_of(f"site{n}".encode(), 2) == 0]
    near, *others = names[: 1 + len(CLOCKS)]
    admit_here(stage.task.study, stage.settings, [near, *others])
    stage.worker()
    stage.produced(near, write_csv(stage.folder / "near.csv", 200))
    stage.caught_up()
    stage.final_estimate()
    for seed, (far, at) in enumerate(zip(others, CLOCKS.values(), strict=True), start=1):
        source = write_csv(stage.folder / f"{far}.csv", 60, seed)
        check_clock(stage, far, source, at if abs(at) < 1e6 else at - time.time())


def check_clock(stage: Stage, far: str, source: Path, by: float) -> None:
    """Let a client start whose clock is so many seconds ahead."""
    before = len(stage.releases())
    shifted = f"import time\nreal = time.time\ntime.time = lambda: real() + {by!r}"
    stage.produce(far, source, before=shifted)
    code, said = stage.code(far), stage.said(far)
    assert "Traceback" not in said
    assert "clock of this machine" in said
    assert "revoked" not in said
    assert "nobody can have published" not in said
    if by == -1200:
        # it is told, and goes on at the models of its study
        assert code == 0, said
        stage.caught_up()
        assert not stage.dead_letters()
        size = release_bytes(stage.task)
        own = [r for r in stage.releases() if r.key == far.encode() and len(r.value) == size]
        assert len(own) == 3
        assert all(read(stage.task, record.value).header.version for record in own)
    else:
        assert code == 10, said
        assert len(stage.releases()) == before
        if stage.database(far).exists():
            assert stage.query(far, "SELECT next_seq FROM streams") in ([], [(0,)])
