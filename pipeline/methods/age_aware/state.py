"""The state at the worker: the newest rounds of each client, the same bits in any order.

Which rounds of a client are kept depends on those that have come, not on their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.forgetting import State
from pipeline.release.layout import Rows

#: Rounds that are kept of a client. A round that waits for others longer than that is lost, and
#: which rounds are over, no partition knows alone.
KEPT = 64
HEAD = "head"


@dataclass(slots=True)
class Uploads:
    """What a client has sent: how many releases, and the newest sums by round."""

    releases: int = 0
    sums: dict[int, int] = field(default_factory=dict)

    def dropped(self, number: int) -> bool:
        """Return whether a round is older than those that are kept."""
        return len(self.sums) == KEPT and number < min(self.sums)

    def put(self, number: int, total: int) -> None:
        """Add the sum of a round, and drop one that is too old."""
        self.sums[number] = total
        if len(self.sums) > KEPT:
            del self.sums[min(self.sums)]


@dataclass(slots=True)
class RoundState(State):
    """Sums of rounds, client by client.

    clients: By the digest of the client's id, 32 hexadecimal digits.
    slots: Record slots of all releases.
    dirty: Names of the fields that changed since they were last stored.
    """

    clients: dict[str, Uploads] = field(default_factory=dict)
    releases: int = 0
    slots: int = 0
    dirty: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""
        return [HEAD, *sorted(self.clients)]

    def fold(self, rows: Rows) -> None:
        """Add releases: a client's number of a release is the round that it is of."""
        numbers, sums = rows["seq"].tolist(), rows["sums"][:, 0].tolist()
        for digest, number, total in zip(rows["client"], numbers, sums, strict=True):
            name = digest.tobytes().hex()
            uploads = self.clients.setdefault(name, Uploads())
            uploads.releases += 1
            uploads.put(number, total)
            self.dirty.add(name)
        if len(rows):
            self.dirty.add(HEAD)
        self.releases += len(rows)
        self.slots += int(rows["records"].sum())

    def add(self, other: RoundState) -> None:
        """Add the sums of another partition, which stays as it is."""
        for name, theirs in other.clients.items():
            uploads = self.clients.setdefault(name, Uploads())
            uploads.releases += theirs.releases
            for number, total in theirs.sums.items():
                uploads.put(number, total)
        self.releases += other.releases
        self.slots += other.slots

    def encode_field(self, name: str) -> bytes:
        """Return one field as little-endian int64."""
        if name == HEAD:
            return np.array([self.releases, self.slots, len(self.clients)], "<i8").tobytes()
        uploads = self.clients[name]
        pairs = [number for pair in sorted(uploads.sums.items()) for number in pair]
        return np.array([uploads.releases, *pairs], dtype="<i8").tobytes()

    @classmethod
    def decode(cls, fields: dict[str, bytes]) -> RoundState:
        """Rebuild a state from all fields that `encode` gave.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        state = cls()
        head = fields.get(HEAD, b"")
        if len(head) != 24:
            raise _broken()
        state.releases, state.slots, clients = np.frombuffer(head, dtype="<i8").tolist()
        for name, data in fields.items():
            if name == HEAD:
                continue
            if len(name) != 32 or not set(name) <= set("0123456789abcdef"):
                raise StateError(
                    f"the stored state has a field {name!r}, which this version does not know; "
                    "the operator must start the version that wrote it, or run `veilstream state "
                    "rebuild`"
                )
            if len(data) % 16 != 8 or len(data) > 8 * (1 + 2 * KEPT):
                raise _broken()
            releases, *pairs = np.frombuffer(data, dtype="<i8").tolist()
            sums = dict(zip(pairs[::2], pairs[1::2], strict=True))
            state.clients[name] = Uploads(releases, sums)
        held = sum(uploads.releases for uploads in state.clients.values())
        if (clients, state.releases) != (len(state.clients), held):
            raise _broken()
        return state


def _broken() -> StateError:
    return StateError(
        "the stored sums of rounds lack something, or cannot be read; run `veilstream state "
        "rebuild`"
    )
