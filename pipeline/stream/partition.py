"""The state of a partition: counters, checksums, sums, and their stored form.

Each stored value ends with a checksum, and a head with those of all together. They find accidents
of memory, disk and copies: a changed bit, a value under another name or of another study, a part
that is lost or older than the rest. In a study with keys they are MACs (keyed BLAKE2b, RFC 7693),
which whoever may write to the store cannot make. Where there are none, such a state is found out by
folding the log again.
"""

from __future__ import annotations

import hmac
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol

import msgspec

from pipeline.errors import PayloadError, StateError
from pipeline.estimators.forgetting import Buckets
from pipeline.messages.authentic import MARK, Admissions
from pipeline.methods import server_of
from pipeline.release.task import Task

#: Bytes of a checksum that are stored: one of 2^64 accidents passes.
SIZE = 8
#: Bytes of a checksum as it enters the total. What is not stored nobody can see: from stored values
#: of different times, others could be chosen whose checksums come to the same.
WHOLE = 16


class Damaged(Exception):
    """A stored value is not what was written there; its argument is the name of the field."""


class Place(NamedTuple):
    """Where values are stored.

    key: In the store.
    secret: Key of the MACs, at most 64 bytes; empty where checksums find accidents alone.
    """

    key: str
    secret: bytes = b""


def checksum(place: Place, name: str, data: bytes) -> bytes:
    """Return the checksum of a value, bound to the key and the field that hold it."""
    where = f"{place.key}\0{name}\0".encode()
    text = len(where).to_bytes(4) + where + data
    return blake2b(text, key=place.secret, digest_size=WHOLE).digest()


def stamped(place: Place, name: str, data: bytes) -> bytes:
    """Return a value with its checksum behind it."""
    return data + checksum(place, name, data)[:SIZE]


def opened(place: Place, name: str, stored: bytes) -> bytes:
    """Return the value that `stamped` was given; Damaged if it is another, or was elsewhere."""
    data = stored[:-SIZE]
    if not hmac.compare_digest(stamped(place, name, data), stored):
        raise Damaged(name)
    return data


@dataclass(slots=True)
class Checksums:
    """The checksums of the fields of one key as they are stored, and what they come to.

    A commit changes some fields, and the total without a look at the others.
    """

    held: dict[str, bytes] = field(default_factory=dict)
    total: int = 0

    def stamp(self, place: Place, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return fields as they are to be stored, and count them in place of what they were."""
        found = {}
        for name, data in fields.items():
            mark = checksum(place, name, data)
            self._count(name, mark)
            found[name] = data + mark[:SIZE]
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Count some fields no more."""
        for name in names:
            self.total ^= int.from_bytes(self.held.pop(name, b""))

    def clear(self) -> None:
        """Begin anew: nothing is stored."""
        self.held.clear()
        self.total = 0

    def open(self, place: Place, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the values of stored fields, and count them; Damaged names one that is not right.

        Whether none is lost or of another time shows in the total.
        """
        found = {}
        for name, stored in fields.items():
            data = stored[:-SIZE]
            mark = checksum(place, name, data)
            if not hmac.compare_digest(mark[:SIZE], stored[-SIZE:]):
                raise Damaged(name)
            self._count(name, mark)
            found[name] = data
        return found

    def _count(self, name: str, mark: bytes) -> None:
        self.total ^= int.from_bytes(self.held.get(name, b"")) ^ int.from_bytes(mark)
        self.held[name] = mark


#: Version of the stored form; a worker refuses state of another version.
SCHEMA = 13
HEAD, SUMS = "head", "sums."


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a snapshot, each a function of the log alone.

    next_offset: Watermark: the state holds exactly the log below it.
    begun: Where the log began that was folded: 0 unless a rebuild went on without the releases
        before it.
    duplicates, dead_letters: Records of the log that changed no sum.
    forgotten: Releases that are in no sum any more, or never were, because they are too old.
    erased: Releases of erased clients that have been passed over.
    slots: Record slots of all releases that came, forgotten and erased ones included: what models
        tell clients as `watermark`. It never goes back, or new releases would look old.
    newest: Time of the newest release, in microseconds since 1970; 0 before the first.
    missing: Releases of all clients below their highest numbers that have not come.
    furthest: The highest number of a release of any client; -1 before the first.
    largest: The most record slots of one client that have counted, late ones too; 0 where the
        beginning of the log was left out on purpose.
    refused: Releases that have come and do not count, as their clients sent too many.
    holes: In how many places releases of a client are in no sum that are below its highest number.
    words: Admissions, revocations and the like that the log holds, which are no releases.
    clients, erased_clients, admitted, buckets: How many of each belong to the snapshot: a store
        that lost some is found out.
    """

    schema: int = SCHEMA
    revision: str
    next_offset: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    forgotten: int = 0
    erased: int = 0
    words: int = 0
    slots: int = 0
    newest: int = 0
    missing: int = 0
    refused: int = 0
    holes: int = 0
    furthest: int = -1
    largest: int = 0
    clients: int = 0
    erased_clients: int = 0
    admitted: int = 0
    buckets: int = 0
    begun: int = 0

    @property
    def folded(self) -> int:
        """How many records of the log have entered the sums."""
        aside = self.dead_letters + self.duplicates + self.erased + self.words
        return self.next_offset - aside


def read_head(task: Task, fields: dict[str, bytes]) -> Head:
    """Return the head among the stored fields of a partition.

    Raises StateError if it was written under another schema or study revision, or is damaged.
    """
    try:
        head = msgspec.msgpack.decode(fields[HEAD], type=Head)
    except (KeyError, msgspec.DecodeError) as error:
        raise StateError(
            "the stored state has no readable header, which holds its revision and "
            "counts; the operator must run `veilstream state rebuild`"
        ) from error
    if head.schema != SCHEMA:
        raise StateError(
            f"the stored state has schema {head.schema}, this version reads {SCHEMA}; run "
            "`veilstream state rebuild`, or, where clients were updated too, give the study a new "
            "name"
        )
    if head.revision != task.revision:
        raise StateError(
            f"the stored state belongs to revision {head.revision} of the study, this file is "
            f"revision {task.revision}; restore the study file or give the study a new name"
        )
    return head


Outcome = Literal["next", "late", "duplicate"]
#: More gaps than this mean that somebody sends numbers at random.
MAX_GAPS = 1000
JUMPS = PayloadError(
    "too-many-gaps",
    f"the sequence numbers of this client jump in more than {MAX_GAPS} places, or beyond what it "
    "can have sent; the operator must look at this client",
)


@dataclass(slots=True)
class Progress:
    """Progress of one client.

    ledger: The privacy ledger that its first release named.
    highest: Highest sequence number folded; -1 before the first.
    gaps: Ranges [first, last] of numbers below `highest` that have not come, in order.
    refused: How many have come and do not count, as the client sent too many.
    recent: Offsets of its newest releases that count, in order, where the study has a rate.
    slots: Record slots of its releases up to the highest, as that one says.
    counted: Record slots of those that count.
    """

    ledger: str
    highest: int = -1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    refused: int = 0
    recent: list[int] = field(default_factory=list)
    slots: int = 0
    counted: int = 0

    @property
    def missing(self) -> int:
        """How many releases below the highest have not come."""
        return sum(last - first + 1 for first, last in self.gaps)

    @property
    def holes(self) -> int:
        """In how many places its releases are in no sum, at most.

        Refused ones lie between those that count: there are no more runs of them than these, and
        one.
        """
        count = self.highest + 1 - self.missing - self.refused
        return len(self.gaps) + min(self.refused, count + 1)

    def accept(
        self, ledger: str, seq: int, ends: int = 0, slots: int = 0, *, anew: bool = False
    ) -> Outcome:
        """Note a release as folded, unless it is a duplicate.

        ends, slots: Record slots of the client's releases with this one, as it says; and its own.
        anew: Whether a chain begins with it: its client may have counted more slots as lost than
            were.

        Raises PayloadError if another ledger vouches for it, so that two producers use one client
        id; if it would leave more gaps than an honest client can; or if it says that others lie
        before it than have come.
        """
        if ledger != self.ledger:
            raise PayloadError(
                "foreign-ledger",
                "another producer, with a ledger of its own, uses this client id; give each "
                "producer an id of its own, or restore the client's ledger",
            )
        if seq > self.highest:
            between = ends - slots - self.slots
            if between < 0 or (between and seq == self.highest + 1 and not anew):
                raise PayloadError(
                    "wrong-place",
                    "the release says that its client has released other record slots before it "
                    "than have come; the operator must look at this client",
                )
            if seq > self.highest + 1:
                if len(self.gaps) >= MAX_GAPS:
                    raise JUMPS
                self.gaps.append((self.highest + 1, seq - 1))
            self.highest, self.slots = seq, ends
            self.counted += slots
            return "next"
        # the one that begins last of those that may hold it
        at = bisect_right(self.gaps, seq, key=itemgetter(0)) - 1
        if at >= 0 and seq <= self.gaps[at][1]:
            first, last = self.gaps[at]
            rest = [(first, seq - 1), (seq + 1, last)]
            left = [(low, high) for low, high in rest if low <= high]
            if len(self.gaps) + len(left) - 1 > MAX_GAPS:
                raise JUMPS
            self.gaps[at : at + 1] = left
            self.counted += slots
            return "late"
        return "duplicate"

    def encode(self) -> bytes:
        """Write as MessagePack."""
        return msgspec.msgpack.encode(
            (
                self.ledger, self.highest, self.gaps, self.refused, self.recent,
                self.slots, self.counted,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """Read what `encode` wrote; StateError if it is not that."""
        try:
            found = msgspec.msgpack.decode(
                data, type=tuple[str, int, list[tuple[int, int]], int, list[int], int, int]
            )
        except msgspec.DecodeError as error:
            raise StateError(
                "the stored state cannot be read where it says how far a client's releases "
                "are folded; the operator must run `veilstream state rebuild`"
            ) from error
        return cls(*found)


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
        holes = sum(entry.holes for entry in progress.values())
        if (head.missing, head.furthest, head.holes) != (missing, furthest, holes):
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
