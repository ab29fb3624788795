"""Releases as people read them, and changed as only an attacker or another version sends them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.messages.release import Header, read
from pipeline.release.layout import Rows, identity, short
from pipeline.release.task import Task, form_of


def opened(task: Task, payload: bytes) -> Rows:
    """Return a release as a structured array of one row that can be written to."""
    return np.frombuffer(payload, form_of(task).dtype).copy()


def edited(task: Task, payload: bytes, **fields: object) -> bytes:
    """Return a release with fields of the header or its numbers changed.

    Texts of clients, ledgers, claims, studies and layouts are put in as their digests.
    """
    row = opened(task, payload)
    for name, value in fields.items():
        if name in ("client", "ledger"):
            row[name] = np.frombuffer(identity(str(value).encode()), dtype="<u8")
        elif name == "revision":
            row[name] = int.from_bytes(bytes.fromhex(str(value)), "little")
        elif isinstance(value, str):
            row[name] = short(value)
        else:
            row[name] = value
    return row.tobytes()


def valued(task: Task, payload: bytes, part: str, value: float, at: int = -1) -> bytes:
    """Return a release with one number of a part, or of the point, changed."""
    row = opened(task, payload)
    numbers = row["point"][0]
    if part != "point":
        numbers = row["sums"][0][form_of(task).layout.columns(int(row["version"][0]))[part]]
    numbers[at] = value
    return row.tobytes()


def numbers_of(task: Task, payload: bytes) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return all numbers of a release behind its point, as stored."""
    return np.concatenate(list(read(task, payload).parts.values()))


def described(task: Task, payload: bytes) -> dict[str, object]:
    """Return a release for people: its header, and its numbers in real units."""
    release = read(task, payload)
    header, layout = release.header, task.layout
    shown: dict[str, object] = {name: getattr(header, name) for name in Header.__slots__}
    values = {"point": release.point, **release.parts}
    for field in (layout.point, *layout.at(header.version)):
        shown[field.name] = np.ldexp(values[field.name].astype(float), field.exponent).tolist()
    return shown


def as_rows(task: Task, payloads: Sequence[bytes | None]) -> Rows:
    """Return releases as a server takes them, unjudged."""
    return np.frombuffer(b"".join([p or b"" for p in payloads]), form_of(task).dtype)
