"""An aiokafka consumer that does nothing with what it gets; prints records per second.

By the clock, and by its processor time.
"""

from __future__ import annotations

import asyncio
import os
import time

import aiokafka

from benchmarks.fold import topic


async def main() -> None:
    """Read the topic once."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic(), bootstrap_servers=os.environ["BENCH_KAFKA"], auto_offset_reset="earliest",
        enable_auto_commit=False, max_partition_fetch_bytes=4 * 2**20, max_poll_records=1000,
    )  # fmt: skip
    count, seen, began, used = int(os.environ["BENCH_COUNT"]), 0, 0.0, 0.0
    await consumer.start()
    try:
        while seen < count:
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                if not began:
                    began, used, count = (
                        time.perf_counter(),
                        time.process_time(),
                        count - len(batch),
                    )
                    continue
                seen += len(batch)
        print(seen / (time.perf_counter() - began), seen / (time.process_time() - used))
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
