"""The newest model, which Redis and the models topic both have: no version is given twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from agents.folding import Send
from pipeline.errors import PayloadError, StateError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import json_headers, rfc3339
from pipeline.messages.model import Newest, is_possible, read_model
from pipeline.messages.topics import Topics
from pipeline.release.model import Model
from pipeline.release.task import Task
from state import RedisStore
from state.keys import model as model_key

log = logging.getLogger("veilstream.publishing")
#: Reads a topic of one partition, or its last so many offsets: name to offsets and values.
Read = Callable[[str, int | None], Awaitable[Sequence[tuple[int, bytes | None]]]]
#: Where a topic of so many partitions begins and ends: the sums of their first and next offsets.
Extent = Callable[[str, int], Awaitable[tuple[int, int]]]


class NewestModel:
    """Keeps the newest model of a study in Redis and in its topic.

    task, topics, store: The study, its topics and its snapshots.
    send: As in `agents.folding`.
    read: Returns all messages that a small topic holds.
    extent: Tells where topics begin and end.
    trust: The study's keys, which sign it where releases are authenticated.

    held: Version and payload as this worker left them in Redis; None: none.
    """

    def __init__(
        self, task: Task, topics: Topics, store: RedisStore, send: Send, read: Read,
        extent: Extent, trust: Authenticator | None,
    ) -> None:  # fmt: skip
        self._task, self._topics, self._store, self._trust = task, topics, store, trust
        self._send, self._read, self._extent = send, read, extent
        self.held: tuple[int, bytes] | None = None
        self._end: int | None = None
        self._sent = 0

    def begin(self) -> None:
        """Forget where the topic ended: another worker has written to it, or may have."""
        self._end = None

    async def is_lost(self) -> bool:
        """Whether the models topic was made anew, emptied or written by others since the last look.

        Compaction leaves the last model of all, which may be an old one that somebody repeats.
        """
        expected, (first, self._end) = self._end, await self._extent(self._topics.models.name, 1)
        sent, self._sent = self._sent, 0
        others = expected is not None and self._end != expected + sent
        return self.held is not None and (first >= self._end or others)

    def keep(self, version: int, payload: bytes) -> None:
        """Store a model as the newest; it is to be sent afterwards."""
        self._store.store_model(version, payload)
        self.held = version, payload

    def after(self, watermark: int) -> tuple[int, int, bool]:
        """Return version and watermark of the next model; whether clients can read the held one.

        Neither number goes back if Redis was lost.

        watermark: How many record slots the sums have seen.
        """
        held = self.held
        if held is None:
            return 1, watermark, False
        try:
            before = self._read_model(held[1]).watermark
        except PayloadError:
            # of an earlier revision of the study, whose buckets are gone with its state
            return 1 + held[0], watermark, False
        return 1 + held[0], max(watermark, before), True

    async def send_again(self, last: int | None = None) -> None:
        """Bring Redis and the models topic to the same newest model.

        The last owner may have died between storing a model and sending it. Redis may have lost
        its last second, or everything; clients take newer versions only, so none may be given
        twice. The topic is believed as far as clients believe it, and no release is asked: a client
        can claim any version.

        last: Look at so many of the topic's newest messages; None: at all.

        StateError if Redis holds a model that nobody can have published.
        """
        held = self._store.newest_model()
        if held is not None and not is_possible(self._task.study, held[0], time.time()):
            raise StateError(
                f"Redis holds a model of study {self._task.study.name!r} with version {held[0]}, "
                "which no worker can have reached: somebody else wrote it. The operator must "
                "check who may write to Redis, remove the key "
                f"{model_key(self._task.study.name)!r} and start the worker again"
            )
        if held is not None and self._trust is not None:
            self._check_held(held[1])
        messages = await self._read(self._topics.models.name, last)
        releases = self._topics.releases
        _, length = await self._extent(releases.name, releases.partitions)
        sent = self._newest_of(messages, length, known=held is not None)
        if sent is not None and (held is None or sent[0] > held[0]):
            self._store.store_model(*sent)
            held = sent
        self.held = held
        # also where it is the topic's: an older one that somebody repeats may stand behind it
        await self.send(time.time())

    def _newest_of(
        self, messages: Sequence[tuple[int, bytes | None]], releases: int, *, known: bool
    ) -> tuple[int, bytes] | None:
        """Return version and payload of the newest believable model among some messages.

        releases: Length of the releases topic.
        known: Whether Redis has a model as well: then they must be explained by the logs.
        """
        newest: tuple[int, bytes] | None = None
        believed = Newest(self._task, lambda: releases, time.time)
        for offset, payload in messages:
            try:
                model = self._read_model(payload or b"")
            except PayloadError:
                continue
            outcome = believed.take(offset, model)
            if outcome == "taken":
                newest = model.version, payload or b""
            elif outcome == "refused":
                log.warning(
                    "%s has a model of version %d, which no worker can have reached: somebody "
                    "else writes to the topic; the operator must check who may",
                    self._topics.models.name, model.version,
                )  # fmt: skip
        return newest if believed.explained or not known else None

    def signed(self, payload: bytes) -> bytes:
        """Return JSON with the study's signature, where it signs."""
        return payload if self._trust is None else self._trust.sign(payload)

    def _read_model(self, payload: bytes) -> Model:
        """Read a model that this study has published; PayloadError if it is none."""
        if self._trust is not None:
            self._trust.check(payload)
        return read_model(self._task, payload)

    def _check_held(self, payload: bytes) -> None:
        try:
            self._read_model(payload)
        except PayloadError as error:
            if error.reason in {"unsigned", "forged"}:
                raise StateError(
                    f"Redis holds a model of study {self._task.study.name!r} that its key has "
                    "not signed: somebody else wrote it. The operator must check who may write "
                    "to Redis, and run `veilstream study recover` with all workers stopped"
                ) from error

    async def send(self, now: float) -> None:
        """Send the newest model, if there is one."""
        if self.held is None:
            return
        study, (version, payload) = self._task.study.name, self.held
        self._sent += 1
        await self._send(
            self._topics.models.name,
            study.encode(),
            payload,
            json_headers("model/2", study, f"{self._task.revision}/model/{version}", rfc3339(now)),
        )
