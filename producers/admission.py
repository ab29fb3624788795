"""Whether one run of a client may release its source: asked at its start and before it releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import DataError, LocalStoreError
from producers.heads import MOST, Head, Marks, head_of
from producers.known_sources import KnownSources, Looks
from producers.report import reading
from producers.sources import Slot, kind_of, known_as, open_source, packaged

#: Told of a source's columns, where it has the same in all of its records.
Check = Callable[[Sequence[str]], None]
#: What has been seen of a source whose head cannot grow any more.
WHOLE = "whole"


class Admission:
    """The source of one run, as the folder's register knows it.

    folder: Where the clients' databases are.
    client, name: Client id, and the source's name in its ledger.
    spec: As `producers.sources.open_source` takes it.
    other_data: See `KnownSources.check`.
    """

    def __init__(
        self, folder: Path, client: str, name: str, spec: str, *, follow: bool, other_data: bool
    ) -> None:
        self._folder, self._client, self._name = folder, client, name
        self._spec, self._follow, self._other_data = spec, follow, other_data
        self._known = KnownSources(folder, lambda: earlier(folder))
        self._input: Head | None = None
        self._seen: object = None

    def enter(
        self, *, check: Check = lambda _: None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Refuse a source that another client or name has released; see `KnownSources.check`.

        Nothing is noted: what is refused later, for its budget say, has not been released.

        check: Refuses columns that the study cannot use, before anything is said of other sources.
        say: Told where the name was one of other records until now.

        Raises ConfigError, naming who has it; DataError if it cannot be opened, or as `check`;
        LocalStoreError if the register cannot be used.
        """
        # nothing of what comes once has been read yet
        if kind_of(self._spec) == "input":
            return
        if self._check(looks_of(self._spec, self._follow, check), releases=False):
            say(
                f"{self._name}: this client has released other records under this name, and one "
                "budget holds for all of them. If these records are none of those, the data owner "
                "may give them a name and a budget of their own: --source-name NAME"
            )

    def begins(self, position: bytes | None) -> None:
        """Say where this run reads on: the head of what comes once is only seen from its start."""
        if kind_of(self._spec) == "input" and position is None:
            self._input = Head()

    def take(self, slots: Sequence[Slot]) -> None:
        """See the next slots of the source."""
        if self._input is not None:
            for slot in slots:
                self._input.take(slot.record)

    def before_release(self) -> None:
        """Enter the register, or refuse as `enter`; until there are enough records to be known by.

        A file that was empty at the start has a head by now.
        """
        if kind_of(self._spec) == "input":
            marks: Marks = {} if self._input is None else self._input.marks
            if marks and marks != self._seen:
                self._check(Looks("input", "", None, None, marks), releases=True)
                self._seen = marks
            return
        if self._seen == WHOLE:
            return
        path = Path(self._spec)
        # of what is no file, nobody knows whether it has grown but who reads it
        size = path.stat().st_size if path.is_file() else None
        if self._seen == size is not None:
            return
        looks = looks_of(self._spec, self._follow)
        self._check(looks, releases=True)
        whole = looks.kind in ("packaged", "topic") or MOST in looks.marks
        self._seen = WHOLE if whole else size

    def _check(self, looks: Looks, *, releases: bool) -> bool:
        return self._known.check(
            self._client, self._name, looks, releases=releases, other_data=self._other_data
        )


def looks_of(spec: str, follow: bool, check: Check = lambda _: None) -> Looks:
    """Return what a source can be known by; not of what comes once.

    DataError if it cannot be opened, or as `check` raises it for the columns of the source.
    """
    location = known_as(spec).location or ""
    if kind_of(spec) == "topic":
        # its records are not looked at: another topic with a copy of them is not found out
        return Looks("topic", location, None, None, {})
    source = open_source(spec, None, folder=Path(), follow=follow)
    try:
        if source.columns is not None:
            check(source.columns)
        if packaged(spec):
            return Looks("packaged", location, None, None, {})
        path = Path(spec)
        # a row of a table, or a file of another store, has no number here
        found = path.stat() if path.exists() else None
        device, inode = (found.st_dev, found.st_ino) if found else (None, None)
        return Looks(kind_of(spec), location, device, inode, head_of(source).marks)
    except OSError as error:
        raise DataError(
            f"{Path(spec).name}: cannot be read ({error.strerror}); the data owner must name a "
            "file that this process may read"
        ) from None
    finally:
        source.close()


def earlier(folder: Path) -> list[tuple[str, str, Looks]]:
    """Return what clients of a folder released before it had a register, the oldest client first.

    Files that are gone by now, and standard input, cannot be looked at; they enter with nothing but
    their path or not at all.
    """
    found = []
    for path in folder.glob("*.db"):
        # a damaged database is its own client's matter
        with suppress(LocalStoreError), reading(path) as database:
            found += database.execute(
                "SELECT created_at, client, source, location FROM identity, locations "
                "WHERE source IN (SELECT source FROM streams WHERE next_seq > 0)"
            ).fetchall()
    return [
        (client, source, _looks_now(location))
        for _, client, source, location in sorted(found, key=lambda row: tuple(map(str, row)))
    ]


def _looks_now(location: str) -> Looks:
    try:
        return looks_of(location, follow=True)
    except DataError:
        return Looks(kind_of(location), location, None, None, {})
