"""What must hold after a storm of crashes and restores: every record noised once, nothing repeated.

One feature of a planted study is the record's own number. Its sums leave without privacy and are
exact, as numbers below 2^16 on a range of a power of two are dyadic: count, sum and sum of squares
tell whether the records of a window follow each other, and from which on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.messages.release import header_of, read
from pipeline.release.task import Task
from pipeline.trust import GENERATION, MAC_SIZE
from tests.stage import Stage

#: Numbers of planted records are below this.
MARKS = 1 << 16
PLANTED = f"""\
[study]
name = "{{name}}"
[data]
response = {{{{ name = "failed", kind = "number", min = -1, max = 1 }}}}
[data.features]
mark = {{{{ min = 0, max = {MARKS} }}}}
load = {{{{ min = -1, max = 1 }}}}
[estimator]
loss = "linear"
[privacy]
mechanism = "none"
[window]
records = {{records}}
[stream]
partitions = 2
retention = "forever"
publish = {{{{ releases = 4, seconds = 0.2, pause = 0.05 }}}}
"""

Identity = tuple[str, str, int]


def payloads(log: Iterable[Any]) -> dict[Identity, set[bytes]]:
    """Return the bytes that every (client, ledger, number) has had in a log, without its MAC.

    What waits while the study changes its key leaves under the new one.
    """
    found: dict[Identity, set[bytes]] = {}
    for record in log:
        if record.value[:1] == b"{":
            # an admission or a revocation
            continue
        release = header_of(record.value)
        # a payload has digests of both names; the key of its record has the client's own
        identity = record.key.decode(), release.ledger, release.seq
        bare = bytearray(record.value)
        bare[GENERATION], bare[-MAC_SIZE:] = bytes(2), bytes(MAC_SIZE)
        found.setdefault(identity, set()).add(bytes(bare))
    return found


def noised_twice(found: dict[Identity, set[bytes]]) -> list[Identity]:
    """Return the numbers that have had more than one noise."""
    return sorted(identity for identity, held in found.items() if len(held) > 1)


def marks(task: Task, payload: bytes) -> range | None:
    """Return the numbers of the records in a window of a planted study; None if they jump."""
    release = read(task, payload)
    sums = release.parts["curvature"]
    # the packed upper triangle of (1, mark, load): 1, mark, load, mark^2, ...
    count, first, square = int(sums[0]), float(sums[1]), float(sums[3])
    start = ((first / count + 1) * MARKS - (count - 1)) / 2
    found = range(int(start), int(start) + count)
    x = 2 * np.arange(start, start + count) / MARKS - 1
    whole = start == int(start) and count == release.header.records
    return found if whole and float(x.sum()) == first and float(x @ x) == square else None


def shared_records(task: Task, found: dict[Identity, set[bytes]]) -> list[str]:
    """Return what is wrong with the records in the releases of a planted study."""
    faults, seen = [], dict[tuple[str, int], Identity]()
    for identity in sorted(found):
        for payload in found[identity]:
            window = marks(task, payload)
            if window is None:
                faults.append(f"{identity}: its records do not follow each other")
            for mark in window or ():
                other = seen.setdefault((identity[0], mark), identity)
                if other != identity:
                    faults.append(f"record {mark} is in {other} and in {identity}")
    return faults


def uncounted(
    stage: Stage, client: str, rows: int, found: dict[Identity, set[bytes]]
) -> tuple[list[str], int]:
    """Return what is wrong with a client's accounts, and how many of its releases never left.

    All windows are full: a record in two releases would make more of them than the source has, and
    a slot that is passed over, and was in no release, fewer.
    """
    [(next_seq, records, rejected, owed)] = stage.query(
        client, "SELECT next_seq, records, rejected, owed FROM streams"
    )
    lost = {seq for (seq,) in stage.query(client, "SELECT seq FROM ledger WHERE lost = 1")}
    sent = {seq for name, _, seq in found if name == client}
    slots, faults = stage.task.slots, list[str]()
    if next_seq * slots - owed != rows:
        faults.append(f"{client}: {next_seq} releases of {slots} slots, and {rows} records")
    # what waited in a copy, and may not leave, was made there and counts as lost
    dropped = records + rejected + len(lost) * slots - rows
    if owed or dropped < 0 or dropped % slots:
        faults.append(f"{client}: {records} used, {len(lost)} releases lost, {owed} slots owed")
    if not sent <= set(range(next_seq)) or set(range(next_seq)) - sent - lost:
        faults.append(f"{client}: numbers are not those of its ledger")
    if len({ledger for name, ledger, _ in found if name == client}) > 1:
        faults.append(f"{client}: more than one ledger")
    if stage.query(client, "SELECT count(*) FROM outbox") != [(0,)]:
        faults.append(f"{client}: releases were not sent")
    return faults, next_seq - len(sent)
