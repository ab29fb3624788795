"""A study that follows others: a client goes on behind the records it has released for them.

From the later study's first release on, the earlier ones are over for this client, and none but
one study takes their place: among studies that follow each other a record enters one release. The
ledger adds them up all the same: that no record enters releases of two would have to be shown of
every copy of a client's database that is ever put back (docs/privacy/composition.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.errors import ConfigError, LedgerBehind
from producers.database import Database


class Following:
    """What studies of a client follow; callers hold the transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def begin(
        self, study: str, source: str, before: Sequence[str], missing: Collection[str],
        *, from_start: bool,
    ) -> None:  # fmt: skip
        """Place a study that has released nothing behind those that it follows.

        before: The studies that its file says it follows, the newest first.
        missing: Studies of which this folder remembers releases that the database lacks.
        from_start: Whether it may begin at the start of a source that was released for others.

        Raises LedgerBehind if one of `before` is among these; ConfigError if releases of one have
        not been sent, another study has taken its place, or nothing says where to begin.
        """
        line = self.line(before, source)
        if lost := [name for name in line if name in missing]:
            raise LedgerBehind(
                f"study.follows: this client's database has lost releases of study {lost[0]!r}: "
                "put the newest database back; if it is gone, start that study once with "
                "--skip-lost"
            )
        for name in line:
            if study in self.chain(name):
                raise ConfigError(
                    f"study.follows: study {name!r} follows study {study!r} for this client: start "
                    "its producer with the file of that one, or give this study a new name"
                )
            if taken := self._taken_by(name) - {*line, study}:
                raise ConfigError(
                    f"study.follows: study {name!r} is over for this client, which has moved on "
                    f"to study {min(taken)!r}: only one study takes the place of another, or "
                    "records would be released for both. The operator must give this study a new "
                    f"name and let it follow {min(taken)!r}; nothing was spent"
                )
        for name in line:
            # a study that is over leaves nothing of what its noise remembered
            self._db.write("DELETE FROM noise WHERE study = ?", name)
        known = {name: row for name in line if (row := self._row(name, source))}
        at = next((name for name, row in known.items() if row[3]), next(iter(known), None))
        if before and at is None and not from_start:
            self._refuse_others(study, source, before)
        position, owed, waiting = (None, 0, 0) if at is None else known[at][:3]
        if waiting:
            raise ConfigError(
                f"study.follows: {waiting} releases of study {at!r} have not been sent: start "
                "its producer once more, with the file and the version of this program that began "
                "it, until it says that none is left; nothing was spent"
            )
        self._db.write(
            "UPDATE streams SET follows = ?, position = ?, owed = ? WHERE study = ?",
            at, position, owed, study,
        )  # fmt: skip

    def line(self, before: Sequence[str], source: str) -> list[str]:
        """Return whose place a study takes, the newest first, up to one that has released.

        before: The studies that its file says it follows; those that they follow here are added.
        """
        found: list[str] = []
        for first in before:
            for name in self.chain(first):
                if name not in found:
                    found.append(name)
                if (row := self._row(name, source)) and row[3]:
                    # it had the last word of those before it
                    return found
        return found

    def passed(self, study: str) -> None:
        """Let the study that one follows, which has released nothing, know what was passed over."""
        asked = "SELECT position, owed, next_seq FROM streams WHERE study = ?"
        while (row := self._db.row(asked, study)) and not row[2]:
            if (before := self._before(study)) is None:
                return
            self._db.write(
                "UPDATE streams SET position = ?, owed = ? WHERE study = ?", row[0], row[1], before
            )
            study = before

    def check(self, study: str) -> None:
        """Refuse a study that is over for this client, as one that follows has released.

        Raises ConfigError.
        """
        if taken := self._taken_by(study):
            raise ConfigError(
                f"study {study!r} is over for this client, which has moved on to study "
                f"{min(taken)!r} behind its records: start its producer with the file of that "
                "study"
            )

    def over(self) -> set[str]:
        """Return the studies that are over for this client: one that follows has released."""
        rows = self._db.rows("SELECT study FROM streams WHERE follows IS NOT NULL AND next_seq > 0")
        return {before for (study,) in rows for before in self.chain(str(study))[1:]}

    def _refuse_others(self, study: str, source: str, before: Sequence[str]) -> None:
        """Refuse to begin at the start where the source was released for studies of other names."""
        rows = self._db.rows(
            "SELECT study FROM streams WHERE source = ? AND next_seq > 0 ORDER BY rowid", source
        )
        others = [str(row[0]) for row in rows if not self._taken_by(str(row[0]))]
        if not others:
            return
        names = ", ".join(f'"{name}"' for name in (*before, others[-1]))
        raise ConfigError(
            f"study.follows: this client has released nothing of source {source!r} for study "
            f"{before[0]!r}, but has for study {others[-1]!r}. If {before[0]!r} took the place "
            f"of {others[-1]!r}, the operator must say so in the file of a study with a new "
            f"name: follows = [{names}]; its clients then continue behind these records. If not, "
            f"the data owner may add --from-start: the records are then released for {study!r}, "
            "too. Nothing was spent"
        )

    def _taken_by(self, study: str) -> set[str]:
        """Return the studies that have released behind one, directly or behind others."""
        rows = self._db.rows("SELECT study FROM streams WHERE follows IS NOT NULL AND next_seq > 0")
        return {name for (name,) in rows if study in self.chain(name)[1:]}

    def _row(self, study: str, source: str) -> tuple[bytes | None, int, int, int] | None:
        return self._db.row(
            "SELECT position, owed, waiting, next_seq FROM streams WHERE study = ? AND source = ?",
            study, source,
        )  # fmt: skip

    def _before(self, study: str) -> str | None:
        row = self._db.row("SELECT follows FROM streams WHERE study = ?", study)
        return None if row is None or row[0] is None else str(row[0])

    def chain(self, study: str) -> list[str]:
        """Return a study and those behind whose records it began, the newest first."""
        found = [study]
        while before := self._before(found[-1]):
            found.append(before)
        return found
