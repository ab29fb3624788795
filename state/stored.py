"""A partition as Redis holds it: each value with its checksum, and the totals behind the head.

A number or a name that is none of ours is a fault of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from pipeline.errors import StateError
from pipeline.release.task import Task
from pipeline.stream.partition import (
    HEAD,
    SCHEMA,
    SIZE,
    Checksums,
    Damaged,
    Partition,
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


def packed(keys: tuple[str, str], state: Partition, *, everything: bool) -> Packed:
    """Return a partition as it is to be stored under two keys: all of it, or what has changed."""
    sums, clients = state.sums_checksums, state.clients_checksums
    if everything:
        sums.clear()
        clients.clear()
    fields, removed = state.fields(everything=everything), state.removed_fields()
    head = fields.pop(HEAD)
    found = Packed(
        sums.stamp(keys[0], fields),
        removed,
        clients.stamp(keys[1], state.client_fields(everything=everything)),
    )
    sums.remove(removed)
    found.fields[HEAD] = stamped(keys[0], HEAD, head + _totals(sums, clients))
    return found


def unpacked(
    task: Task,
    keys: tuple[str, str],
    stored: Mapping[bytes, bytes],
    progress: Mapping[bytes, bytes],
    erased: frozenset[str],
    *,
    doubted: bool = False,
) -> Partition:
    """Rebuild a partition from what is stored.

    doubted: Whether one that is not what the log folds to may be had, to be compared once more.

    Raises StateError if a value is damaged, a part is lost or older than the rest, or it is in
    doubt.
    """
    if not stored:
        if progress:
            raise StateError(
                f"{keys[0]} is gone and {keys[1]} is there: the store has lost a part of the "
                f"state; {REBUILD}"
            )
        return Partition.empty(task, erased)
    fields, totals, sums = _opened_sums(task, keys[0], stored, doubted=doubted)
    clients = Checksums()
    values = _opened(keys[1], text_keys(progress), clients)
    loaded = Partition.decode(task, fields, values, erased)
    if totals != _totals(sums, clients):
        raise StateError(
            f"the clients' progress under {keys[1]} is not of the same time as the sums: the store "
            f"has lost a part of it, or somebody has put an old copy back; {REBUILD}"
        )
    loaded.sums_checksums, loaded.clients_checksums = sums, clients
    return loaded


def beside(
    keys: tuple[str, str],
    state: Partition,
    stored: Mapping[bytes, bytes],
    progress: Mapping[str, bytes | None],
) -> Beside:
    """Compare what is stored with the state of whoever stored it, to which nothing was added since.

    stored, progress: The whole snapshot, and of some clients.
    """
    head = state.fields(everything=False)[HEAD] + _totals(
        state.sums_checksums, state.clients_checksums
    )
    held = {**state.sums_checksums.held, HEAD: checksum(keys[0], HEAD, head)}
    found = Beside([], [name for name in stored if not _is_ours(name, held)], [])
    clients = state.clients_checksums.held
    for key, name, mark, data in (
        *((keys[0], name, mark, stored.get(name.encode())) for name, mark in held.items()),
        *((keys[1], name, clients[name], data) for name, data in progress.items()),
    ):
        if data is None or not data.endswith(checksum(key, name, data[:-SIZE]).to_bytes(SIZE)):
            found.damaged.append(name)
        elif data[-SIZE:] != mark.to_bytes(SIZE):
            found.foreign.append(name)
    return found


def _is_ours(name: bytes, held: Mapping[str, int]) -> bool:
    known = name.decode(errors="replace")
    return known in held or known in (WATERMARK, DOUBT)


def summed(task: Task, key: str, stored: Mapping[bytes, bytes]) -> Snapshot:
    """Rebuild the sums of a partition, without its clients; StateError as `unpacked`."""
    fields, _, _ = _opened_sums(task, key, stored, doubted=False)
    return Snapshot.decode(task, fields)


def _opened_sums(
    task: Task, key: str, stored: Mapping[bytes, bytes], *, doubted: bool
) -> tuple[dict[str, bytes], bytes, Checksums]:
    """Return the values of a snapshot's fields, the totals of its head, and its checksums."""
    fields = text_keys(stored)
    watermark = number_of(fields.pop(WATERMARK, None))
    doubt = fields.pop(DOUBT, None)
    raw = fields.pop(HEAD, b"")
    _check_schema(raw)
    head = _opened(key, {HEAD: raw}, Checksums())[HEAD]
    sums = Checksums()
    values = _opened(key, fields, sums)
    totals = head[-2 * SIZE :]
    if totals[:SIZE] != sums.total.to_bytes(SIZE):
        raise StateError(
            f"the sums under {key} are not those that its head was stored with: the store has lost "
            f"a part of them, or somebody has put an old copy back; {REBUILD}"
        )
    values[HEAD] = head[: -2 * SIZE]
    if read_head(task, values).next_offset != watermark:
        raise StateError(f"the stored watermark and state under {key} disagree; {REBUILD}")
    if doubt is not None and not doubted:
        raise StateError(
            f"a verification has found that the state under {key} is not what the log folds to "
            f"({doubt_of(doubt)}); {REBUILD}, or `veilstream state verify`, which "
            "clears this if it finds them equal"
        )
    return values, totals, sums


def doubt_of(said: bytes | None) -> str:
    """Return why nobody may go on with a snapshot, as a terminal can show it; mostly empty."""
    text = (said or b"").decode(errors="replace")
    return "".join(one if one.isprintable() else "?" for one in text)


def _opened(key: str, fields: Mapping[str, bytes], checksums: Checksums) -> dict[str, bytes]:
    try:
        return checksums.open(key, fields)
    except Damaged as damaged:
        raise StateError(
            f"the field {damaged.args[0]!r} of {key} in Redis is damaged: its checksum does not "
            f"fit; {REBUILD}, and see to the memory and the disk of Redis"
        ) from None


def _check_schema(raw: bytes) -> None:
    """Refuse the head of an earlier version, which has no checksum, in words of its own."""
    try:
        old = msgspec.msgpack.decode(raw, type=_Old)
    except msgspec.DecodeError:
        return
    raise StateError(
        f"the stored state has schema {old.schema}, this version reads {SCHEMA}; run "
        "`veilstream state rebuild`, or, where clients were updated too, give the study a new name"
    )


def _totals(sums: Checksums, clients: Checksums) -> bytes:
    return sums.total.to_bytes(SIZE) + clients.total.to_bytes(SIZE)


def erased_member(key: str, client: str) -> bytes:
    """Return the name of an erased client as a set holds it: with its checksum."""
    return stamped(key, "", client.encode())


def erased_names(key: str, members: Iterable[bytes]) -> frozenset[str]:
    """Return the ids of erased clients; StateError if one is damaged."""
    try:
        return frozenset(opened(key, "", member).decode() for member in members)
    except (Damaged, UnicodeDecodeError):
        raise StateError(
            f"a name in {key} in Redis is damaged: nobody can tell which clients were taken out. "
            f"Remove the key (DEL), {REBUILD}, and `veilstream state forget` for each client that "
            "had been taken out"
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
