"""What the runtime remembers between commands: ports and processes, in ``runtime.json``."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from infra.local.processes import Identity
from pipeline.errors import AlreadyRunning, RuntimeSetupError


class Record(msgspec.Struct):
    """One service. Its port outlives its process, so that clients find it again.

    port: Where it listens.
    process: None when it was ended on purpose; one that died stays here until it is started again.
    """

    port: int
    process: Identity | None = None


Records = dict[str, Record]


def read_state(folder: Path) -> Records:
    """Read the records; none when there is no file yet.

    Raises RuntimeSetupError: the file is not one that this project wrote.
    """
    path = folder / "runtime.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Records)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise RuntimeSetupError(
            f"{path} cannot be read ({error}): end the servers it was about and remove it"
        ) from error


def write_state(folder: Path, records: Records) -> None:
    """Replace the file in one step."""
    path = folder / "runtime.json"
    aside = path.with_suffix(".new")
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(records)) + b"\n")
    aside.replace(path)


@contextmanager
def hold(folder: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock in the folder; the system lets go of it when the process ends, however it ends.

    Raises AlreadyRunning: another process holds it, and ``wait`` is False.
    """
    # Never removed: a lock file that comes and goes can be held by two processes at once.
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise AlreadyRunning(f"another process holds {folder / name}") from error
        yield
    finally:
        os.close(descriptor)
