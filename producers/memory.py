"""What a client's folder remembers of its ledger, beside the database: an old copy is found out.

A lock file holds the ledger's id and how many releases there are, of all studies and of each. It is
written after the database, so it never knows more than was stored; a copy that was put back in the
database's place knows less than it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from pipeline.errors import AlreadyRunning


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a lock file says.

    ledger: The ledger's id; empty if none was ever made here.
    releases: How many releases the ledger has, at least.
    studies: How many of them each study has, at least; a file of an older version names none.
    """

    ledger: str = ""
    releases: int = 0
    studies: Mapping[str, int] = field(default_factory=dict)


class Memory:
    """The lock file of a client, held by one process at a time.

    path: The file; it is made if it does not exist.

    says: What is in it.

    Raises AlreadyRunning if another process holds it; OSError if it cannot be made or read.
    """

    def __init__(self, path: Path, client: str) -> None:
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise AlreadyRunning(
                f"another producer runs as client {client!r} from this folder; stop it, or wait "
                "until it has ended"
            ) from None
        self.says = parsed(self._file.read())

    def note(self, says: Remembered) -> None:
        """Write what is to be remembered."""
        self.says = says
        # numbers of one width, and studies in one order: a later text covers an earlier one
        text = f"{says.ledger} {says.releases:020d}\n" + "".join(
            f"{count:020d} {quote(study, safe='')}\n" for study, count in says.studies.items()
        )
        os.pwrite(self._file.fileno(), text.encode(), 0)

    def forget(self) -> None:
        """Remember nothing any more."""
        self.says = Remembered()
        os.ftruncate(self._file.fileno(), 0)

    def remove(self) -> None:
        """Remove the file, which is in place."""
        self._path.unlink()

    def in_place(self) -> bool:
        """Whether the path still leads to the file that this process holds."""
        return same(self._path, os.fstat(self._file.fileno()))

    def close(self) -> None:
        """Give up the lock."""
        self._file.close()


def same(path: Path, held: os.stat_result) -> bool:
    """Whether a path leads to a file that is held open."""
    try:
        return os.path.samestat(path.stat(), held)
    except OSError:
        return False


def parsed(content: bytes) -> Remembered:
    """Return what a lock file says, as far as it can be read."""
    first, *rest = (content.decode(errors="replace") or "\n").splitlines()
    ledger, count = [*first.split(), "", ""][:2]
    studies = {}
    for line in rest:
        number, _, study = line.partition(" ")
        if number.isdecimal() and study:
            studies[unquote(study)] = int(number)
    return Remembered(ledger, int(count) if count.isdecimal() else 0, studies)
