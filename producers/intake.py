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
from pipeline.messages.topics import AHEAD_MS, Topics, retention_ms, rfc3339
from pipeline.records.batch import Batch
from pipeline.records.encoder import Block, Encoder
from pipeline.records.features import there
from pipeline.records.values import time_of
from pipeline.settings import Settings
from pipeline.study.model import Study
from producers.sources.base import Slot, batch_of


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
        self, study: Study, column: str, latest: int | None, rules: TimeRules,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
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

    def read(self, batch: Batch, *, take: bool = True) -> dict[int, str]:
        """Take the times of the next records of the open window, and return what is wrong with any.

        A record may have none, or one of the future, which Kafka would refuse.

        take: Else they are only looked at.
        """
        wrong = dict[int, str]()
        latest, most = self._latest, self._clock() * 1000 + AHEAD_MS
        for at, value in enumerate(batch.columns([self.column])[self.column].objects()):
            if at in batch.lost:
                continue
            try:
                found = time_of(value, self.column)
            except RecordError as error:
                wrong[at] = str(error)
                continue
            if found > most:
                wrong[at] = f"column {self.column!r} holds a time of the future"
            else:
                latest = max(latest or 0, found - found % 1000)
        if take:
            self._latest = latest
        return wrong

    def at_close(self) -> int:
        """Return the time of the window that closes now, in milliseconds, a whole second.

        Raises DataError if no record has had a time yet; ConfigError if Kafka would remove the
        release at once.
        """
        if self._latest is None:
            raise DataError(
                f"no record of the first window has a time in column {self.column!r} that is read: "
                "the data owner must correct it (RFC 3339 with a zone such as "
                "2026-03-01T08:00:00Z, or seconds or milliseconds since 1970; "
                "docs/guides/files.md converts others in one line), or name another column with "
                "--event-time"
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


def columns_of(study: Study, column: str | None) -> list[str]:
    """Return the columns that are read of a source, with that of the times of its records."""
    return [*Encoder(study).columns, *([column] if column else [])]


def check_columns(study: Study, column: str | None, columns: Sequence[str]) -> None:
    """Refuse a source without a column that is read; DataError, naming it."""
    Encoder(study).check_columns(columns)
    if column is not None and column not in columns:
        raise DataError(
            f"the source has no column {column!r} (--event-time); name the one that holds the "
            f"times of its records{there(columns, [column])}"
        )


def encoded(
    encoder: Encoder, times: EventTimes | None, slots: Sequence[Slot], *, take: bool = True
) -> Block:
    """Return slots as rows.

    Whatever is wrong, one record is encoded: in place of one that is not there, a public one.

    times: Reads the time that each record states before anything else is looked at: it is public,
        so no other column may decide whether it counts. It may refuse the record.
    take: As `EventTimes.read`.
    """
    batch = batch_of(slots, encoder.dummy)
    late = {} if times is None else times.read(batch, take=take)
    return encoder.block(batch, late)
