"""How many copies of its topics Kafka keeps, beside what a study promises.

Clients and workers wait until every copy in sync has a message (`acks = all`); how many those must
be, `min.insync.replicas` says.
"""

from __future__ import annotations

from collections.abc import Iterable

from infra.connection import asking
from infra.topics import administrator, configuration
from pipeline.errors import ConfigError
from pipeline.messages.topics import Topic
from pipeline.settings import Settings

LEAST = "min.insync.replicas"


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
                least = int(configuration(admin, name)[LEAST]["value"])
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
            "one": f"topics such as {topic.name} have one copy (stream.replication = 1): with its "
            "disk go releases whose budget is spent; three copies survive a broker"
        }
    if least == 1:
        return {
            "least": f"topics such as {topic.name} take a message when one copy has it ({LEAST} = "
            "1): with that broker it can be lost; the operator of Kafka should set 2"
        }
    return {}
