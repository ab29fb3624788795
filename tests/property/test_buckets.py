"""Order of arrival, batches and partitions do not matter to what is kept and what it adds up to."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.estimators.forgetting import KEPT
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import estimate_of
from pipeline.stream.partition import Partition
from tests.builders import LogEntry, SeededStream, folded, payload_of, relogged, simulate, task_of

#: Width of a bucket: 8 record slots, or 8 seconds.
OF = {"records": 'half_life = 64, of = "records"', "seconds": 'half_life = 64, of = "seconds"'}
BUCKETS, CLIENTS = 90, 3


@lru_cache
def log_of(of: str, pace: int = 2) -> tuple[Task, list[LogEntry]]:
    """Releases of three clients in more buckets than are kept, with gaps between them.

    pace: Releases that come while the clock goes on by one; 1: models have seen all that came.
    """
    task = task_of(p=1, records=8, epsilon=8.0, loss="logistic", forgetting=OF[of])
    rng, stream = np.random.default_rng(0), SeededStream(0)
    entries = []
    for i in range(2 * BUCKETS):
        client, seq = f"c{i % CLIENTS}", i // CLIENTS
        age = 8 * (i // pace) * (1 + i // 100)
        model = Model(i // 4, rng.integers(-99, 99, 2) * (i > 3), (1024, 1024), age)
        value = payload_of(
            task, *simulate(rng, 8, 1), model, stream, client=client, ledger=client, seq=seq
        )
        entries.append(LogEntry(i, client.encode(), value, timestamp=1000 * age))
    return task, entries


def of_partitions(
    task: Task, entries: list[LogEntry], homes: list[int], sizes: list[int]
) -> list[Partition]:
    return [
        folded(task, relogged([e for e in entries if homes[int(e.key[1:])] == home]), sizes)
        for home in sorted(set(homes))
    ]


@settings(max_examples=3)
@given(
    of=st.sampled_from(sorted(OF)),
    order=st.randoms(use_true_random=False),
    homes=st.lists(st.integers(0, 2), min_size=CLIENTS, max_size=CLIENTS),
    sizes=st.lists(st.integers(0, 70), max_size=8),
)
def test_any_order_in_any_batches_and_partitions_gives_the_same_bits(
    of: str, order: object, homes: list[int], sizes: list[int]
) -> None:
    task, entries = log_of(of)
    whole = folded(task, entries)
    assert len(whole.sums.states) == KEPT
    shuffled = list(entries)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    one = folded(task, relogged(shuffled), sizes)
    assert one.sums.encode() == whole.sums.encode()
    assert (one.head.forgotten, one.head.slots) == (whole.head.forgotten, whole.head.slots)
    assert {n: p.encode() for n, p in one.clients.items()} == {
        n: p.encode() for n, p in whole.clients.items()
    }
    parts = of_partitions(task, shuffled, homes, sizes)
    merged = Partition.empty(task).sums
    for part in parts:
        merged.add(part.sums)
    assert merged.encode() == whole.sums.encode()
    wanted, found = estimate_of(task, [whole]), estimate_of(task, parts)
    assert found.coefficients.tobytes() == wanted.coefficients.tobytes()
    assert found.effective_records == wanted.effective_records


@pytest.mark.parametrize("of", sorted(OF))
def test_only_releases_of_the_highest_buckets_are_in_the_sums(of: str) -> None:
    task, entries = log_of(of)
    whole = folded(task, entries)
    late = folded(task, relogged(entries[-2 * KEPT :]))
    assert whole.sums.encode() == late.sums.encode()
    assert whole.head.forgotten == len(entries) - 2 * KEPT
    assert late.head.forgotten == 0


def test_a_release_that_comes_too_late_moves_its_client_on_and_no_sum() -> None:
    task, entries = log_of("records")
    state = folded(task, relogged([e for e in entries if e.offset]))
    before, forgotten = state.sums.encode(), state.head.forgotten
    assert state.clients["c0"].missing == 1
    late = LogEntry(len(entries) - 1, entries[0].key, entries[0].value)
    assert Reducer(task).fold(state, [late]) == []
    assert state.sums.encode() == before
    assert state.clients["c0"].missing == 0
    assert state.head.forgotten == forgotten + 1


def test_stored_fields_follow_the_state_over_commits_that_drop_buckets() -> None:
    task, entries = log_of("records")
    state, reducer, stored = Partition.empty(task), Reducer(task), {}
    for start in range(0, len(entries), 7):
        reducer.fold(state, entries[start : start + 7])
        stored |= state.fields(everything=start == 0)
        for name in state.removed_fields():
            stored.pop(name, None)
        state.stored()
        assert stored == state.fields(everything=True)


def test_one_forged_release_neither_drops_nor_ages_the_others() -> None:
    task, entries = log_of("records", pace=1)
    entries = entries[: 2 * 40]
    honest = estimate_of(task, [folded(task, entries)])
    model = Model(3, np.array([4096, 0]), (1024, 1024), 2**53 - 1)
    rows = simulate(np.random.default_rng(1), 8, 1)
    forged = payload_of(task, *rows, model, SeededStream(1), client="liar", ledger="l")
    found = estimate_of(task, [folded(task, [*entries, LogEntry(80, b"liar", forged)])])
    assert found.effective_records is not None
    assert honest.effective_records is not None
    # a release more, and a clock that is a window ahead
    assert abs(found.effective_records - honest.effective_records) < 16
