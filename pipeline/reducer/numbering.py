"""Which releases of a batch come for the first time: duplicates, gaps and foreign ledgers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import PayloadError
from pipeline.messages.incoming import Incoming, Mask
from pipeline.reducer.head import Progress
from pipeline.reducer.partition import Partition
from pipeline.release.form import ends_of, slots_of
from pipeline.study.release_tables import Rate
from pipeline.types import Integers


@dataclass(slots=True)
class Numbered:
    """What becomes of sound releases.

    accepted, erased: Which come for the first time, and which are of erased clients.
    faults: By place in the batch.
    duplicates: How many have come before.
    missing: How many more releases are missing now than before; fewer if it is below 0.
    refused: How many releases came that do not count, as their clients sent too many.
    largest: The most record slots that releases of one of the clients of the batch have.
    furthest: The highest number that has come of one of them; -1 without any.
    """

    accepted: Mask
    erased: Mask
    faults: dict[int, PayloadError] = field(default_factory=dict)
    duplicates: int = 0
    missing: int = 0
    refused: int = 0
    largest: int = 0
    furthest: int = -1


def numbered(
    state: Partition, incoming: Incoming, rate: Rate | None, offsets: Sequence[int]
) -> Numbered:
    """Note the numbers of a batch in its clients' progress, and return what is new.

    A client whose releases go on one by one where it stands, as nearly all do, is looked at once
    for the batch; those of any other one by one, in the order of the log, and so all where there
    is a rate.

    offsets: Of the records of the batch.
    """
    rows = incoming.rows
    count = len(rows)
    found = Numbered(np.ones(count, dtype=bool), np.zeros(count, dtype=bool))
    if not count:
        return found
    order = np.argsort(incoming.clients, kind="stable")
    clients, seqs, ledgers = incoming.clients[order], rows["seq"][order], rows["ledger"][order]
    slots = slots_of(rows, state.task.slots)
    ends = ends_of(rows, state.task.slots)
    stands = ends[order]
    begins = stands - slots[order]
    starts = np.flatnonzero(np.diff(clients, prepend=-1))
    steady = np.diff(seqs, prepend=seqs[0]) == 1
    steady[1:] &= (ledgers[1:] == ledgers[:-1]).all(axis=1) & (begins[1:] == stands[:-1])
    steady[starts] = True
    whole = np.logical_and.reduceat(steady, starts)
    stops = np.append(starts[1:], count)
    marks = ledgers[starts].tobytes().hex()
    groups = zip(
        clients[starts].tolist(), starts.tolist(), stops.tolist(), whole.tolist(),
        seqs[starts].tolist(), seqs[stops - 1].tolist(), begins[starts].tolist(),
        stands[stops - 1].tolist(), strict=True,
    )  # fmt: skip
    for at, (client, start, end, one_by_one, first, last, begin, stand) in enumerate(groups):
        name, ledger = incoming.names[client], marks[32 * at : 32 * at + 32]
        if name in state.erased:
            found.accepted[order[start:end]], found.erased[order[start:end]] = False, True
            continue
        progress = state.clients.get(name)
        if progress is None:
            # without the beginning of the log, it stands where its first release says
            before, stood = (first - 1, begin) if state.midway else (-1, 0)
            progress = state.clients[name] = Progress(ledger, before, slots=stood)
        follows = one_by_one and first == progress.highest + 1 and ledger == progress.ledger
        if follows and rate is None and begin == progress.slots:
            progress.highest, progress.slots = last, stand
            progress.counted += int(slots[order[start:end]].sum())
            state.changed.add(name)
        elif _each(found, progress, incoming, (order[start:end], ends, slots), rate, offsets):
            state.changed.add(name)
        found.furthest = max(found.furthest, progress.highest)
        if not state.midway:
            found.largest = max(found.largest, progress.counted)
    return found


def _each(
    found: Numbered,
    progress: Progress,
    incoming: Incoming,
    which: tuple[Integers, Integers, Integers],
    rate: Rate | None,
    offsets: Sequence[int],
) -> bool:
    """Take some releases of one client one by one; return whether any is new.

    which: Their places; of all releases of the batch where they end, in slots, and their own.
    """
    new, (places, ends, slots) = False, which
    for place in places.tolist():
        row, highest = incoming.rows[place], progress.highest
        try:
            outcome = progress.accept(
                row["ledger"].tobytes().hex(), seq := int(row["seq"]),
                int(ends[place]), int(slots[place]),
            )  # fmt: skip
        except PayloadError as fault:
            # its traceback holds this frame, and with it the batch, until the collector comes
            found.faults[int(incoming.places[place])] = fault.with_traceback(None)
            found.accepted[place] = False
            continue
        if outcome == "duplicate":
            found.duplicates += 1
            found.accepted[place] = False
            continue
        found.missing += -1 if outcome == "late" else seq - highest - 1
        new = True
        at = int(incoming.places[place])
        if rate is not None and not within(rate, progress.recent, offsets[at]):
            # its number stays noted: as a gap, a client that is too fast would run out of gaps
            progress.refused += 1
            found.refused += 1
            progress.counted -= int(slots[place])
            found.faults[at] = _too_many(rate)
            found.accepted[place] = False
    return new


def _too_many(rate: Rate) -> PayloadError:
    return PayloadError(
        "rate",
        f"more than {rate.releases} releases of this client among {rate.of} records of its "
        "partition (trust.rate): the client must release less often, with more window.records or "
        "later; who runs the study may raise trust.rate under a new name",
    )


def within(rate: Rate, recent: list[int], offset: int) -> bool:
    """Whether a release may count; if so, it is noted in `recent`.

    It may, if fewer than `rate.releases` of its client count among the `rate.of` positions of the
    log that end with its own: so no run of that length holds more of them.

    recent: Offsets of the client's releases that count, in order; older ones than the rate asks
        for are left out.
    offset: Of the release, above all of these.
    """
    del recent[: bisect_right(recent, offset - rate.of)]
    if len(recent) >= rate.releases:
        return False
    recent.append(offset)
    return True
