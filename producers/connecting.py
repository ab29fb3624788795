"""What a study needs around it, looked at without spending anything: one finding for each part."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from infra.connection import asking
from infra.preflight import check_servers
from infra.rights import Role, kafka_rights
from infra.topics import administrator
from pipeline.errors import (
    BrokerError,
    ConfigError,
    DataError,
    LocalStoreError,
    StoreError,
    VeilstreamError,
)
from pipeline.records.encode import Encoder
from pipeline.release.task import Task
from pipeline.release.usable import worded
from pipeline.settings import Settings
from producers.intake import GOOD, encoded
from producers.sources import kind_of, open_source
from state.connection import redis_client

#: Record slots that are looked at, and seconds that they may take to come.
SLOTS, PATIENCE = 200, 5.0
#: Seconds that two clocks may differ, and bytes that must be free.
APART, FREE = 60.0, 100 << 20
#: Kafka's numbers for a topic that is not there, and for one that this user may not see.
_UNKNOWN, _NOT_SEEN = 3, 29


@dataclass(frozen=True, slots=True)
class Finding:
    """One part, and what is to be said of it.

    fault: What is wrong and who must act; None: it is as it should be.
    """

    part: str
    said: str
    fault: VeilstreamError | None = None


def findings(
    task: Task, settings: Settings, roles: Sequence[Role], source: str | None
) -> Iterator[Finding]:
    """Yield what was found of broker, topics, Redis, clock, disk and source, in this order.

    roles: Whose rights are looked at; a client alone needs no Redis.
    source: As `producers.sources.open_source` takes it; None: none is looked at.
    """
    broker = _look("Kafka", lambda: _broker(settings))
    yield broker
    if broker.fault is None:
        yield from _topics(task, settings, roles)
    if any(role != "client" for role in roles):
        redis_found = _look("Redis", lambda: f"{_redis_seconds(settings)[1]:.0f} ms for an answer")
        yield redis_found
        if redis_found.fault is None:
            yield _look("clock", lambda: _clock(settings))
    yield _look("disk", lambda: _disk(settings.home))
    if source is not None:
        yield _look("source", lambda: _source(task, settings, source))


def _look(part: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(part, look())
    except VeilstreamError as fault:
        return Finding(part, str(fault), fault)


def _broker(settings: Settings) -> str:
    check_servers(settings)
    return f"answers at {settings.kafka}"


def _topics(task: Task, settings: Settings, roles: Sequence[Role]) -> Iterator[Finding]:
    """Yield a finding for each topic that the roles use."""
    needed: dict[str, set[str]] = {}
    for role in roles:
        for right in kafka_rights(task.study, role):
            # the ledger's topic can be switched off
            used = right.name != "veil.ledger.v1" or settings.ledger_topic == "on"
            if right.kind == "topic" and used:
                needed.setdefault(right.name, set()).update(right.operations)
    try:
        with asking(settings, "the cluster", "Describe"), administrator(settings) as admin:
            may_create = "CREATE" in _operations(admin.describe_cluster())
            found = {each["name"]: each for each in admin.describe_topics(list(needed))}
    except VeilstreamError as fault:
        yield Finding("topics", str(fault), fault)
        return
    for name, operations in needed.items():
        yield _look(name, lambda n=name, o=operations: _topic(n, o, found.get(n), may_create))  # type: ignore[misc]


def _topic(name: str, operations: set[str], found: Any, may_create: bool) -> str:
    code = _UNKNOWN if found is None else found["error_code"]
    if code == _UNKNOWN and may_create:
        return "is not there yet; the first start makes it"
    if code in (_UNKNOWN, _NOT_SEEN):
        raise ConfigError(
            "is not there, or may not be seen, and this user may make none; the operator must run "
            "`veilstream topics STUDY`, and give the rights that `veilstream study acls` prints"
        )
    if code:
        raise BrokerError(
            f"Kafka cannot describe it now (its error {code}); the operator of Kafka must see to it"
        )
    allowed = _operations(found)
    missing = sorted(one for one in operations if _kafka_name(one) not in allowed)
    if missing:
        raise ConfigError(
            f"Kafka does not permit this user {', '.join(missing)} on it; the operator of Kafka "
            "must add it to the access control list: `veilstream study acls` prints the commands"
        )
    return f"is there, with {', '.join(sorted(operations))}"


def _operations(described: Any) -> set[str]:
    return set(
        described.get("authorized_operations") or described.get("topic_authorized_operations") or ()
    )


def _kafka_name(operation: str) -> str:
    return {"DescribeConfigs": "DESCRIBE_CONFIGS"}.get(operation, operation.upper())


def _redis_seconds(settings: Settings) -> tuple[float, float]:
    """Return the time that Redis has, in seconds since 1970, and how many ms its answer took."""
    client = redis_client(settings)
    begun = time.monotonic()
    try:
        seconds, micros = client.time()
    except redis.AuthenticationError as error:
        raise ConfigError(
            "Redis refuses the user or the password: the operator must set "
            "VEILSTREAM_REDIS_USERNAME and VEILSTREAM_REDIS_PASSWORD"
        ) from error
    except redis.exceptions.NoPermissionError:
        # it answers, and the least rights have no TIME
        return time.time(), 1000 * (time.monotonic() - begun)
    except redis.RedisError as error:
        raise StoreError(
            f"Redis does not answer ({type(error).__name__}): the operator must start it, or set "
            "VEILSTREAM_REDIS"
        ) from error
    finally:
        client.close()
    return seconds + micros / 1e6, 1000 * (time.monotonic() - begun)


def _clock(settings: Settings) -> str:
    apart = time.time() - _redis_seconds(settings)[0]
    if abs(apart) > APART:
        raise ConfigError(
            f"this machine's clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} "
            "that of Redis: the operator must set both by a time server; releases carry this time"
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


def _source(task: Task, settings: Settings, spec: str) -> str:
    if kind_of(spec) == "input" or spec.startswith("mqtt"):
        return "not looked at: what is read of it is taken from it"
    encoder, faults, usable, slots = Encoder(task.study), Counter[str](), 0, 0
    source = open_source(spec, None, folder=Path(), settings=settings)
    try:
        if source.columns is not None:
            encoder.check_columns(source.columns)
        until = time.monotonic() + PATIENCE
        while slots < SLOTS and not source.ended and time.monotonic() < until:
            for slot in source.read(SLOTS - slots, 0.2):
                row, reason = encoded(encoder, None, slot)
                slots, usable = slots + 1, usable + (row is not None)
                faults[reason] += 1
    finally:
        source.close()
    del faults[GOOD]
    if slots and not usable:
        raise DataError(
            f"none of its first {slots} records can be used: {worded(faults)}; the data owner must "
            "mend the source, or the operator the study's [data]"
        )
    others = f"; of the others: {worded(faults)}" if faults else ""
    return f"{usable} of its first {slots} records can be used{others}"
