"""What one release can say of its client: places that cannot be, and what a gap costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.model import Newest
from pipeline.messages.release import MOST_LOST
from pipeline.privacy import memory
from pipeline.release.policy import Growth, growth_of
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, Progress
from tests.builders import LogEntry, relogged, sample_log, some_model, task_of
from tests.wire import edited


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
