"""What a study needs around it, looked at without spending anything: one finding for each part."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import redis

from infra.deploy import Role, kafka_rights
from infra.kafka import asking
from infra.preflight import check_servers
from infra.topics import HIDDEN, administrator, check_topic
from pipeline.errors import BrokerError, ConfigError, LocalStoreError, VeilstreamError
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from state.connection import ask, redis_client

#: Seconds that two clocks may differ, and bytes that must be free.
APART, FREE = 60.0, 100 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One part, and what is to be said of it.

    fault: What is wrong and who must act; None: it can run.
    warning: Whether somebody should act before it does.
    """

    part: str
    said: str
    fault: VeilstreamError | None = None
    warning: bool = False

    @property
    def word(self) -> str:
        """How it stands, in one word."""
        if self.fault is not None:
            return "FAULT"
        return "WARNING" if self.warning else "ok"


def findings(task: Task, settings: Settings, roles: Sequence[Role]) -> Iterator[Finding]:
    """Yield what was found of broker, topics, Redis, clock and disk, in this order.

    roles: Whose rights are looked at; a client alone needs no Redis.
    """
    broker = look("Kafka", lambda: _broker(settings))
    yield broker
    if broker.fault is None:
        yield from _topics(task, settings, roles)
    if any(role != "client" for role in roles):
        redis_found = look("Redis", lambda: f"{_redis_seconds(settings)[1]:.0f} ms for an answer")
        yield redis_found
        if redis_found.fault is None:
            yield look("clock", lambda: _clock(settings))
    yield look("disk", lambda: _disk(settings.home))


def look(part: str, ask: Callable[[], str | tuple[str, bool]]) -> Finding:
    """Return what a question about a part gives; its error, if it raises one of ours.

    ask: Returns what is to be said, alone or with whether it is a warning.
    """
    try:
        found = ask()
    except VeilstreamError as fault:
        return Finding(part, str(fault), fault)
    said, warning = (found, False) if isinstance(found, str) else found
    return Finding(part, said, warning=warning)


def _broker(settings: Settings) -> str:
    check_servers(settings)
    return f"answers at {settings.kafka}"


def _topics(task: Task, settings: Settings, roles: Sequence[Role]) -> Iterator[Finding]:
    """Yield a finding for each topic that the roles use."""
    needed: dict[str, set[str]] = {}
    for role in roles:
        for right in kafka_rights(task.study, role, settings):
            if right.kind == "topic":
                needed.setdefault(right.name, set()).update(right.operations)
    used = (*Topics.of(task.study).all(), ledger_topic(task.study, settings))
    own, looked = {topic.name: topic for topic in used}, list[Finding]()
    try:
        with asking(settings, "the cluster", "Describe"), administrator(settings) as admin:
            may_create = "CREATE" in _operations(admin.describe_cluster())
            found = {each["name"]: each for each in admin.describe_topics(list(needed))}
            for name, operations in needed.items():
                check = partial(check_topic, settings, admin, own[name]) if name in own else None
                ask = partial(_topic, operations, found.get(name), may_create, check)
                looked.append(look(name, ask))
    except VeilstreamError as fault:
        looked.append(Finding("topics", str(fault), fault))
    yield from looked


def _topic(
    operations: set[str], found: Any, may_create: bool, check: Callable[[], None] | None
) -> str:
    code = HIDDEN[0] if found is None else found["error_code"]
    if code == HIDDEN[0] and may_create:
        return "is not there yet; the first start makes it"
    if code in HIDDEN:
        raise ConfigError(
            "this topic does not exist, or this user may not see it, and the user may "
            "not create it; the operator must run `veilstream topics STUDY`, and give "
            "the rights that `veilstream study acls` prints"
        )
    if code:
        raise BrokerError(
            f"Kafka cannot describe it now (its error {code}); the operator of Kafka must look "
            "into it"
        )
    allowed = {one.replace("_", "") for one in _operations(found)}
    missing = sorted(one for one in operations if one.upper() not in allowed)
    if missing:
        raise ConfigError(
            f"Kafka does not permit this user {', '.join(missing)} on it; the operator of Kafka "
            "must add it to the access control list: `veilstream study acls` prints the commands"
        )
    if check is not None:
        check()
    return f"is there, with {', '.join(sorted(operations))}"


def _operations(described: Any) -> set[str]:
    return set(
        described.get("authorized_operations") or described.get("topic_authorized_operations") or ()
    )


def _redis_seconds(settings: Settings) -> tuple[float, float]:
    """Return the time that Redis has, in seconds since 1970, and how many ms its answer took."""
    client = redis_client(settings)
    begun = time.monotonic()
    try:
        seconds, micros = ask(client.time)
    except ConfigError as error:
        if not isinstance(error.__cause__, redis.exceptions.NoPermissionError):
            raise
        # it answers, and the least rights have no TIME
        return time.time(), 1000 * (time.monotonic() - begun)
    finally:
        client.close()
    return seconds + micros / 1e6, 1000 * (time.monotonic() - begun)


def _clock(settings: Settings) -> str:
    apart = time.time() - _redis_seconds(settings)[0]
    if abs(apart) > APART:
        raise ConfigError(
            f"this machine's clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} "
            "that of Redis: the operator must set both by a time server, because releases carry "
            "this time"
        )
    return f"within {max(abs(apart), 0.1):.1f} s of that of Redis"


def _disk(folder: Path) -> str:
    at = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=at) as file:
            file.write(b"veil")
        free = shutil.disk_usage(at).free
    except OSError as error:
        raise LocalStoreError(
            f"{at} cannot be written ({error.strerror}): the operator must permit it, or set "
            "VEILSTREAM_FOLDER"
        ) from error
    if free < FREE:
        raise LocalStoreError(
            f"{at} has {free >> 20} MiB left: the operator must free disk space, {FREE >> 20} MiB "
            "at least, or set VEILSTREAM_FOLDER"
        )
    return f"{at} can be written, {free >> 30} GiB are free"
