"""From payloads to state, pure: the heart of the system.

- `fold`: a batch of log records into a partition's state; bad ones come back as dead letters.
- `numbering`: which releases of a batch are new. `head`: counters, and what has come of a client.
- `admissions`: who may release. `partition`: the state of a partition and its stored form.
  `checksums`: of what is stored.
- `merging`: the states of all partitions to one estimate and the next model, and when the first
  one may go out.
"""

from pipeline.reducer.fold import OFFLINE, LogRecord, Reducer, known
from pipeline.reducer.head import HEAD, SCHEMA, Head
from pipeline.reducer.merging import (
    combine,
    estimate_of,
    expansion_of,
    holds_releases,
    model_after,
    slots_seen,
    start_is_over,
)
from pipeline.reducer.partition import Partition, Snapshot, Summed, differences

__all__ = [
    "HEAD",
    "OFFLINE",
    "SCHEMA",
    "Head",
    "LogRecord",
    "Partition",
    "Reducer",
    "Snapshot",
    "Summed",
    "combine",
    "differences",
    "estimate_of",
    "expansion_of",
    "holds_releases",
    "known",
    "model_after",
    "slots_seen",
    "start_is_over",
]
