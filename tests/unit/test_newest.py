"""Which models are believed: every honest one, and no forged one that could end a stream."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.model import (
    OFTEN,
    OLDEST,
    SPARE,
    Newest,
    is_possible,
    read_model,
    write_model,
)
from pipeline.messages.release import MOST_LOST, Decoder
from pipeline.privacy import memory
from pipeline.release.model import VERSION_LIMIT, WATERMARK_LIMIT, Model, Part
from pipeline.release.policy import Growth, growth_of
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, Progress
from pipeline.stream.release import release_of
from tests.builders import LogEntry, SeededStream, relogged, sample_log, some_model, task_of
from tests.trusted import trusted_task
from tests.wire import edited

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


def test_no_run_of_lost_releases_hides_more_than_it_is_charged() -> None:
    """Whichever of the later ones come: K counts what they would have cancelled."""
    count = 400
    weights = np.array([memory.weight(place) for place in range(count)])
    made = np.array([np.r_[weights[: t + 1][::-1], np.zeros(count - t - 1)] for t in range(count)])
    covariance = made @ made.T
    hidden = [
        2 * np.maximum(-covariance[first + length :, first : first + length].sum(axis=1), 0).sum()
        for length in (1, 2, 3, 4, 5, 7, 8, 16, 50, 200)
        for first in (0, 1, 7, 60, 150)
    ]
    charged = memory.GAP / 2**memory.FIXED
    assert 0.95 * charged < max(hidden) < charged


def test_a_run_of_lost_releases_is_one_gap_however_many_they_are() -> None:
    progress = Progress("one")
    progress.accept("one", 0, 10, 10)
    progress.accept("one", 2**40, 2**44, 10)
    assert (progress.missing, progress.holes) == (2**40 - 1, 1)
    progress.accept("one", 5, 60, 10)
    assert progress.holes == 2


def test_refused_releases_lie_between_those_that_count() -> None:
    progress = Progress("one", highest=9, refused=7)
    assert progress.holes == 4
    assert Progress("one", highest=9, refused=2).holes == 2


@pytest.mark.parametrize("first", [0, 5])
def test_a_number_is_not_above_what_a_client_can_have_sent(first: int) -> None:
    """Each release takes a place in the log: a jump is of a client that has seen another one."""
    task = task_of()
    log = sample_log(task, releases=9, clients=1)
    key, value = log[0].key, log[0].value
    head = log[:first]
    places = range(first, first + 5)
    far = [2**40, 2**40 - 1, places[2] + MOST_LOST + 1, places[3] + MOST_LOST, 2**39]
    forged = [
        LogEntry(0, key, edited(task, value, seq=seq, held=seq * task.slots), timestamp=0)
        for seq in far
    ]
    log = relogged([*head, *forged, *log[first:]])
    for size in (1, 3, len(log)):
        state, reducer, letters = Partition.empty(task), Reducer(task), []
        for at in range(0, len(log), size):
            letters += reducer.fold(state, log[at : at + size])
        assert [(x.offset, x.fault.reason) for x in letters] == [
            (place, "too-many-gaps") for place in places if place != places[3]
        ]
        assert state.head.missing < MOST_LOST + len(log)
        assert state.head.folded == 10


@pytest.mark.parametrize("divisor", [0, 1, 4, 10])
def test_no_chain_of_so_many_windows_has_more_slots(divisor: int) -> None:
    growth = Growth(50, divisor, 2_000)
    ends, before = [0], 0
    for _ in range(120):
        before += growth.next_window(before)
        ends.append(before)
    assert growth.most_behind(np.arange(121)).tolist() == ends
    assert growth.most_behind(np.array([2**40]))[0] <= 2**60 + before


@pytest.mark.parametrize("place", ["in a chain", "of its own"])
def test_a_client_of_whom_nothing_counts_is_not_stored(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that names a client in its head alone could not be read at the next start."""
    task = task_of(growth=0.1)
    log = sample_log(task, releases=12)
    state, reducer = Partition.empty(task), Reducer(task)
    value = log[9].value
    if place == "in a chain":
        # others would lie before it in a chain that begins with it
        value = edited(task, value, seq=0, number=1, chain=0)
    else:

        def refuse(*_: object, **__: object) -> None:
            raise PayloadError("wrong-place", "it cannot be there")

        monkeypatch.setattr(Progress, "accept", refuse)
    log = [*log[1:3], LogEntry(0, b"client-0", value, timestamp=0)]
    letters = reducer.fold(state, relogged(log))
    assert [letter.fault.reason for letter in letters] == ["wrong-place"]
    assert set(state.clients) == {"client-1", "client-2"}
    fields, clients = state.fields(everything=True), state.client_fields(everything=True)
    assert Partition.decode(task, fields, clients).clients == state.clients


def test_a_new_chain_may_leave_out_slots_that_were_counted_as_lost() -> None:
    progress = Progress("one")
    progress.accept("one", 0, 50, 50)
    progress.accept("one", 1, 200, 50, anew=True)
    assert (progress.slots, progress.holes) == (200, 0)
    with pytest.raises(PayloadError, match="other record slots before it"):
        progress.accept("one", 2, 300, 50)
    with pytest.raises(PayloadError, match="other record slots before it"):
        progress.accept("one", 2, 200, 50, anew=True)


def test_models_of_windows_that_grow_are_believed_where_releases_fade() -> None:
    """A model can have seen as many slots as its releases can have held."""
    task = task_of(growth=0.1, forgetting='half_life = 80000, of = "records"')
    assert task.growth.largest == 10_000
    newest = Newest(task, lambda: 60, lambda: 2e9)
    seen = replace(some_model(task, 40), watermark=60 * 9_000)
    assert newest.take(40, seen) == "taken"
    assert newest.take(41, replace(some_model(task, 41), watermark=60 * 10_001)) == "refused"


def test_windows_are_no_longer_than_it_takes_to_fade() -> None:
    task = task_of(growth=0.1, forgetting='half_life = 5000, of = "records"')
    assert task.growth.largest == 600
    timed = task_of(forgetting='half_life = 60, of = "seconds"')
    assert growth_of(timed.study, grows=True).divisor == 0
    with pytest.raises(ConfigError, match="fade with time"):
        task_of(growth=0.1, forgetting='half_life = 60, of = "seconds"')
