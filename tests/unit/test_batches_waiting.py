"""A worker reads no further than it can fold soon, or a long log would lie in its memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agents.app import MOST_WAITING, BatchConsumer


def reads(waiting: int, *, flow_active: bool = True) -> int:
    """Return how often a consumer asks the fetcher while so many batches wait for the agent."""

    async def asked() -> int:
        queues = [asyncio.Queue[int](), asyncio.Queue[int]()]
        for number in range(waiting):
            queues[number % 2].put_nowait(number)
        count = 0

        async def fetched(_: float) -> tuple[None, None]:
            nonlocal count
            count += 1
            return None, None

        consumer: Any = SimpleNamespace(
            app=SimpleNamespace(topics=[SimpleNamespace(queue=queue) for queue in queues]),
            transport=SimpleNamespace(positions=None), flow_active=flow_active,
            sleep=asyncio.sleep, _wait_next_records=fetched,
        )  # fmt: skip
        consumer._waiting = lambda: BatchConsumer._waiting(consumer)
        assert [found async for found in BatchConsumer.getmany(consumer, 1.0)] == []
        return count

    return asyncio.run(asked())


@pytest.mark.parametrize(("waiting", "read"), [(0, 1), (MOST_WAITING - 1, 1), (MOST_WAITING, 0)])
def test_no_batch_is_read_while_enough_wait(waiting: int, read: int) -> None:
    assert reads(waiting) == read


def test_what_waits_for_a_rebalance_holds_nothing_up() -> None:
    # nobody folds meanwhile, and this is where the worker finds its new positions
    assert reads(MOST_WAITING, flow_active=False) == 1
