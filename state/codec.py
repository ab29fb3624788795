"""A partition as Redis holds it: each value with its checksum, and the totals behind the head.

A number or a name that is none of ours is a fault of the state. The braces in names of keys keep a
study on one slot of a Redis cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from pipeline.errors import StateError
from pipeline.release.task import Task
from pipeline.stream.partition import (
    HEAD,
    SCHEMA,
    SIZE,
    WHOLE,
    Checksums,
    Damaged,
    Partition,
    Place,
    Snapshot,
    checksum,
    opened,
    read_head,
    stamped,
)

#: Field of the snapshot that the commit script compares.
WATERMARK = "next_offset"
#: Field of a snapshot that is not what the log folds to: why nobody may go on with it.
DOUBT = "doubt"
REBUILD = "stop the workers and run `veilstream state rebuild`"
#: What to do where the log is another than was folded.
RECOVER = "stop the workers and run `veilstream study recover` (docs/guides/lost-log.md)"


Places = tuple[Place, Place]


class Packed(NamedTuple):
    """What one commit writes: fields of the state, names to remove from it, fields of clients."""

    fields: dict[str, bytes]
    removed: list[str]
    clients: dict[str, bytes]


class Beside(NamedTuple):
    """How what is stored differs from what was stored, by names of fields.

    damaged: Their checksums do not fit, or they are gone.
    strange: They are none of ours.
    foreign: They are sound, and others than were stored: somebody else wrote them.
    """

    damaged: list[str]
    strange: list[bytes]
    foreign: list[str]


class _Old(msgspec.Struct):
    schema: int


def packed(places: Places, state: Partition, *, everything: bool) -> Packed:
    """Return a partition as it is to be stored in two places: all of it, or what has changed."""
    sums, clients = state.sums_checksums, state.clients_checksums
    if everything:
        sums.clear()
        clients.clear()
    fields, removed = state.fields(everything=everything), state.removed_fields()
    head = fields.pop(HEAD)
    found = Packed(
        sums.stamp(places[0], fields),
        removed,
        clients.stamp(places[1], state.client_fields(everything=everything)),
    )
    sums.remove(removed)
    found.fields[HEAD] = stamped(places[0], HEAD, head + _seals(places[0], head, sums, clients))
    return found


def unpacked(
    task: Task, places: Places, stored: Mapping[bytes, bytes], progress: Mapping[bytes, bytes],
    erased: frozenset[str], *, doubted: bool = False,
) -> Partition:  # fmt: skip
    """Rebuild a partition from what is stored.

    doubted: Whether one that is not what the log folds to may be had, to be compared once more.

    Raises StateError if a value is damaged, a part is lost or older than the rest, or it is in
    doubt.
    """
    if not stored:
        if progress:
            raise StateError(
                f"{places[0].key} is gone and {places[1].key} is there: the store has lost a part "
                f"of the state; {REBUILD}"
            )
        return Partition.empty(task, erased)
    fields, seals, sums = _opened_sums(task, places[0], stored, doubted=doubted)
    clients = Checksums()
    values = _opened(places[1], text_keys(progress), clients)
    loaded = Partition.decode(task, fields, values, erased)
    if seals != _seals(places[0], fields[HEAD], sums, clients):
        raise StateError(
            f"the clients' progress under {places[1].key} is not of the same time as the sums: the "
            f"store has lost a part of it, or somebody has put an old copy back; {REBUILD}"
        )
    loaded.sums_checksums, loaded.clients_checksums = sums, clients
    return loaded


def beside(
    places: Places, state: Partition, stored: Mapping[bytes, bytes],
    progress: Mapping[str, bytes | None],
) -> Beside:  # fmt: skip
    """Compare what is stored with the state of whoever stored it, to which nothing was added since.

    stored, progress: The whole snapshot, and of some clients.
    """
    head = state.fields(everything=False)[HEAD]
    head += _seals(places[0], head, state.sums_checksums, state.clients_checksums)
    held = {**state.sums_checksums.held, HEAD: checksum(places[0], HEAD, head)}
    ours = {name.encode() for name in (*held, WATERMARK, DOUBT)}
    found = Beside([], [name for name in stored if name not in ours], [])
    clients = state.clients_checksums.held
    for place, name, mark, data in (
        *((places[0], name, mark, stored.get(name.encode())) for name, mark in held.items()),
        *((places[1], name, clients[name], data) for name, data in progress.items()),
    ):
        if data is None or data != stamped(place, name, data[:-SIZE]):
            found.damaged.append(name)
        elif data[-SIZE:] != mark[:SIZE]:
            found.foreign.append(name)
    return found


def summed(task: Task, place: Place, stored: Mapping[bytes, bytes]) -> Snapshot:
    """Rebuild the sums of a partition, without its clients; StateError as `unpacked`."""
    fields, _, _ = _opened_sums(task, place, stored, doubted=False)
    return Snapshot.decode(task, fields)


def _opened_sums(
    task: Task, place: Place, stored: Mapping[bytes, bytes], *, doubted: bool
) -> tuple[dict[str, bytes], bytes, Checksums]:
    """Return the values of a snapshot's fields, the seals of its head, and its checksums."""
    fields = text_keys(stored)
    watermark = number_of(fields.pop(WATERMARK, None))
    doubt = fields.pop(DOUBT, None)
    raw = fields.pop(HEAD, b"")
    _check_version(task, place, raw)
    head = _opened(place, {HEAD: raw}, Checksums())[HEAD]
    sums = Checksums()
    values = _opened(place, fields, sums)
    values[HEAD], seals = head[: -2 * SIZE], head[-2 * SIZE :]
    if seals[:SIZE] != _seals(place, values[HEAD], sums, Checksums())[:SIZE]:
        raise StateError(
            f"the sums under {place.key} are not those that its head was stored with: the store "
            f"has lost a part of them, or somebody has put an old copy back; {REBUILD}"
        )
    if read_head(task, values).next_offset != watermark:
        raise StateError(f"the stored watermark and state under {place.key} disagree; {REBUILD}")
    if doubt is not None and not doubted:
        raise StateError(
            f"a verification has found that the state under {place.key} is not what the log folds "
            f"to ({doubt_of(doubt)}); {REBUILD}, or `veilstream state verify`, which "
            "clears this if it finds them equal"
        )
    return values, seals, sums


def doubt_of(said: bytes | None) -> str:
    """Return why nobody may go on with a snapshot, as a terminal can show it; mostly empty."""
    text = (said or b"").decode(errors="replace")
    return "".join(one if one.isprintable() else "?" for one in text)


def _opened(place: Place, fields: Mapping[str, bytes], checksums: Checksums) -> dict[str, bytes]:
    try:
        return checksums.open(place, fields)
    except Damaged as damaged:
        raise StateError(
            f"the field {damaged.args[0]!r} of {place.key} in Redis is damaged: its checksum does "
            f"not fit; {REBUILD}, and see to the memory and the disk of Redis, and to who may "
            "write to it"
        ) from None


def _check_version(task: Task, place: Place, raw: bytes) -> None:
    """Refuse the head of an earlier version, or of before the study had keys, in words of its own.

    Their checksums are others, and the first heads had none.
    """
    for head in (raw, raw[: -3 * SIZE]):
        try:
            old = msgspec.msgpack.decode(head, type=_Old)
        except msgspec.DecodeError:
            continue
        if old.schema != SCHEMA:
            raise StateError(
                f"the stored state has schema {old.schema}, this version reads {SCHEMA}; run "
                "`veilstream state rebuild`, or, where clients were updated too, give the study a "
                "new name"
            )
    with suppress(Damaged):
        read_head(task, {HEAD: opened(Place(place.key), HEAD, raw)[: -2 * SIZE]})


def _seals(place: Place, head: bytes, sums: Checksums, clients: Checksums) -> bytes:
    """Return what says that a head belongs to sums, and to both these and clients."""
    first, second = (part.total.to_bytes(WHOLE) for part in (sums, clients))
    return (
        checksum(place, "sums", head + first)[:SIZE]
        + checksum(place, "clients", head + first + second)[:SIZE]
    )


def erased_names(place: Place, members: Iterable[bytes]) -> frozenset[str]:
    """Return the ids of erased clients; StateError if one is damaged."""
    try:
        return frozenset(opened(place, "", member).decode() for member in members)
    except (Damaged, UnicodeDecodeError):
        raise StateError(
            f"a name in {place.key} in Redis is damaged: nobody can tell which clients were taken "
            f"out. Remove the key (DEL), {REBUILD}, and `veilstream state forget` for each client "
            "that had been taken out"
        ) from None


def number_of(data: bytes | None) -> int:
    """Return a stored number; 0 where nothing is stored.

    StateError if it cannot be read.
    """
    try:
        return int(data or b"0")
    except ValueError as error:
        raise StateError(
            "a number of the stored state cannot be read; run `veilstream state rebuild`"
        ) from error


def text_keys(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Return the fields of a hash by their names; StateError if a name cannot be read."""
    return {_text(name): data for name, data in fields.items()}


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise StateError(
            "the stored state has a name that is not text; run `veilstream state rebuild`"
        ) from error


def snapshot_key(study: str, partition: int) -> str:
    """Hash of the sums and the watermark of one partition."""
    return f"veil:{{{study}}}:{partition}:state"


def clients_key(study: str, partition: int) -> str:
    """Hash from client id to progress, of one partition."""
    return f"veil:{{{study}}}:{partition}:clients"


def erased_key(study: str) -> str:
    """Set of the ids of erased clients, of all partitions."""
    return f"veil:{{{study}}}:erased"


def model_key(study: str) -> str:
    """Hash of the newest model: version and payload."""
    return f"veil:{{{study}}}:model"


def key_types(study: str, partitions: int) -> dict[str, bytes]:
    """Return every key of a study with the Redis type of its value."""
    found = {erased_key(study): b"set", model_key(study): b"hash"}
    for number in range(partitions):
        found |= {snapshot_key(study, number): b"hash", clients_key(study, number): b"hash"}
    return found
