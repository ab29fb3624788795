"""Bad releases leave nothing behind in memory, whatever the collector does."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from pipeline.methods import task_of
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition, Progress
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, relogged, sample_log, study_text

TASK = task_of(parse_study(study_text(p=9, records=8)))
LOG = sample_log(TASK, releases=30, clients=3)
BATCH, BATCHES = 600, 8

BAD: dict[str, Callable[[LogEntry, int], LogEntry]] = {
    "undecodable": lambda good, i: LogEntry(0, b"x%d" % i, bytes(good.value or b"")[::-1]),
    "wrong-shape": lambda good, i: LogEntry(0, good.key, (good.value or b"")[:-1]),
    "wrong-key": lambda good, i: LogEntry(0, b"x%d" % i, good.value),
    "foreign-ledger": lambda good, i: good,
}


@pytest.mark.parametrize(
    "reason",
    # one that is not read, one that is read and not folded, and others like them
    ["undecodable", "foreign-ledger",
     *(pytest.param(reason, marks=pytest.mark.slow) for reason in ("wrong-shape", "wrong-key"))],
)  # fmt: skip
def test_folding_bad_releases_takes_no_memory(reason: str) -> None:
    """A caught fault held its frame, the frame the batch: 210,000 took a worker to 745 MiB."""
    state, reducer = Partition.empty(TASK), Reducer(TASK)
    state.clients |= {f"client-{i}": Progress("00" * 16, -1) for i in range(3)}
    entries = [BAD[reason](LOG[i % len(LOG)], i) for i in range(BATCH)]
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
