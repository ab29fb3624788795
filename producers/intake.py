"""Slots of a source to rows, in a time that does not tell whether their records could be used.

Everybody sees when releases come. While a file is read at full speed, the gaps between them are the
time that their records took.

A column may hold the time of each record: the time of a window is then what its records say, and
not when they were read. A release carries the latest time of the records up to the end of its
window, rounded down to a second, so that it is never earlier than the one before it. It is public,
as the time at which a window closes always is; the other columns have no part in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from infra.topics import TimeRules, are_there, time_rules
from pipeline.errors import ConfigError, DataError, RecordError
from pipeline.messages.envelope import rfc3339
from pipeline.messages.topics import AHEAD_MS, Topics, retention_ms
from pipeline.records.encoder import Block, Encoder
from pipeline.records.features import there
from pipeline.records.values import Record, time_of
from pipeline.settings import Settings
from pipeline.study.model import Study
from producers.sources import Slot


class EventTimes:
    """The times of the windows of one client.

    study, column: The study, and the column that holds the time of each record.
    latest: Time of the newest release so far, in milliseconds since 1970; None before the first.
    rules: What the releases topic does with times.
    clock: Seconds since 1970.

    closed: Time of the window that was closed last, in milliseconds; None before the first.

    Raises ConfigError if the column is one that the study protects, or the topic keeps no times of
    clients.
    """

    def __init__(
        self,
        study: Study,
        column: str,
        latest: int | None,
        rules: TimeRules,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if column == study.data.response.name or column in study.data.features:
            raise ConfigError(
                f"--event-time: {column!r} is a column of the study: the time of a release is "
                "public, so that it would leave without noise; name another column"
            )
        if rules.appended:
            raise ConfigError(
                "--event-time: the releases topic has message.timestamp.type = LogAppendTime and "
                "keeps no times of clients; the operator must set it to CreateTime"
            )
        self.column, self._latest, self.closed = column, latest, latest
        self._keeps, self._clock = rules.keeps_ms, clock

    @property
    def newest(self) -> float:
        """Time of the newest record so far, in seconds since 1970; 0 before the first."""
        return (self._latest or 0) / 1000

    def note(self, record: Record) -> None:
        """Take the time of the next record of the open window.

        RecordError if it has none, or one of the future, which Kafka would refuse.
        """
        found = self.time_of(record)
        self._latest = max(self._latest or 0, found - found % 1000)

    def time_of(self, record: Record) -> int:
        """Return the time of a record in milliseconds, without taking it; RecordError as `note`."""
        found = time_of(record.get(self.column), self.column)
        if found > self._clock() * 1000 + AHEAD_MS:
            raise RecordError(f"column {self.column!r} holds a time of the future")
        return found

    def at_close(self) -> int:
        """Return the time of the window that closes now, in milliseconds, a whole second.

        Raises DataError if no record has had a time yet; ConfigError if Kafka would remove the
        release at once.
        """
        if self._latest is None:
            raise DataError(
                f"no record of the first window has a time in column {self.column!r}: the data "
                "owner must correct it (RFC 3339 with a zone, or seconds or milliseconds since "
                "1970), or name another column with --event-time"
            )
        if self._keeps is not None and self._latest < self._clock() * 1000 - self._keeps:
            raise ConfigError(
                f"--event-time: this window is of {rfc3339(self._latest / 1000)}, and the releases "
                f"topic removes what is older than {self._keeps / 86_400_000:g} days, at once and "
                'perhaps before it is folded: the operator must set stream.retention = "forever" '
                "in the study file and, if the topic is there already, run `veilstream topics "
                "STUDY --retention`; nothing of this window was spent"
            )
        self.closed = self._latest
        return self._latest


def event_times_of(
    study: Study, settings: Settings, column: str | None, latest: int | None
) -> EventTimes | None:
    """Return the times of the records as the releases topic keeps them; None without a column.

    Where there is no such topic yet, it is taken as the study makes it.

    Raises as `EventTimes`; BrokerError if Kafka cannot be asked.
    """
    if column is None:
        return None
    name, kept = Topics.of(study).releases.name, retention_ms(study.stream.retention)
    made = TimeRules(False, kept if kept >= 0 else None)
    rules = time_rules(settings, name) if are_there(settings, [name]) else made
    return EventTimes(study, column, latest, rules)


def check_column(column: str, columns: Sequence[str]) -> None:
    """Refuse a source without the column that holds its times; DataError, naming it."""
    if column not in columns:
        raise DataError(
            f"the source has no column {column!r} (--event-time); name the one that holds the "
            f"times of its records{there(columns, [column])}"
        )


#: Stands for the reason of a record that could be used.
GOOD = ""


def encoded(
    encoder: Encoder, note: Callable[[Record], object] | None, slots: Sequence[Slot]
) -> tuple[Block, list[str]]:
    """Return slots as rows, and for each of them `GOOD`, or the reason why it is empty.

    Whatever is wrong, one record is encoded: in place of one that is not there, a public one.

    note: Told of each record before anything else is looked at, for the time that it states: that
        is public, so no other column may decide whether it counts. It may refuse the record.
    """
    records = [encoder.dummy if slot.record is None else slot.record for slot in slots]
    lost = {at: slot.kind for at, slot in enumerate(slots) if slot.record is None}
    if note is not None:
        for at, slot in enumerate(slots):
            try:
                if slot.record is not None:
                    note(slot.record)
            except RecordError as error:
                lost[at], records[at] = str(error), encoder.dummy
    block = encoder.block(records, lost)
    reasons = [GOOD] * len(slots)
    for at, fault in block.faults.items():
        reasons[at] = str(fault)
    for at, reason in lost.items():
        reasons[at] = reason
    return block, reasons
