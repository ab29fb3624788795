"""The state of one partition: sums, clients' progress, and the log position they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pipeline.errors import StateError
from pipeline.estimators.buckets import Buckets
from pipeline.methods import server_of
from pipeline.reducer.admissions import MARK, Admissions
from pipeline.reducer.checksums import Checksums
from pipeline.reducer.head import HEAD, SUMS, Head, Progress, read_head
from pipeline.release.task import Task


@dataclass(slots=True)
class Partition:
    """Everything that one worker keeps for one partition of the releases topic.

    changed: Clients whose progress moved since it was last stored.
    erased: Clients, of all partitions, whose releases enter nothing.
    admissions: Who may release, where releases are authenticated.
    number: Of the partition; None where releases of all are in one state, and none is forged.
    midway: Whether the log before its first record is left out on purpose: what a client has sent
        there is not missing. It is not stored.
    sums_checksums, clients_checksums: Of the fields of either kind as they were last stored.
    """

    task: Task
    head: Head
    sums: Buckets
    clients: dict[str, Progress] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    erased: frozenset[str] = frozenset()
    midway: bool = False
    sums_checksums: Checksums = field(default_factory=Checksums)
    clients_checksums: Checksums = field(default_factory=Checksums)
    admissions: Admissions = field(default_factory=Admissions)
    number: int | None = None

    @classmethod
    def empty(
        cls, task: Task, erased: frozenset[str] = frozenset(), *, number: int | None = None
    ) -> Partition:
        """Return the state before the first record."""
        sums = empty_sums(task)
        return cls(task, Head(revision=task.revision), sums, erased=erased, number=number)

    def starting_at(self, offset: int) -> Partition:
        """Return this empty state as one that begins at a later offset of the log."""
        # full windows at all offsets before it: what was seen must not become less
        slots = offset * self.task.slots
        self.head = msgspec.structs.replace(
            self.head, next_offset=offset, begun=offset, slots=slots
        )
        return self

    def fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return the snapshot's fields as bytes: all, or those that changed since `stored`."""
        sums = self.sums.encode(everything=everything)
        encoded = {f"{SUMS}{name}": data for name, data in sums.items()}
        head = msgspec.structs.replace(
            self.head,
            erased_clients=len(self.erased),
            admitted=len(self.admissions.clients),
            buckets=len(self.sums.states),
        )
        encoded[HEAD] = msgspec.msgpack.encode(head)
        return encoded

    def removed_fields(self) -> list[str]:
        """Return the names of stored fields that are to be removed."""
        return [f"{SUMS}{name}" for name in sorted(self.sums.removed)]

    def client_fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return what is known of clients as bytes: all, or what changed since `stored`."""
        names = self.clients if everything else self.changed
        progress = {name: self.clients[name].encode() for name in sorted(names)}
        return progress | self.admissions.fields(everything=everything)

    def stored(self) -> None:
        """Note that the snapshot has been written."""
        self.sums.stored()
        self.changed.clear()
        self.admissions.changed.clear()

    @classmethod
    def decode(
        cls,
        task: Task,
        fields: dict[str, bytes],
        clients: dict[str, bytes],
        erased: frozenset[str] = frozenset(),
        number: int | None = None,
    ) -> Partition:
        """Rebuild a partition from all its fields.

        Raises StateError if it was written under another schema or study revision, or is damaged.
        """
        head = read_head(task, fields)
        admissions = Admissions()
        if task.study.authenticated:
            words = {name: data for name, data in clients.items() if name.startswith(MARK)}
            clients = {name: data for name, data in clients.items() if name not in words}
            admissions = Admissions.decode(words)
        if head.admitted != len(admissions.clients):
            raise StateError(
                f"the stored state is about {head.admitted} admitted clients and names "
                f"{len(admissions.clients)}: the store has lost a part of it; run `veilstream "
                "state rebuild`"
            )
        if head.clients != len(clients):
            raise StateError(
                f"the stored state is about {head.clients} clients and has the progress of "
                f"{len(clients)}: the store has lost a part of it; run `veilstream state rebuild`"
            )
        if head.erased_clients != len(erased):
            raise StateError(
                f"the stored state leaves out {head.erased_clients} erased clients and the store "
                f"names {len(erased)}: a worker ran during `state forget`, or the store has lost "
                "some; run `veilstream state rebuild`, and `veilstream state forget` for those it "
                "has lost"
            )
        progress = {name: Progress.decode(data) for name, data in clients.items()}
        missing = sum(entry.missing for entry in progress.values())
        furthest = max((entry.highest for entry in progress.values()), default=-1)
        if (head.missing, head.furthest) != (missing, furthest):
            raise StateError(
                "the counters of the stored state are not those of its clients' progress: the "
                "store has lost a part of it; run `veilstream state rebuild`"
            )
        return cls(
            task=task,
            head=head,
            sums=stored_sums(task, head, fields),
            clients=progress,
            erased=erased,
            admissions=admissions,
            number=number,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sums and counters of a partition, without its clients: what an estimate needs of it."""

    head: Head
    sums: Buckets

    @classmethod
    def decode(cls, task: Task, fields: dict[str, bytes]) -> Snapshot:
        """Rebuild a snapshot from the fields of a partition; StateError as `Partition.decode`."""
        head = read_head(task, fields)
        return cls(head, stored_sums(task, head, fields))


class Summed(Protocol):
    """Sums and counters of a partition, with its clients or without."""

    @property
    def head(self) -> Head:
        """The counters."""

    @property
    def sums(self) -> Buckets:
        """The sums."""


def stored_sums(task: Task, head: Head, fields: dict[str, bytes]) -> Buckets:
    """Rebuild the sums of a partition from its fields.

    Raises StateError if they are not those that its head counts.
    """
    sums = read_sums(
        task, {n.removeprefix(SUMS): d for n, d in fields.items() if n.startswith(SUMS)}
    )
    if head.buckets != len(sums.states):
        raise StateError(
            f"the stored state has {head.buckets} buckets of sums and holds {len(sums.states)}: "
            "the store has lost a part of it; run `veilstream state rebuild`"
        )
    return sums


def empty_sums(task: Task) -> Buckets:
    """Return the sums of a study before the first release."""
    return Buckets(server_of(task).empty)


def read_sums(task: Task, fields: dict[str, bytes]) -> Buckets:
    """Rebuild the sums of a study from the fields that they were stored as.

    Raises StateError if a field is missing, unknown or of the wrong length.
    """
    server = server_of(task)
    return Buckets.decode(server.empty, server.read, fields)


def differences(one: Partition, other: Partition) -> list[str]:
    """Return the names of the stored fields in which two states differ, bit by bit."""
    left = {**one.fields(everything=True), **_prefixed(one)}
    right = {**other.fields(everything=True), **_prefixed(other)}
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def _prefixed(partition: Partition) -> dict[str, bytes]:
    progress = partition.client_fields(everything=True)
    return {f"client.{name}": data for name, data in progress.items()}
