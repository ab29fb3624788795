"""From a full window to a stored release: bytes and headers, and one transaction for a group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.messages.envelope import BINARY, headers, rfc3339
from pipeline.privacy.events import Event
from pipeline.privacy.memory import empty_rows
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model
from pipeline.release.query import Query
from pipeline.release.task import Task, form_of
from pipeline.stream.release import Standing, release_behind, release_of
from producers.admission import Admission
from producers.client_store import ClientStore, Outgoing, Tally
from producers.event_time import EventTimes
from producers.sources import Source


@dataclass(frozen=True, slots=True)
class Made:
    """A release that is not stored yet; `position` as in `ClientStore.release`."""

    outgoing: Outgoing
    tally: Tally
    position: bytes
    event: Event


class Making:
    """Makes the releases of one client and stores them.

    task, source, store, source_name, admission, publish, times: As `Client` takes them.
    certain: Whether this database is known to hold all of its releases: else what its noise
        remembers may be another's.
    """

    def __init__(
        self, task: Task, source: Source, store: ClientStore, *, certain: bool, source_name: str,
        admission: Admission | None, publish: Callable[[], None], times: EventTimes | None,
    ) -> None:  # fmt: skip
        self._task, self._source, self._store = task, source, store
        self._source_name, self._chained = source_name, task.chained
        standing = store.standing(task.study.name)
        forgets = task.study.privacy.noise_memory == "process"
        gone = task.remembers and not standing.chain.rows.shape[1]
        if standing.chain.number and (forgets or gone or not certain):
            standing = standing.anew()
        self._forgets = forgets
        #: Where the client stands behind what was made, stored or not.
        self.standing = standing
        self._publish, self._told = publish, False
        self._times, self._made = times, list[Made]()
        #: Refuses records that another client or name has released.
        self._guard = (lambda: None) if admission is None else admission.before_release
        # else later releases of a run cost nothing more
        self.each_pays = task.budget.scope != "record"

    def window(self, window: Arrays, model: Model, *, tally: Tally, position: bytes) -> None:
        """Make the release of a window: noise is drawn here, once."""
        payload = release_of(
            self._task, window, model, client=self._store.client, ledger=self._store.ledger,
            seq=self.next_seq,
        )  # fmt: skip
        self._add(payload, self._closed_at, model, tally, position)

    def sums(self, query: Query, *, tally: Tally, position: bytes) -> None:
        """Make the release of a window's sums: noise is drawn here, once."""
        payload, behind = release_behind(
            self._task, query, self.standing, client=self._store.client,
            ledger=self._store.ledger,
        )  # fmt: skip
        self._add(payload, self._closed_at, query.model, tally, position)
        self.standing = behind

    @property
    def _closed_at(self) -> int:
        # whole seconds: a window's time need not tell when its last record came
        return int(time.time()) if self._times is None else self._times.at_close() // 1000

    def commit(self) -> int:
        """Store what was made with its spend, all or nothing, and return how many releases."""
        if not self._made:
            return 0
        tallies, rejected = [made.tally for made in self._made], Counter[str]()
        for tally in tallies:
            rejected.update(tally.rejected)
        position = self._made[-1].position
        self._store.release(
            self._task,
            self._source_name,
            [made.outgoing for made in self._made],
            position=self._source.anchored(position),
            tally=Tally(
                sum(tally.records for tally in tallies),
                rejected,
                sum(tally.clipped for tally in tallies),
            ),
            now=float(int(time.time())),
            events=[made.event for made in self._made],
            latest=None if self._times is None else self._times.closed,
            guard=self._guard,
            standing=self._kept_standing() if self._chained else None,
        )
        if not self._told or self.each_pays:
            self._publish()
            self._told = True
        self._source.forget(position)
        stored = len(self._made)
        self._made.clear()
        return stored

    def _kept_standing(self) -> Standing:
        """Return what is stored of where the client stands: rows of noise, unless they must not."""
        standing = self.standing
        if not self._forgets:
            return standing
        chain = replace(standing.chain, rows=empty_rows(0))
        return Standing(standing.seq, standing.held, chain)

    @property
    def next_seq(self) -> int:
        """Number of the next release that is made."""
        return self.standing.seq

    def _add(self, payload: bytes, at: int, model: Model, tally: Tally, position: bytes) -> None:
        study, client, seq = self._task.study.name, self._store.client, self.next_seq
        marks = headers(
            identity=f"{client}/{study}/{seq}",
            source=f"/veilstream/{study}/{client}",
            kind="veilstream.release",
            schema=form_of(self._task).schema,
            content_type=BINARY,
            time=rfc3339(float(at)),
        )
        outgoing, event = Outgoing(seq, payload, marks), self._task.event(model)
        self._made.append(Made(outgoing, tally, position, event))
        self.standing = Standing(seq + 1, self.standing.held + self._task.slots)
