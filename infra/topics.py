"""A study's topics: created, checked, how many copies Kafka keeps, and which revision runs.

Clients and workers wait until every copy in sync has a message (`acks = all`); how many those must
be, `min.insync.replicas` says.

The study's record says which revision is the running one. Workers write it, and
`veilstream topics`. Two workers of different revisions that both start first may both write: the
later record counts, and the state in Redis refuses one of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import (
    InvalidReplicationFactorError,
    KafkaError,
    LeaderNotAvailableError,
    NoError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from infra.kafka import asking, kafka_options, no_topic, read_all, write_one
from infra.preflight import check_servers
from pipeline.errors import ConfigError
from pipeline.messages.admission import Known, write_study
from pipeline.messages.topics import PLAIN, Topic, Topics
from pipeline.release.task import Task
from pipeline.settings import Settings

log = logging.getLogger("veilstream.topics")
#: How long a broker may take to tell of a topic that was just created.
METADATA_SECONDS = 10.0
#: Kafka's codes of a topic that is not there, and of one that this user may not see.
HIDDEN = (UnknownTopicOrPartitionError.errno, TopicAuthorizationFailedError.errno)
#: How far a message's time may lie in the future; how far from Kafka's a clock is clearly wrong.
AFTER, APART_SECONDS = "message.timestamp.after.max.ms", 600.0
#: Whose times records have: their senders', or Kafka's.
STAMPS = "message.timestamp.type"
#: The largest batch of messages that a topic takes; what producers put into one at most, unless a
#: message is larger; and what key, headers and batch come to beside it.
ROOM, BATCH_BYTES, BESIDE_BYTES = "max.message.bytes", 16384, 4096
#: Kafka's own word for "any age", in milliseconds.
FOR_EVER_MS = 2**63 - 1


def ensure_topics(settings: Settings, topics: Iterable[Topic]) -> list[str]:
    """Create the topics that do not exist, and return their names.

    Raises ConfigError if a topic exists with fewer partitions, another clean-up policy or too
    little room for a message; BrokerError if Kafka is out of reach or refuses.
    """
    wanted = {topic.name: topic for topic in topics}
    with asking(settings, "the cluster", "Describe"), administrator(settings) as admin:
        existing = _shown(admin, wanted)
        created = [name for name in wanted if name not in existing]
        for name in created:
            # Kafka does not show topics that somebody may not see
            with asking(settings, f"topic {name}", "Describe or Create"):
                _create(settings, admin, wanted[name])
        for name in wanted.keys() - set(created):
            check_topic(settings, admin, wanted[name])
    return created


def are_there(settings: Settings, names: Iterable[str]) -> bool:
    """Whether Kafka has topics, and shows them to this user; BrokerError as `ensure_topics`."""
    with asking(settings, "the cluster", "Describe"), administrator(settings) as admin:
        wanted = set(names)
        return wanted == _shown(admin, wanted).keys()


def check_partitions(settings: Settings, name: str, partitions: int) -> None:
    """Refuse a topic that is to be read and does not exist, or has fewer partitions.

    Raises ConfigError, saying which of both; BrokerError if Kafka is out of reach or refuses.
    """
    with asking(settings, f"topic {name}", "Describe"), administrator(settings) as admin:
        # one that was just made may have none yet
        found = sum(len(told["partitions"]) for told in _shown(admin, [name]).values())
    if not found:
        raise no_topic(settings, name)
    _check_count(name, found, partitions)


@dataclass(frozen=True, slots=True)
class TimeRules:
    """What a topic does with the times that clients give.

    appended: Whether Kafka puts its own times in their place.
    keeps_ms: How old a record may be, in milliseconds, before it is refused or removed; None: any
        age.
    ahead_ms: How far its time may lie in the future; None: any time.
    """

    appended: bool
    keeps_ms: int | None
    ahead_ms: int | None = None


def time_rules(settings: Settings, name: str) -> TimeRules:
    """Return what a topic that exists does with times.

    BrokerError if Kafka is out of reach or refuses.
    """
    with asking(settings, f"topic {name}", "DescribeConfigs"), administrator(settings) as admin:
        found = configuration(admin, name)
    limits = [
        int(found[key]["value"])
        for key in ("retention.ms", "message.timestamp.before.max.ms")
        if key in found
    ]
    kept = [limit for limit in limits if 0 <= limit < FOR_EVER_MS]
    ahead = int(found.get(AFTER, {"value": FOR_EVER_MS})["value"])
    return TimeRules(
        found[STAMPS]["value"] == "LogAppendTime",
        min(kept, default=None),
        ahead if 0 <= ahead < FOR_EVER_MS else None,
    )


def check_clock(settings: Settings, name: str, heard: float, say: Callable[[str], None]) -> None:
    """Look at this machine's clock before anything is made under it.

    name: Of the topic that releases go to.
    heard: Time of the newest record that was read, in seconds since 1970: it is later by now.
    say: Told of a clock that is clearly wrong, and whose releases are kept all the same.

    Raises ConfigError if Kafka would refuse or remove them; BrokerError as `ensure_topics`.
    """
    own = time.time()
    theirs = _seconds_of(settings)
    apart = own - (theirs if theirs is not None else max(own, heard))
    if abs(apart) < APART_SECONDS:
        return
    rules = time_rules(settings, name)
    limit = rules.ahead_ms if apart > 0 else rules.keeps_ms
    side = "ahead of" if apart > 0 else "behind"
    said = (
        f"the clock of this machine is {abs(apart):.0f} s {side} Kafka's: set it by a time server"
    )
    if limit is not None and not rules.appended and abs(apart) * 1000 > limit:
        raise ConfigError(
            f"{said}, and start again. Topic {name} would refuse or remove what carries this time; "
            "nothing was spent"
        )
    say(f"WARNING: {said}; releases carry this time")


def _seconds_of(settings: Settings) -> float | None:
    """Return Kafka's own time, in seconds since 1970; None if it does not tell this user."""
    with suppress(KafkaError), administrator(settings) as admin:
        quorum = admin.describe_metadata_quorum()
        for part in (part for topic in quorum["topics"] for part in topic["partitions"]):
            for voter in part["current_voters"]:
                # a leader has always caught up with itself just now
                if voter["replica_id"] == part["leader_id"]:
                    return float(voter["last_caught_up_timestamp"]) / 1000 or None
    return None


def keep_for(settings: Settings, topics: Iterable[Topic]) -> list[str]:
    """Make topics that exist keep records for as long as they say, and return which changed.

    BrokerError if Kafka is out of reach or refuses.
    """
    key, changed = "retention.ms", []
    with administrator(settings) as admin:
        for topic in topics:
            with asking(settings, f"topic {topic.name}", "AlterConfigs"):
                if configuration(admin, topic.name)[key]["value"] != topic.config[key]:
                    wanted = {key: topic.config[key]}
                    admin.alter_configs(
                        [ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=wanted)]
                    )
                    changed.append(topic.name)
    return changed


def check_broker(settings: Settings) -> None:
    """Refuse a Kafka that does not answer; BrokerError if it is out of reach or refuses."""
    with asking(settings, "the cluster", "Describe"), administrator(settings) as admin:
        admin.describe_cluster()


def administrator(settings: Settings) -> Any:
    """Return a connection for what only administrators do; closed as a context."""
    check_servers(settings)
    return KafkaAdminClient(
        **kafka_options(settings), bootstrap_timeout_ms=8000, request_timeout_ms=15000
    )


def _shown(admin: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return what Kafka tells of topics that exist and may be seen, by name.

    It is asked for these alone: a cluster may have many thousands of others.
    """
    found = {}
    for topic in admin.describe_topics(list(names)):
        code = topic["error_code"]
        if code not in (NoError.errno, LeaderNotAvailableError.errno, *HIDDEN):
            raise for_code(code)(topic["name"])
        if code not in HIDDEN:
            found[topic["name"]] = topic
    return found


def _create(settings: Settings, admin: Any, topic: Topic) -> None:
    options = {
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication,
        "configs": topic.config,
    }
    deadline = time.monotonic() + METADATA_SECONDS
    while True:
        try:
            admin.create_topics({topic.name: options}, wait_for_metadata=True)
        except TopicAlreadyExistsError:
            # another client of the study was faster
            check_topic(settings, admin, topic)
        except InvalidReplicationFactorError:
            # Kafka counts a broker that has just started, or was away, some seconds later
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise ConfigError(
                f"stream.replication = {topic.replication}: Kafka has fewer brokers now, so it "
                f"cannot make topic {topic.name}; the operator must start the others, or, before "
                "the study's first start, set stream.replication to as many as there are at most"
            ) from None
        return


def check_topic(settings: Settings, admin: Any, topic: Topic) -> None:
    """Refuse a topic that exists and is not as the study needs it.

    admin: As `administrator` returns it.

    Raises ConfigError, also if it takes no message as large as there will be, and if Kafka does not
    permit to look; BrokerError if it is out of reach.
    """
    with asking(settings, f"topic {topic.name}", "Describe"):
        partitions = _partitions(admin, topic)
    _check_count(topic.name, partitions, topic.partitions)
    with asking(settings, f"topic {topic.name}", "DescribeConfigs"):
        found = configuration(admin, topic.name)
    policy = found["cleanup.policy"]["value"]
    wanted = topic.config.get("cleanup.policy", "delete")
    if policy != wanted:
        raise ConfigError(
            f"topic {topic.name} has cleanup.policy {policy}, the study needs {wanted}; "
            "change it with your Kafka tools"
        )
    if topic.config.get(STAMPS, found[STAMPS]["value"]) != found[STAMPS]["value"]:
        raise ConfigError(
            f"topic {topic.name} has {STAMPS} = {found[STAMPS]['value']}, and MACs of releases are "
            f"over the times that clients give: the operator of Kafka must set it to "
            f"{topic.config[STAMPS]} (kafka-configs.sh), before budget is spent on dead letters"
        )
    room, least = int(found[ROOM]["value"]), max(BATCH_BYTES, topic.largest) + BESIDE_BYTES
    if room < least:
        raise ConfigError(
            f"topic {topic.name} has {ROOM} = {room}, the study needs {least}: the operator of "
            "Kafka must raise it (kafka-configs.sh), before budget is spent on what Kafka refuses"
        )


def _check_count(name: str, found: int, said: int) -> None:
    """Refuse a topic with too few partitions, and warn of more: nothing is written to those."""
    if found < said:
        raise ConfigError(
            f"topic {name} has {found} partitions, the study says {said}: restore "
            "stream.partitions, or give the study a new name"
        )
    if found > said:
        log.warning(
            "topic %s has %d partitions, the study says %d: the first %d are used, and nothing is "
            "read of the others; Kafka cannot take them back", name, found, said, said,
        )  # fmt: skip


def configuration(admin: Any, name: str) -> dict[str, dict[str, str]]:
    """Return the settings of a topic, in Kafka's words; its KafkaError if that is not permitted."""
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    answer = admin.describe_configs([resource], config_filter="all")
    found: dict[str, dict[str, str]] = next(iter(answer.values()))[name]
    if not found:
        # the library keeps this fault to itself
        raise TopicAuthorizationFailedError(name)
    return found


def _partitions(admin: Any, topic: Topic) -> int:
    """Return how many partitions a topic has; one that was just created may show none at first."""
    deadline = time.monotonic() + METADATA_SECONDS
    while True:
        [told] = admin.describe_topics([topic.name])
        if told["error_code"] == TopicAuthorizationFailedError.errno:
            raise TopicAuthorizationFailedError(topic.name)
        found = len(told["partitions"])
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(0.1)


LEAST, CODEC = "min.insync.replicas", "compression.type"
COMPRESSED = (
    "topics such as {name} keep compressed records: a short one of a stranger can fill the memory "
    f"of whoever reads it, or end it. The operator of Kafka should set {CODEC} = uncompressed "
    "(kafka-configs.sh) on all topics of the study"
)


def check_copies(settings: Settings, topics: Iterable[Topic]) -> list[str]:
    """Return warnings about topics that exist, one for each kind.

    Raises ConfigError if a topic has fewer copies than the study promises, or takes no message;
    BrokerError if Kafka is out of reach or refuses.
    """
    wanted = {topic.name: topic for topic in topics}
    warnings = dict[str, str]()
    with asking(settings, "the study's topics", "Describe"), administrator(settings) as admin:
        for described in admin.describe_topics(list(wanted)):
            name = described["name"]
            copies = min(len(part["replica_nodes"]) for part in described["partitions"])
            with asking(settings, f"topic {name}", "DescribeConfigs"):
                found = configuration(admin, name)
            least = int(found[LEAST]["value"])
            if found[CODEC]["value"] != PLAIN[CODEC]:
                warnings.setdefault(CODEC, COMPRESSED.format(name=name))
            for kind, warning in judged(wanted[name], copies, least).items():
                warnings.setdefault(kind, warning)
    return list(warnings.values())


def judged(topic: Topic, copies: int, least: int) -> dict[str, str]:
    """Return warnings, by kind, about a topic with so many copies, `least` of them in sync.

    Raises ConfigError if that is not what the study promises.
    """
    if copies < topic.replication:
        raise ConfigError(
            f"topic {topic.name} has {copies} copies, and stream.replication promises "
            f"{topic.replication}: the operator of Kafka must add copies "
            "(kafka-reassign-partitions.sh), or the study promise fewer"
        )
    if least > copies:
        raise ConfigError(
            f"topic {topic.name} has {copies} copies and {LEAST} = {least}: Kafka takes no "
            "message; its operator must lower that (kafka-configs.sh) or add copies"
        )
    if copies == 1:
        return {
            "one": f"topics such as {topic.name} have one copy. If that disk fails, releases are "
            "lost and their budget stays spent. The operator should set stream.replication = 3 "
            "before the first start, where Kafka has three brokers"
        }
    if least == 1:
        return {
            "least": f"topics such as {topic.name} take a message when one copy has it ({LEAST} = "
            "1): with that broker it can be lost; the operator of Kafka should set 2"
        }
    return {}


def known_revision(task: Task, settings: Settings) -> str | None:
    """Return the running revision of a study; None if nothing says it.

    BrokerError if Kafka does not answer.
    """
    known = Known(task.study.name)
    for _, value in read_all(settings, Topics.of(task.study).study.name):
        known.take(value)
    return known.revision


def check_running(task: Task, settings: Settings) -> None:
    """Refuse another revision than the running one; ConfigError, BrokerError as `announce`."""
    held = known_revision(task, settings)
    if held not in (None, task.revision):
        raise other_revision(task, str(held))


def announce(task: Task, settings: Settings, *, overrule: bool, say: Callable[[str], None]) -> None:
    """Write the record of a study, unless it is there.

    overrule: Whether this revision is right whatever the record says.
    say: Told of a record that was overruled.

    Raises ConfigError if the record names another revision; BrokerError if Kafka does not answer.
    """
    held = known_revision(task, settings)
    if held == task.revision:
        return
    if held is not None:
        if not overrule:
            raise other_revision(task, held)
        say(
            f"WARNING: the record of study {task.study.name!r} named revision {held}; it names "
            f"{task.revision} now. Clients of another revision stop"
        )
    topic, key = Topics.of(task.study).study.name, task.study.name.encode()
    value, marks = write_study(task, time.time())
    write_one(settings, topic, key=key, value=value, headers=marks)


def other_revision(task: Task, held: str) -> ConfigError:
    """Return the error for a study file that is not the running one."""
    name = task.study.name
    return ConfigError(
        f"study {name!r} runs under revision {held}, and this file is revision {task.revision}: "
        "releases of one are dead letters to the other. Nothing was spent for it. The operator "
        f"must give this process the file of revision {held}, or the changed study a new name "
        "(`veilstream study change` says how); if nothing of the other is wanted any more, "
        "`veilstream topics STUDY --replace` makes this file the running one"
    )
