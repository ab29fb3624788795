"""What is found out about a log from how far it goes."""

from __future__ import annotations

import asyncio

import aiokafka
import pytest

from agents.folding import check_end, check_log
from agents.link import _started
from infra.local.processes import free_port
from pipeline.errors import OffsetGap, StateError


def test_a_log_that_ends_before_what_was_folded_was_made_anew() -> None:
    for after in (40, 41):
        check_end("t", 0, 40, after)
        check_log("t", 0, 40, 40, after)
    with pytest.raises(StateError, match="study recover"):
        check_end("t", 0, 40, 39)
    with pytest.raises(StateError, match="study recover"):
        check_log("t", 0, 40, 0, 39)


def test_what_retention_took_before_it_was_folded_is_for_who_folds_it() -> None:
    # a watermark that was read before it moved on, and a log that is empty now
    check_end("t", 0, 100, 400)
    check_end("t", 0, 100, 101)
    with pytest.raises(OffsetGap, match="offsets 100 to 299 were removed"):
        check_log("t", 0, 100, 300, 400)


async def patiently() -> None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{free_port()}")
    try:
        async with asyncio.timeout(2.5):
            await _started(consumer)
    finally:
        await consumer.stop()


def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    # and whoever waits says how long
    with pytest.raises(TimeoutError):
        asyncio.run(patiently())
