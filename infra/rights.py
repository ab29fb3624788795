"""The least rights of each role in Kafka and Redis, and the commands that give them.

One table: documents, `veilstream study acls` and a test on a real broker read it. Read and Write
bring Describe with them. Kafka cannot bind a client to its own key: whose release it is, its MAC
says.
"""

from __future__ import annotations

import shlex
from typing import Literal, NamedTuple

from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from pipeline.study.model import Study

Role = Literal["client", "worker", "reader", "operator"]
#: Who each role is.
ROLES: dict[Role, str] = {
    "client": "`veilstream produce`",
    "worker": "`veilstream worker`, also with --verify",
    "reader": "`veilstream watch`, `page`, `predict` and, with the study's key file, `replay`",
    "operator": "`veilstream topics`, `state`, `study keys`, `client admit` and `revoke`, `dlq`",
}
#: Commands of Redis, beside the keys of the study.
REDIS: dict[Role, str] = {
    "client": "",
    "worker": "evalsha script|load hget hgetall hmget hset hdel smembers scard multi exec",
    "reader": "smembers",
    "operator": "hgetall hget hset hexists hdel smembers sadd del multi exec watch unwatch",
}


class Right(NamedTuple):
    """What may be done with one topic or group."""

    kind: Literal["topic", "group"]
    name: str
    operations: tuple[str, ...]


def kafka_rights(study: Study, role: Role, settings: Settings) -> list[Right]:
    """Return the rights of a role where the operator has made the topics."""
    topics, ledger = Topics.of(study), settings.ledger_topic

    def on(name: str, *operations: str) -> Right:
        return Right("topic", name, operations)

    # of an authenticated study alone
    told = [topics.clients.name] if study.authenticated else []
    if role == "client":
        return [
            *(on(name, "Read", "DescribeConfigs") for name in told),
            on(topics.releases.name, "Read", "Write", "DescribeConfigs"),
            on(topics.models.name, "Read", "DescribeConfigs"),
            on(topics.study.name, "Read", "DescribeConfigs"),
            on(ledger, "Read", "Write", "DescribeConfigs"),
        ]
    if role == "worker":
        return [
            *(on(name, "Read", "Write", "DescribeConfigs") for name in told),
            on(topics.releases.name, "Read", "DescribeConfigs"),
            on(topics.models.name, "Read", "Write", "DescribeConfigs"),
            on(topics.study.name, "Read", "DescribeConfigs"),
            *(
                on(topic.name, "Write", "DescribeConfigs")
                for topic in (topics.estimates, topics.latest, topics.dead_letters)
            ),
            Right("group", f"veilstream-{study.name}", ("Read",)),
        ]
    if role == "reader":
        read = (topics.releases, topics.estimates, topics.latest, topics.dead_letters)
        return [on(name, "Read") for name in (*(topic.name for topic in read), ledger, *told)]
    own = {topics.releases.name: ("Read",), topics.study.name: ("Read", "Write")}
    # what nobody has set aside before a rebuild is set aside by it
    own[topics.dead_letters.name] = ("Read", "Write")
    # whom it admits, it says in the log of releases, too
    own |= {name: ("Read", "Write") for name in (topics.releases.name, *told) if told}
    return [
        on(name, "Create", "DescribeConfigs", *own.get(name, ("Describe",)))
        for name in (*(topic.name for topic in topics.all()), ledger)
    ]


def kafka_commands(study: Study, role: Role, user: str, settings: Settings) -> list[str]:
    """Return the commands of Kafka's own tool that give a user the rights of a role."""
    servers = settings.kafka or "HOST:PORT"
    return [
        shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", servers, "--add"),
                *("--allow-principal", f"User:{user}"),
                *(word for operation in right.operations for word in ("--operation", operation)),
                *(f"--{right.kind}", right.name),
            ]
        )
        for right in kafka_rights(study, role, settings)
    ]


def redis_command(study: Study, role: Role, user: str) -> str:
    """Return the command of Redis that makes a user of a role; empty if it needs none."""
    if not REDIS[role]:
        return ""
    allowed = " ".join(f"+{command}" for command in REDIS[role].split())
    keys = f"~veil:{{{study.name}}}:*"
    return f"ACL SETUSER {user} reset on >PASSWORD {keys} -@all {allowed}"
