"""The counters of a partition: its offset in the log, and what an estimate says of its clients."""

from __future__ import annotations

import msgspec

from pipeline.errors import StateError
from pipeline.release.task import Task

#: Version of the stored form; a worker refuses state of another version.
SCHEMA = 7
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
    largest: The most releases of one client that have come, late ones too; 0 where the beginning
        of the log was left out on purpose.
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
        raise StateError("the stored state has no readable head; run `state rebuild`") from error
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
