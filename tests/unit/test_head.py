"""What a head says of its clients is what the clients say, and an estimate needs the head alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pipeline.errors import StateError
from pipeline.messages.estimate import write_estimate
from pipeline.methods import task_of
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine, start_is_over
from pipeline.stream.partition import Partition, Snapshot, differences
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, folded, relogged, sample_log, study_text

TASK = task_of(parse_study(study_text(p=2, records=8)))
LOG = sample_log(TASK, releases=30, clients=3)


def torn(seed: int) -> list[LogEntry]:
    """Return a log with gaps, late releases, repeats, and records that are none."""
    rng = np.random.default_rng(seed)
    kept = [LOG[i] for i in rng.permutation(30)[: rng.integers(5, 30)]]
    again = [kept[i] for i in rng.integers(0, len(kept), 6)]
    bad = [LogEntry(0, b"client-0", b"none"), LogEntry(0, b"client-9", LOG[1].value)]
    mixed = [*kept, *again, *bad]
    return relogged([mixed[i] for i in rng.permutation(len(mixed))])


@pytest.mark.parametrize("seed", range(20))
def test_a_head_counts_what_its_clients_say_however_the_log_is_cut(seed: int) -> None:
    log = torn(seed)
    one, by_record = folded(TASK, log), folded(TASK, log, [1] * len(log))
    assert differences(one, by_record) == []
    head, progress = one.head, one.clients.values()
    assert head.clients == len(one.clients)
    assert head.missing == sum(entry.missing for entry in progress)
    assert head.furthest == max(entry.highest for entry in progress)
    assert head.largest == max(entry.counted for entry in progress)
    assert head.folded * TASK.slots == sum(entry.counted for entry in progress)
    assert head.folded == sum(state.releases for state in one.sums.states.values())


def test_the_logs_of_these_tests_have_holes_and_repeats() -> None:
    heads = [folded(TASK, torn(seed)).head for seed in range(20)]
    assert all(head.missing and head.dead_letters == 2 for head in heads)
    assert all(head.duplicates == 6 for head in heads)


@pytest.mark.parametrize("seed", range(3))
def test_an_estimate_of_sums_alone_is_that_of_whole_states_to_the_last_bit(seed: int) -> None:
    log = torn(seed)
    keys = sorted({entry.key for entry in log if entry.key is not None})
    parts = [[entry for entry in log if entry.key == key] for key in keys]
    whole = {n: folded(TASK, relogged(part)) for n, part in enumerate(parts)}
    bare = {n: alone(state) for n, state in whole.items()}
    written = [
        write_estimate(
            combine(TASK, states, topic="t", model_version=2, published_at=1.0)[1]  # type: ignore[arg-type]
        )
        for states in (whole, bare)
    ]
    assert written[0] == written[1]
    message = msgspec.json.decode(written[0])
    assert message["clients"] == len({c for state in whole.values() for c in state.clients})
    assert message["diagnostics"]["missing"] == sum(
        entry.missing for state in whole.values() for entry in state.clients.values()
    )
    assert start_is_over(TASK, whole.values()) is start_is_over(TASK, bare.values())


def test_a_head_that_its_clients_do_not_bear_out_is_refused() -> None:
    state = folded(TASK, torn(0))
    state.head = msgspec.structs.replace(state.head, missing=state.head.missing + 1)
    with pytest.raises(StateError, match="state rebuild"):
        Partition.decode(TASK, state.fields(everything=True), state.client_fields(everything=True))


def test_a_stream_that_is_folded_from_its_middle_misses_nothing_before_it() -> None:
    state = Partition.empty(TASK).starting_at(12)
    state.midway = True
    Reducer(TASK).fold(state, LOG[12:])
    assert (state.head.missing, state.head.furthest) == (0, 9)


def alone(state: Partition) -> Snapshot:
    """Return what is stored of a state, without its clients."""
    return Snapshot.decode(TASK, state.fields(everything=True))


def test_the_largest_share_of_a_client_is_counted_over_all_partitions() -> None:
    """One client of three sends as much as the two others together, in another partition."""
    shares = []
    for busy in (10, 5, 20):
        logs = [
            sample_log(TASK, releases=busy, clients=1),
            sample_log(TASK, releases=10, clients=2),
        ]
        states = {n: folded(TASK, log) for n, log in enumerate(logs)}
        _, message = combine(TASK, states, topic="t", model_version=1, published_at=1.0)
        shares.append(message.diagnostics.largest_client_share)
    assert shares == [10 / 20, 5 / 15, 20 / 30]
    _, empty = combine(TASK, {}, topic="t", model_version=None, published_at=1.0)
    assert empty.diagnostics.largest_client_share is None


def test_repeats_and_gaps_make_no_share_larger() -> None:
    again = [LOG[i] for i in (0, 1, 2, 0, 0, 0, 3, 24)]
    state = folded(TASK, relogged(again))
    counts = sorted(progress.counted for progress in state.clients.values())
    assert sum(counts) == 5 * TASK.slots
    assert state.head.largest == counts[-1]
