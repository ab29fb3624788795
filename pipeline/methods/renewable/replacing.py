"""Sums without privacy that clients send again: each client's own, so that new ones replace them.

A release that is sent again stands for all records of its client so far, at one model. It takes the
place of everything that the client had sent; what comes after it is added. A release that it
already stands for, and comes late, is left out; so is one that was sent again and comes after
newer ones. So the state is a function of the log, and its size grows with clients, not with time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.buckets import State
from pipeline.estimators.estimate import Estimate
from pipeline.messages.form import Rows
from pipeline.methods.base import Server
from pipeline.methods.renewable.open_estimate import estimate_open
from pipeline.methods.renewable.open_server import OpenServer
from pipeline.methods.renewable.open_state import START, SUMS, OpenRow, OpenState
from pipeline.methods.renewable.task import RenewableTask

#: A stored field beside those of clients: how many these are.
CLIENTS = "clients"
_COUNT, _NUMBERS = struct.Struct("<q"), struct.Struct("<qq")


@dataclass(slots=True)
class Own:
    """What counts of one client.

    highest: The highest number of its releases; -1 before the first.
    base: The number of the newest release that was sent again; -1 before the first.
    """

    sums: OpenState
    highest: int = -1
    base: int = -1

    def fold(self, seq: int, row: OpenRow, *, again: bool) -> None:
        """Take one release."""
        if again and seq > self.highest:
            before, self.sums = self.sums.releases, OpenState(self.sums.size)
            self.sums.fold([row])
            self.sums.part("releases")[0] += before
            self.base = seq
        elif again or seq < self.base:
            self.sums.part("releases")[0] += 1
        else:
            self.sums.fold([row])
        self.highest = max(self.highest, seq)

    def encode(self) -> bytes:
        """Write as little-endian numbers."""
        return _NUMBERS.pack(self.highest, self.base) + b"".join(self.sums.encode().values())

    @classmethod
    def decode(cls, size: int, data: bytes) -> Own:
        """Read what `encode` wrote; StateError if it is not that."""
        half = (len(data) - _NUMBERS.size) // 2
        if half < 0:
            raise StateError(
                "the stored sums of a client are cut off; run `veilstream state rebuild`"
            )
        numbers, rest = data[: _NUMBERS.size], data[_NUMBERS.size :]
        sums = OpenState.decode(size, {SUMS: rest[:half], START: rest[half:]})
        return cls(sums, *_NUMBERS.unpack(numbers))


@dataclass(slots=True)
class ReplacingState(State):
    """As `estimators.buckets.State`: the sums of each client, by the digest of its id.

    size: d, the number of coefficients.
    """

    size: int
    clients: dict[str, Own] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)

    def of(self, client: str) -> Own:
        """Return what counts of a client, to be changed."""
        if client not in self.clients:
            self.clients[client] = Own(OpenState(self.size))
            self.dirty.add(CLIENTS)
        self.dirty.add(client)
        return self.clients[client]

    def total(self) -> OpenState:
        """Return the sums of all clients together, in the order of their digests."""
        total = OpenState(self.size)
        for client in sorted(self.clients):
            total.add(self.clients[client].sums)
        return total

    def add(self, other: ReplacingState) -> None:
        """Add the clients of another partition, which stays as it is."""
        for client, theirs in other.clients.items():
            own = self.of(client)
            own.sums.add(theirs.sums)
            own.highest, own.base = max(own.highest, theirs.highest), max(own.base, theirs.base)

    @property
    def releases(self) -> int:
        """How many releases have come, replaced ones included."""
        return sum(own.sums.releases for own in self.clients.values())

    @property
    def slots(self) -> int:
        """How many records the sums stand for."""
        return sum(own.sums.slots for own in self.clients.values())

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""
        return [CLIENTS, *sorted(self.clients)]

    def _encoded(self, name: str) -> bytes:
        if name == CLIENTS:
            return _COUNT.pack(len(self.clients))
        return self.clients[name].encode()

    @classmethod
    def decode(cls, size: int, fields: dict[str, bytes]) -> ReplacingState:
        """Rebuild a state from what `encode` gave; StateError if fields are lost or damaged."""
        clients = {name: data for name, data in fields.items() if name != CLIENTS}
        if fields.get(CLIENTS) != _COUNT.pack(len(clients)):
            raise StateError(
                "the stored sums of some clients are lost; run `veilstream state rebuild`"
            )
        return cls(size, {name: Own.decode(size, data) for name, data in clients.items()})


class ReplacingServer(Server[ReplacingState]):
    """As `methods.base.Server`, where clients send their sums again."""

    ordered = True
    interval = OpenServer.interval

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._open = task, OpenServer(task)
        self._again = task.layout.columns(1)["again"].start

    def slots(self, rows: Rows) -> int:
        """As `Server.slots`: what is sent again is nothing new."""
        new = rows["sums"][:, self._again] == 0
        return int(np.minimum(rows["records"][new], self._task.slots).sum())

    def empty(self, *, trace: bool = False) -> ReplacingState:
        """As `Server.empty`; there is nothing to trace."""
        del trace
        return ReplacingState(self._task.size)

    def read(self, fields: dict[str, bytes]) -> ReplacingState:
        """As `Server.read`."""
        return ReplacingState.decode(self._task.size, fields)

    def fold(self, state: ReplacingState, rows: Rows) -> None:
        """As `Server.fold`."""
        for row in rows:
            again = row["version"] > 0 and row["sums"][self._again] != 0
            own = state.of(row["client"].tobytes().hex())
            own.fold(int(row["seq"]), self._open.row(row), again=bool(again))

    def estimate(
        self,
        parts: Sequence[tuple[float, ReplacingState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        """As `Server.estimate`."""
        del partitions, missing
        return estimate_open(self._task, [(weight, state.total()) for weight, state in parts])
