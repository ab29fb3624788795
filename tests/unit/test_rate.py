"""`trust.rate`: what counts of a client that sends many releases, against a plain oracle."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.methods import task_of
from pipeline.release.layout import identity
from pipeline.release.task import Task
from pipeline.stream.fold import OFFLINE, Reducer
from pipeline.stream.partition import Partition, Progress, differences
from pipeline.study_file.load import parse_study
from producers.membership import TOO_MANY, Counted
from tests.builders import LogEntry, folded, relogged, sample_log, study_text

RELEASES, OF = 3, 12


def limited(releases: int = RELEASES, of: int = OF, **settings: object) -> Task:
    rate = f'\n[trust]\nreleases = "open"\nrate = {{ releases = {releases}, of = {of} }}\n'
    return task_of(parse_study(study_text(p=2, records=30, **settings) + rate))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def task() -> Task:
    return limited()


@pytest.fixture(scope="module")
def log(task: Task) -> list[LogEntry]:
    """Three clients in one log: bursts, repeats, numbers left out and late ones."""
    whole = sample_log(task, releases=90, clients=3, start=90)
    rng = np.random.default_rng(3)
    shares = np.array(
        [{b"client-0": 0.0, b"client-1": 40.0}.get(e.key or b"", 80.0) for e in whole]
    )
    places = np.argsort(shares + np.arange(90) / 3 + rng.uniform(0, 12, 90), kind="stable")
    again = rng.integers(0, 90, 20)
    return relogged([whole[i] for i in np.insert(places, rng.integers(0, 90, 20), again)])


def counted_by_hand(log: list[LogEntry], seqs: list[int]) -> tuple[set[int], set[int]]:
    """Return the offsets that count, and those that are refused: positions are counted anew."""
    noted, counts, refused = set[tuple[bytes, int]](), list[tuple[int, bytes]](), set[int]()
    for entry, seq in zip(log, seqs, strict=True):
        key = entry.key or b""
        if (key, seq) in noted:
            continue
        noted.add((key, seq))
        last = range(entry.offset - OF + 1, entry.offset + 1)
        if sum(1 for at, who in counts if who == key and at in last) < RELEASES:
            counts.append((entry.offset, key))
        else:
            refused.add(entry.offset)
    return {at for at, _ in counts}, refused


def seqs_of(log: list[LogEntry]) -> list[int]:
    return [int.from_bytes((entry.value or b"")[80:88], "little") for entry in log]


def test_what_counts_is_what_an_oracle_counts_in_any_batches(
    task: Task, log: list[LogEntry]
) -> None:
    counts, refused = counted_by_hand(log, seqs_of(log))
    assert min(len(counts), len(refused)) > 15
    for size in (len(log), 1, 7):
        state, reducer, letters = Partition.empty(task), Reducer(task), []
        for start in range(0, len(log), size):
            letters += reducer.fold(state, log[start : start + size])
        assert {letter.offset for letter in letters} == refused
        assert {letter.fault.reason for letter in letters} == {"rate"}
        assert state.head.folded == len(counts) == state.sums.at(0).releases
        assert state.head.duplicates == len(log) - len(counts) - len(refused)
        assert differences(state, folded(task, log)) == []
    most = Counter(log[at].key for at in counts).most_common(1)[0][1]
    assert state.head.largest == most * task.slots
    above = Counter(log[at].key for at in refused)
    assert {n.encode(): held.refused for n, held in state.clients.items() if held.refused} == above
    held = state.clients["client-0"]
    assert len(held.recent) <= RELEASES


def test_a_stored_state_goes_on_as_the_one_that_was_stored(task: Task, log: list[LogEntry]) -> None:
    wanted = folded(task, log)
    for cut in range(0, len(log), 5):
        half = folded(task, log[:cut])
        stored = half.fields(everything=True), half.client_fields(everything=True)
        again = Partition.decode(task, *stored)
        Reducer(task).fold(again, log[cut:])
        assert differences(again, wanted) == []


def test_what_changes_is_stored_with_each_commit(task: Task, log: list[LogEntry]) -> None:
    state, kept = Partition.empty(task), dict[str, bytes]()
    for entry in log:
        Reducer(task).fold(state, [entry])
        kept |= state.client_fields(everything=False)
        state.stored()
    assert kept == state.client_fields(everything=True)


def test_a_client_that_is_always_too_fast_is_never_locked_out() -> None:
    task = limited(1, 2)
    one = sample_log(task, releases=60, clients=1, start=60)
    state = folded(task, one)
    assert (state.head.folded, state.head.dead_letters, state.head.missing) == (30, 30, 0)
    assert state.clients["client-0"].gaps == []


def test_the_client_itself_can_tell_what_is_above_the_rate(task: Task, log: list[LogEntry]) -> None:
    counts, refused = counted_by_hand(log, seqs_of(log))
    own = Counted("client-0", identity(b"l-client-0").hex(), task.study, None)
    for entry in log:
        own.take(entry)
    mine = {entry.offset for entry in log if entry.key == b"client-0"}
    assert len(own.numbers) == len(mine & counts)
    assert own.others[TOO_MANY] == len(mine & refused) > 0
    assert own.others["sent again"] == len(mine - counts - refused) > 0


def test_erased_clients_use_up_nothing(task: Task, log: list[LogEntry]) -> None:
    state = Partition.empty(task, frozenset({"client-0"}))
    letters = Reducer(task).fold(state, log)
    _, refused = counted_by_hand(log, seqs_of(log))
    others = {at for at in refused if log[at].key != b"client-0"}
    assert {letter.offset for letter in letters} == others


def test_records_of_others_make_room_whatever_becomes_of_them(task: Task) -> None:
    one = sample_log(task, releases=RELEASES + 1, clients=1, start=9)
    junk = [dataclasses.replace(one[0], value=b"?")] * (OF - RELEASES)
    assert folded(task, relogged([*one[:-1], *junk[1:], one[-1]])).head.folded == RELEASES
    assert folded(task, relogged([*one[:-1], *junk, one[-1]])).head.folded == RELEASES + 1


def test_what_a_process_makes_itself_is_not_limited(task: Task, log: list[LogEntry]) -> None:
    assert Reducer(task, trust=OFFLINE).fold(Partition.empty(task), log) == []


def test_another_rate_is_another_revision(task: Task) -> None:
    assert len({one.revision for one in (task, limited(2), limited(of=13), limited(5, 100))}) == 4
    found = msgspec.structs.replace(task.study, trust=None)
    assert task_of(found).revision != task.revision


@pytest.mark.parametrize(("releases", "of"), [(0, 10), (10, 10), (11, 10), (1001, 9999), (1, 1)])
def test_a_rate_that_is_none_is_refused_and_named(releases: int, of: int) -> None:
    with pytest.raises(ConfigError, match=r"trust\.rate"):
        limited(releases, of)


TASK = task_of(parse_study(study_text(p=9, records=8)))
BATCH, BATCHES = 600, 8

BAD: dict[str, Callable[[LogEntry, int], LogEntry]] = {
    "undecodable": lambda good, i: LogEntry(0, b"x%d" % i, bytes(good.value or b"")[::-1]),
    "wrong-shape": lambda good, i: LogEntry(0, good.key, (good.value or b"")[:-1]),
    "wrong-key": lambda good, i: LogEntry(0, b"x%d" % i, good.value),
    "foreign-ledger": lambda good, i: good,
}


@pytest.mark.parametrize(
    "reason",
    # one that is not read; others are read and not folded, or like it
    ["undecodable",
     *(pytest.param(reason, marks=pytest.mark.slow)
       for reason in ("foreign-ledger", "wrong-shape", "wrong-key"))],
)  # fmt: skip
def test_folding_bad_releases_takes_no_memory(reason: str) -> None:
    """A caught fault held its frame, the frame the batch: 210,000 took a worker to 745 MiB."""
    state, reducer = Partition.empty(TASK), Reducer(TASK)
    log = sample_log(TASK, releases=30, clients=3)
    state.clients |= {f"client-{i}": Progress("00" * 16, -1) for i in range(3)}
    entries = [BAD[reason](log[i % len(log)], i) for i in range(BATCH)]
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for at in range(BATCHES):
            batch = [LogEntry(at * BATCH + e.offset, e.key, e.value) for e in relogged(entries)]
            letters = reducer.fold(state, batch)
            assert {letter.fault.reason for letter in letters} == {reason}
            assert len(letters) == BATCH
            del letters, batch
            if at == 1:
                before, _ = tracemalloc.get_traced_memory()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    # one batch that stays takes half of this
    assert after - before < 2**18
