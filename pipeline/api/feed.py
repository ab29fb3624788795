"""Estimates of a live study from Kafka, as an iterator."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.admissions import read_roll
from infra.kafka import asking, log_reader
from infra.local import connected
from infra.process import AGAIN, Waiting
from infra.topics import are_there
from pipeline.api.result import Result
from pipeline.errors import BrokerError, ConfigError, NumericError, PayloadError
from pipeline.messages.estimate import EstimateMessage, read_estimate
from pipeline.messages.topics import Topics
from pipeline.methods import require_live, revision_of
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.study_file.load import StudySource, read_study
from pipeline.trust import check_signed
from pipeline.words import counted

log = logging.getLogger("veilstream.trust")
#: How long to wait for an estimate that may be there.
PATIENCE_SECONDS = 3.0
#: Where the newest may be forged, so many are looked at; and how often keys are asked for.
BACK, AGAIN_SECONDS = 200, 10.0
UNREAD = (
    "estimates cannot be read from {servers} ({fault}); is Kafka up, and has a worker or a "
    "producer of this study been started?"
)


class Feed:
    """The estimates topic of a study.

    beginning: Start from the oldest estimate; else from the newest that exists.
    topic: Another topic of estimates than the one that has them all.
    history: How many before the newest are wanted, too, where it does not start from the oldest.
    waits: Ends the iteration with WaitTimeout where it says so.

    refused: How many were not signed by the study, where it signs.
    repeated: How many were older than one before them: the study signed them, and somebody has
        written them again.

    Raises ConfigError if the study's key is not known; BrokerError if Kafka does not answer.
    """

    def __init__(
        self, study: Study, settings: Settings, *, beginning: bool, topic: str | None = None,
        history: int = 0, waits: Waiting | None = None,
    ) -> None:  # fmt: skip
        self._kept: list[tuple[EstimateMessage, bytes]] = []
        self._settings, self._study = settings, study
        # who looks before the first worker runs waits for its key as for its estimates
        self._roll = read_roll(study, settings, begun=False) if study.authenticated else None
        self._asked, self.refused, self.repeated = time.monotonic(), 0, 0
        self._newest: EstimateMessage | None = None
        #: Below it the newest alone is handed out, once all of them have been looked at.
        self._past = 0
        self._held: list[tuple[EstimateMessage, bytes]] = []
        self._waits = waits or Waiting(first=AGAIN)
        #: Told, at each look that finds none, that no estimate comes: once a minute in words.
        self.say: Callable[[str], None] = lambda _: None
        self._topic_partition = TopicPartition(topic or Topics.of(study).estimates.name, 0)
        place, what = self._topic_partition, f"topic {self._topic_partition.topic}"
        with asking(settings, what, "Read", UNREAD), ExitStack() as undo:
            self._consumer = log_reader(settings, wait_ms=100)
            # one that is left open asks for ever
            undo.callback(self._consumer.close)
            self._consumer.assign([place])
            if beginning:
                self._consumer.seek_to_beginning(place)
            else:
                end = self._consumer.end_offsets([place])[place]
                first = self._consumer.beginning_offsets([place])[place]
                self._consumer.seek(place, max(first, end - (history or BACK)))
                self._past = 0 if history else end
            undo.pop_all()

    def poll(self, seconds: float) -> list[tuple[EstimateMessage, bytes]]:
        """Return the estimates that come within `seconds`, with their JSON as published."""
        with asking(self._settings, f"topic {self._topic_partition.topic}", "Read"):
            batches = self._consumer.poll(timeout_ms=int(seconds * 1000))
        found = []
        for record in batches.get(self._topic_partition, []):
            try:
                self._check(record.value or b"")
                message = read_estimate(record.value)
            except PayloadError:
                self.refused += 1
                if self.refused == 1:
                    log.warning(self.warning)
                continue
            except (msgspec.DecodeError, TypeError):
                continue
            if self._is_past(message):
                self.repeated += 1
                if self.repeated == 1:
                    log.warning(self.warning)
            elif record.offset < self._past:
                self._held = [(message, record.value)]
            else:
                found.append((message, record.value))
        if self._held and not self._behind(self._past):
            found, self._held = self._held + found, []
        return found

    def _is_past(self, message: EstimateMessage) -> bool:
        """Whether an estimate is older than one before it, by the log and by the clock.

        After a rebuild the state is shorter, and the clock of the next worker may be behind.
        """
        known = self._newest
        if known is not None and (
            message.published_at < known.published_at
            and message.state_version <= known.state_version
        ):
            return True
        self._newest = message
        return False

    @property
    def warning(self) -> str:
        """What people must know of estimates that are not shown; empty if there are none."""
        kinds = {"not signed by this study": self.refused, "repeats of older ones": self.repeated}
        if not any(kinds.values()):
            return ""
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        cause = self._roll.cause if self._roll else "somebody else writes to it"
        if self.repeated and not self.refused:
            cause += ", or two workers have published at once"
        return (
            f"WARNING: not shown: {counted(sum(kinds.values()), 'estimate')} on "
            f"{self._topic_partition.topic} ({counts}): {cause}"
        )

    def _check(self, payload: bytes) -> None:
        """Refuse an estimate that the study has not signed; PayloadError."""
        if self._roll is None:
            return
        try:
            check_signed(payload, self._roll.publics)
        except PayloadError:
            # the study may have a new key; whoever writes nonsense must not make us ask for each
            if self._roll.keys and time.monotonic() - self._asked < AGAIN_SECONDS:
                raise
            self._asked = time.monotonic()
            self._roll = read_roll(self._study, self._settings, begun=False)
            check_signed(payload, self._roll.publics)

    def until_now(self) -> Iterator[tuple[EstimateMessage, bytes]]:
        """Yield the estimates that are there at the first call, and end."""
        with asking(self._settings, f"topic {self._topic_partition.topic}", "Read"):
            end = self._consumer.end_offsets([self._topic_partition])[self._topic_partition]
        while self._behind(end):
            yield from self.poll(0.5)

    def _behind(self, end: int) -> bool:
        with asking(self._settings, f"topic {self._topic_partition.topic}", "Read"):
            return bool(self._consumer.position(self._topic_partition) < end)

    def ready(self, seconds: float) -> bool:
        """Whether an estimate comes within `seconds`; it is kept for the iteration."""
        deadline = time.monotonic() + seconds
        while not self._kept and time.monotonic() < deadline:
            self._kept = self.poll(0.2)
        return bool(self._kept)

    @property
    def kept(self) -> EstimateMessage | None:
        """The newest of the estimates that `ready` has found."""
        return self._kept[-1][0] if self._kept else None

    def __iter__(self) -> Iterator[tuple[EstimateMessage, bytes]]:
        """Yield estimates for ever."""
        yield from self._kept
        while True:
            found = self.poll(0.5)
            yield from found
            line = self._waits.hint("" if found else "an estimate")
            if not found:
                self.say(line)

    def close(self) -> None:
        """Close the connection."""
        with suppress(KafkaError):
            self._consumer.close()


def lacks_topics(study: Study, settings: Settings) -> str:
    """Say that Kafka has no topics of a study, or nothing where they are there or may be hidden."""
    topics = Topics.of(study)
    read = [topics.estimates.name, *([topics.clients.name] if study.authenticated else [])]
    # a user with rights of its own may not see topics that are there: reading them says which
    if settings.kafka_security != "PLAINTEXT" or are_there(settings, read):
        return ""
    return (
        f"Kafka at {settings.kafka} has no topics of study {study.name!r} yet, or this user may "
        "not see them: a `veilstream worker` or `veilstream produce` of this study makes them"
    )


def check_topics(study: Study, settings: Settings) -> None:
    """Refuse a study that nobody has begun; BrokerError, also if Kafka does not answer."""
    if lacking := lacks_topics(study, settings):
        raise BrokerError(lacking)


def newest_message(study: Study, settings: Settings) -> EstimateMessage:
    """Return the newest estimate, from the topic that keeps it for ever.

    Raises BrokerError if Kafka does not answer or has no topics of it; NumericError if there is
    none; ConfigError if it is of another revision than the study: its names and numbers mean
    something else.
    """
    check_topics(study, settings)
    feed = Feed(study, settings, beginning=False, topic=Topics.of(study).latest.name)
    try:
        messages = [message for message, _ in feed.until_now()]
        found = messages[-1] if messages else None
        if found is None and not feed.refused:
            feed.ready(PATIENCE_SECONDS)
            found = feed.kept
    finally:
        feed.close()
    if found is None:
        raise NumericError(
            f"study {study.name!r} has no estimate yet: the operator must make sure that a "
            "worker of it runs and that a client has released, or name a file with --model"
        )
    if said := of_another_revision(study, found):
        raise ConfigError(said)
    return found


def of_another_revision(study: Study, message: EstimateMessage) -> str:
    """Return what to say where an estimate is of another revision than the study; else nothing."""
    own, held = revision_of(study), message.study_revision
    if held == own:
        return ""
    return (
        f"study {study.name!r} runs under revision {held}, and this file is revision {own}: what "
        "the study estimates and promises is not what this file says. Use the file of the "
        "running study; a changed study needs a name of its own (`veilstream study change`)"
    )


def estimates(
    study: StudySource, *, follow: bool = False, latest: bool = False, kafka: str | None = None
) -> Iterator[Result]:
    """Yield the estimates of a live study, oldest first; a connection is made by the first `next`.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    follow
        Whether to wait for more, for ever; else it ends behind the newest that there was.
    latest
        Whether to begin with the newest instead of the oldest that is kept.
    kafka
        HOST:PORT; default: `VEILSTREAM_KAFKA`, else what `veilstream up` started.

    Raises
    ------
    ConfigError
        If the study has no live stream, or nothing says where Kafka is.
    BrokerError
        If Kafka does not answer, or has no such topic.
    """
    found, settings = _live(study), _settings(kafka)
    check_topics(found, settings)
    reader = Feed(found, settings, beginning=not latest)
    try:
        for message, _ in reader if follow else reader.until_now():
            yield Result(found, message)
    finally:
        reader.close()


def newest_estimate(study: StudySource, *, kafka: str | None = None) -> Result:
    """Return the newest estimate of a live study; parameters and errors as in `estimates`.

    Raises
    ------
    NumericError
        If there is none yet.
    """
    found = _live(study)
    return Result(found, newest_message(found, _settings(kafka)))


def _live(study: StudySource) -> Study:
    found = read_study(study)
    require_live(found, "reading estimates")
    return found


def _settings(kafka: str | None) -> Settings:
    settings = Settings.read()
    if kafka is not None:
        settings = dataclasses.replace(settings, kafka=kafka)
    return connected(settings)
