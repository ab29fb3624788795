"""How many releases a database has, against how many its folder remembers: the rest it has lost."""

from __future__ import annotations

from collections.abc import Mapping

from producers.database import Database
from producers.memory import Remembered

#: Stands for all studies whose share an older version did not write down.
ANY = ""


class Counts:
    """The releases of every study of one client.

    database: Whose; its folder's memory is kept up to date.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        rows = database.rows("SELECT study, next_seq FROM streams WHERE next_seq > 0")
        self._held = {str(study): int(number) for study, number in rows}
        self._unnamed = self.missing.get(ANY, 0)
        self._note()

    @property
    def missing(self) -> dict[str, int]:
        """How many releases of a study this folder remembers and the database has not."""
        return absent(self._db.memory.says, self._held)

    def add(self, study: str, releases: int, *, lost: bool = False) -> None:
        """Count releases that the database has now.

        lost: Whether they are older than that: then the folder may have counted them already.
        """
        before = self._held.get(study, 0)
        self._held[study] = before + releases
        if lost:
            named = max(before, self._db.memory.says.studies.get(study, 0))
            self._unnamed = max(0, self._unnamed - max(0, before + releases - named))
        self._note()

    def _note(self) -> None:
        studies = dict(self._db.memory.says.studies)
        for study, held in self._held.items():
            studies[study] = max(held, studies.get(study, 0))
        total = sum(studies.values()) + self._unnamed
        self._db.remember(Remembered(self._db.ledger, total, studies))


def absent(says: Remembered, held: Mapping[str, int]) -> dict[str, int]:
    """Return how many releases of a study a folder remembers beyond those that are held."""
    found = {
        study: count - held.get(study, 0)
        for study, count in says.studies.items()
        if count > held.get(study, 0)
    }
    total = sum(max(held.get(s, 0), says.studies.get(s, 0)) for s in {*says.studies, *held})
    if says.releases > total:
        found[ANY] = says.releases - total
    return found
