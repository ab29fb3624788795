"""A kafka-python consumer that does nothing with what it gets; prints records per second.

By the clock, and by its processor time.
"""

from __future__ import annotations

import os
import time

from kafka import KafkaConsumer, TopicPartition

from benchmarks.fold import topic


def main() -> None:
    """Read the topic once."""
    place = TopicPartition(topic(), 0)
    end, seen, began, used = int(os.environ["BENCH_COUNT"]), 0, 0.0, 0.0
    with KafkaConsumer(
        bootstrap_servers=os.environ["BENCH_KAFKA"], group_id=None, enable_auto_commit=False,
        max_partition_fetch_bytes=4 * 2**20, max_poll_records=1000,
    ) as consumer:  # fmt: skip
        consumer.assign([place])
        consumer.seek(place, 0)
        while consumer.position(place) < end:
            batch = consumer.poll(timeout_ms=500).get(place, [])
            if not began:
                began, used = time.perf_counter(), time.process_time()
                continue
            seen += len(batch)
    print(seen / (time.perf_counter() - began), seen / (time.process_time() - used))


if __name__ == "__main__":
    main()
