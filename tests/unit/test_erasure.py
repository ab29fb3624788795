"""A client that is taken out leaves the sums as if it had never been there."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine, estimate_of
from pipeline.stream.partition import Partition, differences
from tests.builders import LogEntry, folded, relogged, sample_log, task_of

TASKS = {
    f"{kind}-{how}": task_of(p=2, records=30, private=kind == "private", forgetting=forgetting)
    for kind in ("private", "open")
    for how, forgetting in (("plain", None), ("forgetting", 'half_life = 90, of = "records"'))
}


def without(kind: str, entries: list[LogEntry], sizes: tuple[int, ...] = ()) -> Partition:
    """Fold a log with the second client erased."""
    task = TASKS[kind]
    state, at = Partition.empty(task, frozenset({"client-1"})), 0
    for size in (*sizes, len(entries)):
        assert Reducer(task).fold(state, entries[at : at + size]) == []
        at += size
    return state


@pytest.mark.parametrize("kind", TASKS)
def test_the_sums_are_those_of_a_fold_that_never_saw_the_client(kind: str) -> None:
    task, log = TASKS[kind], sample_log(TASKS[kind])
    never = folded(task, relogged([e for e in log if e.key != b"client-1"]))
    found = without(kind, log)
    assert found.sums.encode() == never.sums.encode()
    assert found.client_fields(everything=True) == never.client_fields(everything=True)
    one, two = estimate_of(task, [found]), estimate_of(task, [never])
    assert one.coefficients.tobytes() == two.coefficients.tobytes()
    assert differences(found, without(kind, log, (1, 4, 7))) == []
    assert found.head.erased == sum(e.key == b"client-1" for e in log)


@pytest.mark.parametrize("kind", TASKS)
def test_late_and_repeated_releases_of_the_client_are_counted_and_nothing_else(kind: str) -> None:
    task, log = TASKS[kind], sample_log(TASKS[kind])
    mine = [e for e in log if e.key == b"client-1"]
    state, before = without(kind, log), without(kind, log).sums.encode()
    again = relogged([*log, *mine, *mine])[len(log) :]
    assert Reducer(task).fold(state, again) == []
    assert state.sums.encode() == before
    assert state.head.erased == 3 * len(mine)
    assert (state.head.duplicates, state.head.dead_letters) == (0, 0)
    assert state.head.next_offset == len(log) + 2 * len(mine)


def test_the_record_slots_that_models_tell_do_not_go_back() -> None:
    kind = "private-forgetting"
    log = sample_log(TASKS[kind])
    assert without(kind, log).head.slots == folded(TASKS[kind], log).head.slots == 30 * len(log)


def test_the_estimate_counts_the_other_clients_and_says_how_many_releases_it_left_out() -> None:
    kind = "private-plain"
    log = sample_log(TASKS[kind])
    _, message = combine(
        TASKS[kind], {0: without(kind, log)}, topic="t", model_version=1, published_at=0.0
    )
    assert message.clients == 2
    assert message.diagnostics.erased == 8
    assert message.releases == len(log) - 8
    assert message.diagnostics.missing == 0


def test_a_bad_release_in_the_name_of_an_erased_client_is_still_a_dead_letter() -> None:
    kind = "private-plain"
    log = list(sample_log(TASKS[kind]))
    log[1] = dataclasses.replace(log[1], value=b"?")
    state = Partition.empty(TASKS[kind], frozenset({"client-1"}))
    assert len(Reducer(TASKS[kind]).fold(state, log)) == 1
    assert (state.head.dead_letters, state.head.erased) == (1, 7)
