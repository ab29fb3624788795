"""Clients of Kafka that ask again soon.

By default each waits a tenth of a second where Kafka does not know all that was asked for yet, as
it does not of the first topic that a client names: half the time of a short run of `veilstream`.
"""

from __future__ import annotations

import inspect

import aiokafka
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.cluster import ClusterMetadata

AGAIN_MS = 5


def ask_soon() -> None:
    """Have all clients that this process makes from now on wait less."""
    # the last is what knows the topics: the others do not hand it what they are told
    for kind in (KafkaConsumer, KafkaProducer, KafkaAdminClient, ClusterMetadata):
        kind.DEFAULT_CONFIG["retry_backoff_ms"] = AGAIN_MS
    for made in (aiokafka.AIOKafkaConsumer, aiokafka.AIOKafkaProducer):
        defaults = inspect.unwrap(made.__init__).__kwdefaults__
        assert "retry_backoff_ms" in defaults
        defaults["retry_backoff_ms"] = AGAIN_MS
