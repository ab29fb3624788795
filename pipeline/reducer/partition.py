"""The state of one partition: sums, clients' progress, and the log position they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import msgspec

from pipeline.errors import StateError
from pipeline.estimators.buckets import Buckets, State
from pipeline.estimators.open_state import OpenState
from pipeline.estimators.private_state import PrivateState, Shape
from pipeline.estimators.sgd.settings import rule_of
from pipeline.estimators.sgd.state import SgdState
from pipeline.local.plan import Plan
from pipeline.reducer.progress import Progress

#: Version of the stored form; a worker refuses state of another version.
SCHEMA = 4
HEAD, SUMS = "head", "sums."


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a snapshot.

    Attributes
    ----------
    next_offset
        Watermark: the state holds exactly the log below it.
    duplicates, dead_letters
        Records of the log that changed no sum.
    forgotten
        Releases that are in no sum any more, or never were, because they are too old.
    erased
        Releases of erased clients that have been passed over.
    slots
        Record slots of all releases that came, forgotten and erased ones included: what models
        tell clients as `seen`. It never goes back, or new releases would look old.
    newest
        Time of the newest release, in microseconds since 1970; 0 before the first.
    clients, erased_clients, buckets
        How many of each belong to the snapshot: a store that lost some is found out.
    """

    schema: int = SCHEMA
    revision: str
    next_offset: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    forgotten: int = 0
    erased: int = 0
    slots: int = 0
    newest: int = 0
    clients: int = 0
    erased_clients: int = 0
    buckets: int = 0


@dataclass(slots=True)
class Partition:
    """Everything that one worker keeps for one partition of the releases topic.

    Attributes
    ----------
    changed
        Clients whose progress moved since it was last stored.
    erased
        Clients, of all partitions, whose releases enter nothing.
    midway
        Whether the log before its first record is left out on purpose: what a client has sent there
        is not missing. It is not stored.
    """

    plan: Plan
    head: Head
    sums: Buckets
    clients: dict[str, Progress] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    erased: frozenset[str] = frozenset()
    midway: bool = False

    @classmethod
    def empty(cls, plan: Plan, erased: frozenset[str] = frozenset()) -> Partition:
        """Return the state before the first record."""
        return cls(plan, Head(revision=plan.revision), empty_sums(plan), erased=erased)

    def starting_at(self, offset: int) -> Partition:
        """Return this empty state as one that begins at a later place in the log."""
        # full windows at all offsets before it: what was seen must not become less
        slots = offset * self.plan.slots
        self.head = msgspec.structs.replace(self.head, next_offset=offset, slots=slots)
        return self

    def fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return the snapshot's fields as bytes: all, or those that changed since `stored`."""
        sums = self.sums.encode(everything=everything)
        encoded = {f"{SUMS}{name}": data for name, data in sums.items()}
        head = msgspec.structs.replace(
            self.head,
            clients=len(self.clients),
            erased_clients=len(self.erased),
            buckets=len(self.sums.states),
        )
        encoded[HEAD] = msgspec.msgpack.encode(head)
        return encoded

    def removed_fields(self) -> list[str]:
        """Return the names of stored fields that are to be removed."""
        return [f"{SUMS}{name}" for name in sorted(self.sums.removed)]

    def client_fields(self, *, everything: bool) -> dict[str, bytes]:
        """Return clients' progress as bytes: all, or those that changed since `stored`."""
        names = self.clients if everything else self.changed
        return {name: self.clients[name].encode() for name in sorted(names)}

    def stored(self) -> None:
        """Note that the snapshot has been written."""
        self.sums.stored()
        self.changed.clear()

    @classmethod
    def decode(
        cls,
        plan: Plan,
        fields: dict[str, bytes],
        clients: dict[str, bytes],
        erased: frozenset[str] = frozenset(),
    ) -> Partition:
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
        if head.erased_clients != len(erased):
            raise StateError(
                f"the stored state leaves out {head.erased_clients} erased clients and the store "
                f"names {len(erased)}: a worker ran during `state forget`, or the store has lost "
                "some; run `veilstream state rebuild`, and `veilstream state forget` for those it "
                "has lost"
            )
        fields = {n.removeprefix(SUMS): d for n, d in fields.items() if n.startswith(SUMS)}
        sums = read_sums(plan, fields)
        if head.buckets != len(sums.states):
            raise StateError(
                f"the stored state has {head.buckets} buckets of sums and holds "
                f"{len(sums.states)}: the store has lost a part of it; run `veilstream state "
                "rebuild`"
            )
        return cls(
            plan=plan,
            head=head,
            sums=sums,
            clients={name: Progress.decode(data) for name, data in clients.items()},
            erased=erased,
        )


def empty_sums(plan: Plan) -> Buckets:
    """Return the sums of a study before the first release."""
    return Buckets(partial(_empty_state, plan))


def read_sums(plan: Plan, fields: dict[str, bytes]) -> Buckets:
    """Rebuild the sums of a study from the fields that they were stored as.

    Raises
    ------
    StateError
        If a field is missing, unknown or of the wrong length.
    """
    return Buckets.decode(partial(_empty_state, plan), partial(_read_state, plan), fields)


def _read_state(plan: Plan, fields: dict[str, bytes]) -> State:
    if plan.by_record:
        return SgdState.decode(rule_of(plan), fields)
    if plan.study.noised:
        return PrivateState.decode(Shape.of(plan), fields)
    return OpenState.decode(plan.size, fields)


def _empty_state(plan: Plan) -> State:
    if plan.by_record:
        return SgdState(rule_of(plan))
    return PrivateState(Shape.of(plan)) if plan.study.noised else OpenState(plan.size)


def differences(one: Partition, other: Partition) -> list[str]:
    """Return the names of the stored fields in which two states differ, bit by bit."""
    left = {**one.fields(everything=True), **_prefixed(one)}
    right = {**other.fields(everything=True), **_prefixed(other)}
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def _prefixed(partition: Partition) -> dict[str, bytes]:
    progress = partition.client_fields(everything=True)
    return {f"client.{name}": data for name, data in progress.items()}
