"""Loops of other stream processors over the topic of `benchmarks.peers`, one a process.

`python peer_loops.py NAME BROKER TOPIC COUNT`, run by a Python that has what NAME imports. Each
loop reads the topic once and prints its releases per second of processor time, from the first
release or batch to the last.
"""

# what one loop imports, the Python of another has not
# ruff: noqa: PLC0415
from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

Noted = Callable[[int], None]


def noting(end: int) -> Noted:
    """Return what is told how many releases came; it ends the process after the last one."""
    seen, first, began = 0, 0, 0.0

    def note(count: int) -> None:
        nonlocal seen, first, began
        seen += count
        if not first:
            # what was needed to start does not count
            first, began = seen, time.process_time()
        if seen >= end:
            print((seen - first) / (time.process_time() - began), flush=True)
            os._exit(0)

    return note


def kafka_python(broker: str, topic: str, note: Noted) -> NoReturn:
    """Read batches and do nothing."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=broker, group_id=None, auto_offset_reset="earliest",
        max_poll_records=1000,
    )  # fmt: skip
    while True:
        for records in consumer.poll(500).values():
            note(len(records))


def quix(broker: str, topic: str, note: Noted, *, stateful: bool = False) -> None:
    """Do nothing with each release, or count those of each key in the store."""
    from quixstreams import Application

    app = Application(
        broker_address=broker, consumer_group=f"bench-{uuid.uuid4().hex}", loglevel="ERROR",
        auto_offset_reset="earliest", state_dir=tempfile.mkdtemp(), use_changelog_topics=False,
    )  # fmt: skip
    read = app.topic(topic, key_deserializer="bytes", value_deserializer="bytes")

    def count(_: Any, state: Any) -> None:
        state.set("count", state.get("count", 0) + 1)
        note(1)

    frame = app.dataframe(read)
    if stateful:
        frame.update(count, stateful=True)
    else:
        frame.update(lambda _: note(1))
    app.run()


def bytewax(broker: str, topic: str, note: Noted) -> None:
    """Count the releases of each key in memory."""
    import bytewax.operators as op
    from bytewax.connectors.kafka import operators as kafka
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    class Part(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            note(len(items))

    class Sink(DynamicSink):
        def build(self, _step_id: str, _worker_index: int, _worker_count: int) -> Part:
            return Part()

    def counted(state: int | None, _: bytes) -> tuple[int, int]:
        count = (state or 0) + 1
        return count, count

    flow = Dataflow("bench")
    came = kafka.input("in", flow, brokers=[broker], topics=[topic], tail=False, batch_size=1000)
    keyed = op.map("key", came.oks, lambda message: (message.key.decode(), message.value))
    op.output("out", op.stateful_map("count", keyed, counted), Sink())
    run_main(flow)


if __name__ == "__main__":
    name, broker, topic, count = sys.argv[1:]
    note = noting(int(count))
    if name == "quix-stateful":
        quix(broker, topic, note, stateful=True)
    else:
        {"kafka-python": kafka_python, "quix": quix, "bytewax": bytewax}[name](broker, topic, note)
