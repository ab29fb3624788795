"""The state of one partition: sums, clients' progress, and the log position they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pipeline.errors import StateError
from pipeline.estimators.open_state import OpenState
from pipeline.estimators.private_state import PrivateState, Shape
from pipeline.local.plan import Plan
from pipeline.reducer.progress import Progress

#: Version of the stored form; a worker refuses state of another version.
SCHEMA = 2
HEAD, SUMS = "head", "sums."


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a snapshot.

    Attributes
    ----------
    next_offset
        Watermark: the state holds exactly the log below it.
    duplicates, dead_letters
        Records of the log that changed no sum.
    newest
        Time of the newest release, in microseconds since 1970; 0 before the first.
    clients
        How many clients' progress belongs to the snapshot: a store that lost some is found out.
    """

    schema: int = SCHEMA
    revision: str
    next_offset: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    newest: int = 0
    clients: int = 0


@dataclass(slots=True)
class Partition:
    """Everything that one worker keeps for one partition of the releases topic.

    Attributes
    ----------
    changed
        Clients whose progress moved since it was last stored.
    """

    plan: Plan
    head: Head
    sums: PrivateState | OpenState
    clients: dict[str, Progress] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    @classmethod
    def empty(cls, plan: Plan) -> Partition:
        """Return the state before the first record."""
        sums = PrivateState(Shape.of(plan)) if plan.study.noised else OpenState(plan.size)
        return cls(plan, Head(revision=plan.revision), sums)

    def starting_at(self, offset: int) -> Partition:
        """Return this empty state as one that begins at a later place in the log."""
        self.head = msgspec.structs.replace(self.head, next_offset=offset)
        return self

    def fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return the snapshot's fields as bytes: all, or those that changed since `stored`."""
        sums = self.sums.encode(None if everything else sorted(self.sums.dirty))
        encoded = {f"{SUMS}{name}": data for name, data in sums.items()}
        head = msgspec.structs.replace(self.head, clients=len(self.clients))
        encoded[HEAD] = msgspec.msgpack.encode(head)
        return encoded

    def client_fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return clients' progress as bytes: all, or those that changed since `stored`."""
        names = self.clients if everything else self.changed
        return {name: self.clients[name].encode() for name in sorted(names)}

    def stored(self) -> None:
        """Note that the snapshot has been written."""
        self.sums.dirty.clear()
        self.changed.clear()

    @classmethod
    def decode(cls, plan: Plan, fields: dict[str, bytes], clients: dict[str, bytes]) -> Partition:
        """Rebuild a partition from all its fields.

        Raises
        ------
        StateError
            If it was written under another schema or study revision, or is damaged.
        """
        try:
            head = msgspec.msgpack.decode(fields[HEAD], type=Head)
        except (KeyError, msgspec.DecodeError) as error:
            raise StateError(
                "the stored state has no readable head; run `state rebuild`"
            ) from error
        if head.schema != SCHEMA:
            raise StateError(
                f"the stored state has schema {head.schema}, this version reads {SCHEMA}; run "
                "`veilstream state rebuild`"
            )
        if head.revision != plan.revision:
            raise StateError(
                f"the stored state belongs to revision {head.revision} of the study, this file is "
                f"revision {plan.revision}; restore the study file or give the study a new name"
            )
        if head.clients != len(clients):
            raise StateError(
                f"the stored state is about {head.clients} clients and has the progress of "
                f"{len(clients)}: the store has lost a part of it; run `veilstream state rebuild`"
            )
        sums = {n.removeprefix(SUMS): d for n, d in fields.items() if n.startswith(SUMS)}
        return cls(
            plan=plan,
            head=head,
            sums=PrivateState.decode(Shape.of(plan), sums)
            if plan.study.noised
            else OpenState.decode(plan.size, sums),
            clients={name: Progress.decode(data) for name, data in clients.items()},
        )


def differences(one: Partition, other: Partition) -> list[str]:
    """Return the names of the stored fields in which two states differ, bit by bit."""
    left = {**one.fields(everything=True), **_prefixed(one)}
    right = {**other.fields(everything=True), **_prefixed(other)}
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def _prefixed(partition: Partition) -> dict[str, bytes]:
    progress = partition.client_fields(everything=True)
    return {f"client.{name}": data for name, data in progress.items()}
