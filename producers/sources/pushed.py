"""A source whose records are sent to the client: an inbox, and what puts records into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from pipeline.errors import DataError, VeilstreamError
from producers.sources.base import Elsewhere, Position, Slot, decode_position
from producers.sources.inbox import Inbox
from producers.sources.jsonl_file import json_object
from producers.sources.tape import RECORD_LIMIT


class Feed(Protocol):
    """What puts records into an inbox, from a thread of its own."""

    #: What ended it, if something has.
    fault: VeilstreamError | None

    def close(self) -> None:
        """Take nothing more."""


class Pushed(Elsewhere):
    """The records of an inbox, JSON objects, while a feed fills it.

    identity: As `Source.identity`.
    inbox: Where they are stored.
    start: Starts the feed, once the inbox fits the position.
    position: Behind which slot to resume; None is the first one that ever came.
    skip_lost: Whether to go on where the inbox does not reach up to it.

    Raises DataError if position or inbox are of another source, or do not fit one another;
    what `start` raises.
    """

    repeats = True
    columns = None
    progress = None
    #: More can come at any time.
    ended = False

    def __init__(
        self, identity: str, inbox: Inbox, start: Callable[[], Feed], position: bytes | None,
        *, skip_lost: bool = False,
    ) -> None:  # fmt: skip
        self.identity, self._inbox = identity, inbox
        try:
            self._at = 0 if position is None else self._number(position)
            self._check_inbox()
            inbox.begin(None if position is None else self._at, skip_lost=skip_lost)
            self._feed = start()
            inbox.know("source", identity)
        except BaseException:
            inbox.close()
            raise

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots, none if nothing came within `timeout` seconds.

        Raises what ended the feed, once everything that it stored was handed out.
        """
        found = self._inbox.read(self._at, limit, timeout)
        if not found and self._feed.fault is not None:
            raise self._feed.fault
        return [self._slot(at, line) for at, line in found]

    def forget(self, position: bytes) -> None:
        """Remove what only slots up to this committed position needed."""
        self._inbox.forget(self._number(position))

    def close(self) -> None:
        """End the feed and close the inbox."""
        self._feed.close()
        self._inbox.close()

    def _check_inbox(self) -> None:
        found = self._inbox.known("source") or self.identity
        if found != self.identity:
            raise DataError(
                f"the inbox: this client takes what comes by {found} in this study, and this "
                f"source is {self.identity}; the data owner must go on with that one, or name "
                "another client"
            )

    def _slot(self, at: int, line: bytes) -> Slot:
        self._at = at
        long = len(line) > RECORD_LIMIT
        record, fault = (None, "the record is too long") if long else json_object(line)
        position = msgspec.json.encode(Position(self.identity, at, at))
        return Slot(record, fault and f"record {at}: {fault}", position, at)

    def _number(self, position: bytes) -> int:
        return decode_position(position, self.identity, self.identity).at
