"""Which models are believed: every honest one, and no forged one that could end a stream."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import PayloadError
from pipeline.messages.model import (
    OFTEN,
    OLDEST,
    SPARE,
    Newest,
    is_possible,
    read_model,
    write_model,
)
from pipeline.messages.release import Decoder
from pipeline.release.model import VERSION_LIMIT, WATERMARK_LIMIT, Model, Part
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from tests.builders import LogEntry, SeededStream, some_model, task_of
from tests.trusted import trusted_task

AGED = 'half_life = 600, of = "records"'
TASK = task_of(p=2, records=30, forgetting=AGED)
NOW = 1_800_000_000.0


class Log:
    """Topics as a client sees them."""

    def __init__(self, task: Task = TASK) -> None:
        self.releases, self.asked = 0, 0
        self.newest = Newest(task, self._ends, lambda: NOW)

    def _ends(self) -> int:
        self.asked += 1
        return self.releases

    def take(self, offset: int, version: int, seen: int = 0) -> str:
        return self.newest.take(offset, replace(some_model(TASK, version), watermark=seen))


def test_every_model_of_an_honest_study_is_believed() -> None:
    """Offsets skip: versions sent twice, marks of transactions, what compaction removed."""
    rng = np.random.default_rng(5)
    log, offset = Log(), 0
    for version in range(1, 3000):
        log.releases += int(rng.integers(1, 5))
        offset += int(rng.integers(1, 4))
        if rng.random() < 0.3:
            assert log.take(offset, version, 30 * log.releases) == "taken"


def test_versions_that_two_workers_send_out_of_order_are_believed() -> None:
    log = Log()
    log.releases = 10
    assert [log.take(o, v) for o, v in ((0, 1), (1, 3), (2, 2), (3, 4))] == [
        "taken", "taken", "older", "taken",
    ]  # fmt: skip


def test_a_models_topic_that_was_made_anew_is_believed_for_the_releases_behind_it() -> None:
    log = Log()
    log.releases = 70_000
    for offset, version in enumerate(range(70_001, 70_100)):
        assert log.take(offset, version, 30 * 70_000) == "taken"
    assert log.newest.explained


def test_a_new_client_believes_a_study_of_which_both_topics_were_made_anew() -> None:
    log = Log()
    for offset, version in enumerate(range(10**7, 10**7 + 50)):
        log.releases += 1
        assert log.take(offset, version, 10**9) == "taken"
    # and one that was running, by its first offset that goes back
    log = Log()
    log.releases = 10**6
    assert log.take(5000, 10**6, 10**6) == "taken"
    log.releases = 1
    assert log.take(0, 10**7, 10**9) == "taken"


@pytest.mark.parametrize("version", [VERSION_LIMIT, 2**39, 10**6])
def test_a_jump_that_the_logs_do_not_hold_is_refused(version: int) -> None:
    log = Log()
    log.releases = 200
    assert log.take(57, 60, 30 * 200) == "taken"
    assert log.take(58, version, 30 * 200) == "refused"
    assert log.newest.model.version == 60
    assert log.take(59, 61, 30 * 200) == "taken"


def test_a_forged_age_is_refused_where_ages_matter() -> None:
    log = Log()
    log.releases, largest = 200, TASK.growth.largest
    assert log.take(0, 1, 200 * largest) == "taken"
    assert log.take(1, 2, 200 * largest + 1) == "refused"
    assert log.take(2, 2, WATERMARK_LIMIT) == "refused"
    model = replace(some_model(TASK, 2), parts=(Part(0), Part(WATERMARK_LIMIT)))
    assert log.newest.take(3, model) == "refused"
    log.releases += 1
    assert log.take(4, 2, 200 * largest + 1) == "taken"
    plain = Log(task_of(p=2, records=30))
    assert plain.take(0, 1, WATERMARK_LIMIT) == "taken"
    assert plain.asked == 0


def test_a_forged_model_that_came_first_gives_way_to_one_that_the_logs_explain() -> None:
    log = Log()
    log.releases = 5
    assert log.take(0, 2**39) == "refused"
    assert log.take(1, 10**9) == "taken"
    assert log.take(2, 1) == "taken"
    assert log.take(3, 10**9) == "refused"


def test_the_successor_of_a_believed_model_is_believed() -> None:
    """Else one forged model that passes would stop a study for ever."""
    for releases, offset in itertools.product((0, 7, 10**6), (0, 9, 10**6)):
        log = Log()
        log.releases = releases
        worst = offset + 1 + releases + SPARE
        assert log.take(offset, worst) == "taken"
        assert log.take(offset + 1, worst + 1) == "taken"
    assert is_possible(TASK.study, OFTEN * 1000, OLDEST + 1000)
    assert is_possible(TASK.study, OFTEN * 1000 + 1, OLDEST + 1001)
    assert not is_possible(TASK.study, 1, OLDEST - 1.0)
    assert not is_possible(TASK.study, VERSION_LIMIT + 1, 1e18)


@pytest.mark.parametrize("now", [-1.0, 0.0, OLDEST - 1.0, 1e12])
def test_what_a_study_has_signed_is_believed_whatever_the_clock_says(now: float) -> None:
    task = trusted_task()
    newest = Newest(task, lambda: 9, lambda: now)
    for offset in range(9):
        assert newest.take(offset, some_model(task, offset + 1)) == "taken"
    assert newest.take(10, some_model(task, VERSION_LIMIT + 1)) == "refused"


# --- one limit everywhere


@pytest.mark.parametrize("version", [VERSION_LIMIT, VERSION_LIMIT + 1, 2**53 - 1])
def test_no_model_that_can_be_read_makes_a_release_that_cannot(version: int) -> None:
    payload = write_model(TASK, some_model(TASK, version), "t")
    try:
        model = read_model(TASK, payload)
    except PayloadError:
        assert version > VERSION_LIMIT
        return
    made = release_of(TASK, [], model, SeededStream(1), client="c", ledger="l", seq=0)
    judged = Decoder(TASK).read([made], [b"c"])
    assert judged.faults == {}
    assert judged.rows["version"].tolist() == [version]


def largest(task: Task) -> Model:
    """Return the model with the largest numbers that can be read."""
    lattice = np.full(task.size, 2**24, dtype=np.int64)
    top = round(1024 * task.largest_weight)
    parts = (Part(WATERMARK_LIMIT, lattice), Part(WATERMARK_LIMIT, -lattice))
    return Model(
        VERSION_LIMIT,
        lattice,
        (top, top),
        WATERMARK_LIMIT,
        parts if task.partition_strategy == "pooled" else (),
    )


@pytest.mark.parametrize(
    "settings", [{}, {"maximum": 8.0}, {"private": False}, {"forgetting": AGED}]
)
def test_what_a_client_copies_from_the_largest_model_can_be_folded(
    settings: dict[str, object],
) -> None:
    task = task_of(p=2, records=30, **settings)
    model = read_model(task, write_model(task, largest(task), "t")).at(1)
    made = release_of(task, [], model, SeededStream(1), client="c", ledger="l", seq=0)
    state = Partition.empty(task)
    assert Reducer(task).fold(state, [LogEntry(0, b"c", made)]) == []


@pytest.mark.parametrize(
    ("maximum", "weights"),
    [(None, (0, 0)), (None, (1024, 3000)), (None, (1023, 1024)), (8.0, (0, 1024)),
     (8.0, (511, 1024)), (8.0, (1024, 8193))],
)  # fmt: skip
def test_weights_that_no_counts_lead_to_are_refused(
    maximum: float | None, weights: tuple[int, int]
) -> None:
    """A weight of zero makes releases of noise alone, and they cost as much as others."""
    task = task_of(p=2, records=30, maximum=maximum)
    payload = write_model(task, replace(some_model(task, 1), weights=weights), "t")
    with pytest.raises(PayloadError, match="weights"):
        read_model(task, payload)
