"""Batches of records to the windows of their clients, with the moment at which each one closes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.records.encoder import Arrays
from pipeline.study.growth import Growth
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Part:
    """The next records of a history, encoded and placed in time.

    first: Number of the first record in the whole history, from 0.
    clock: When each record arrives, shape (n,), never falling: seconds since 1970, or its number.
    clients: Number of the client of each record, shape (n,).
    features, responses, written, usable: As in `Encoded`.
    """

    first: int
    clock: Vector
    clients: Integers
    features: Matrix
    responses: Vector
    written: Vector
    usable: NDArray[np.bool_]

    def between(self, begin: int, end: int) -> Part:
        """Return some of its records, by their place in it."""
        rows = slice(begin, end)
        return Part(
            self.first + begin, self.clock[rows], self.clients[rows], self.features[rows],
            self.responses[rows], self.written[rows], self.usable[rows],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A point of the history: a time, and which record was the last before it.

    Of two things at the same time the one that an earlier record caused comes first; what record
    i causes comes after the prediction of record i and before that of record i + 1.
    """

    clock: float
    cause: int

    def later(self, by: float) -> Moment:
        """Return a later moment with the same cause."""
        return Moment(self.clock + by, self.cause)


@dataclass(frozen=True, slots=True)
class Opened:
    """A window whose first block is full, or that closes before: at the newest model by then.

    size: How many slots it may hold.
    """

    at: Moment
    client: int
    size: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A window that is closed, with its slots."""

    at: Moment
    client: int
    rows: Arrays


@dataclass(slots=True)
class _Open:
    """A window that fills; begun: as `Windows.begun` was when it had a model, None before."""

    opened: float
    size: int
    begun: bool | None = None
    taken: int = 0
    last: int = 0
    features: list[Matrix] = field(default_factory=list)
    responses: list[Vector] = field(default_factory=list)


class Windows:
    """The open windows of all clients.

    growth: How large they are.
    seconds: A window closes this long after its first slot; None: only when it is full.

    begun: Whether clients have a model by now: what they release at one lets windows grow.
    """

    def __init__(self, growth: Growth, seconds: float | None) -> None:
        self._growth, self._seconds, self.begun = growth, seconds, False
        self._open: dict[int, _Open] = {}
        self._before: dict[int, int] = {}

    @property
    def room(self) -> int:
        """How many records may come before another than the last of them closes a full window."""
        rooms = [held.size - held.taken for held in self._open.values()]
        return min([self._growth.records, *rooms])

    def cut(self, part: Part) -> list[Opened | Closed]:
        """Take records; return the windows that open and close by the last of them, in order."""
        order = np.argsort(part.clients, kind="stable")
        bounds = np.flatnonzero(np.diff(part.clients[order])) + 1
        found: list[Opened | Closed] = []
        for rows in np.split(order, bounds) if len(order) else []:
            found += self._fill(part, int(part.clients[rows[0]]), rows)
        if self._seconds is not None and len(part.clock):
            found += self._close_by(float(part.clock[-1]))
        found.sort(key=lambda window: window.at)
        return found

    def rest(self, at: Moment) -> Iterator[Opened | Closed]:
        """Close what is left, in the order of the first slots."""
        for step, client in enumerate(sorted(self._open, key=lambda one: self._open[one].opened)):
            yield from self._end(client, Moment(at.clock, at.cause + step))

    def _fill(self, part: Part, client: int, rows: Integers) -> Iterator[Opened | Closed]:
        clock, done = part.clock[rows], 0
        while done < len(rows):
            held = self._open.get(client)
            if held is None:
                size = self._growth.next_window(self._before.get(client, 0))
                held = self._open[client] = _Open(float(clock[done]), size)
            until = held.size if held.begun is not None else self._growth.records
            full = end = min(done + until - held.taken, len(rows))
            if self._seconds is not None:
                deadline = held.opened + self._seconds
                end = max(done, min(full, int(np.searchsorted(clock, deadline))))
                if not held.taken:
                    end = max(end, done + 1)  # a window has its first slot, however short it is
            self._take(held, part, rows[done:end])
            done = end
            if held.taken == until:
                at = Moment(float(clock[end - 1]), held.last)
                yield from self._begin(client, at)
                if held.taken == held.size:
                    yield self._close(client, at)
            elif end < full and self._seconds is not None:
                yield from self._end(client, Moment(held.opened + self._seconds, held.last))

    def _take(self, held: _Open, part: Part, rows: Integers) -> None:
        if not len(rows):
            return
        held.taken += len(rows)
        held.last = part.first + int(rows[-1])
        usable = part.usable[rows]
        held.features.append(np.where(usable[:, None], part.features[rows], 0.0))
        held.responses.append(np.where(usable, part.responses[rows], np.nan))

    def _close_by(self, now: float) -> Iterator[Opened | Closed]:
        seconds = self._seconds or 0.0
        for client in sorted(c for c, held in self._open.items() if held.opened + seconds <= now):
            held = self._open[client]
            yield from self._end(client, Moment(held.opened + seconds, held.last))

    def _begin(self, client: int, at: Moment) -> Iterator[Opened]:
        held = self._open[client]
        if held.begun is None:
            held.begun = self.begun
            yield Opened(at, client, held.size)

    def _end(self, client: int, at: Moment) -> Iterator[Opened | Closed]:
        yield from self._begin(client, at)
        yield self._close(client, at)

    def _close(self, client: int, at: Moment) -> Closed:
        held = self._open.pop(client)
        if held.begun:
            blocks = -(-held.taken // self._growth.records)
            self._before[client] = self._before.get(client, 0) + blocks * self._growth.records
        rows = Arrays(np.concatenate(held.features), np.concatenate(held.responses))
        return Closed(at, client, rows)
