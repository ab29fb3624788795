"""Faust's ordinary agent, one event per record, with the worker's own fold; prints records/s.

It is spared the commits to Redis that the worker makes, and reads a part of the topic only: its
rate does not depend on how long it runs.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from types import SimpleNamespace

import faust

from benchmarks.fold import topic
from benchmarks.load import task_of
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition

COUNT = min(20_000, int(os.environ["BENCH_COUNT"]))
task = task_of("bench", kind=os.environ["BENCH_KIND"])
reducer, state = Reducer(task), Partition.empty(task)
app = faust.App(
    f"bench-{uuid.uuid4().hex}", broker=f"kafka://{os.environ['BENCH_KAFKA']}", store="memory://",
    topic_disable_leader=True, topic_allow_declare=False, web_enabled=False,
    consumer_auto_offset_reset="earliest", broker_max_poll_records=1000,
    datadir=tempfile.mkdtemp(), worker_redirect_stdouts=False,
)  # fmt: skip


@app.agent(app.topic(topic(), value_type=bytes, value_serializer="raw", key_serializer="raw"))
async def fold(stream: faust.Stream) -> None:
    """Fold one record per event."""
    began, used, seen = 0.0, 0.0, 0
    async for event in stream.events():
        if not seen:
            began, used = time.perf_counter(), time.process_time()
        message = event.message
        record = SimpleNamespace(
            offset=message.offset, timestamp=0, key=message.key, value=event.value, headers=()
        )
        reducer.fold(state, [record])
        seen += 1
        if seen == COUNT:
            clock, processor = time.perf_counter() - began, time.process_time() - used
            print(seen / clock, seen / processor, flush=True)
            os._exit(0)


if __name__ == "__main__":
    faust.Worker(
        app, loglevel="error", quiet=True, redirect_stdouts=False
    ).execute_from_commandline()
