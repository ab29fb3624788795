"""Quix Streams over the benchmark's topic; run by the Python of the peers' own environment.

Prints records per second, by the clock and by its processor time. BENCH_STATE=1 counts the records
of each key in its state store.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]


def main() -> None:
    """Read the topic once."""
    end, stateful = int(os.environ["BENCH_COUNT"]), bool(os.environ.get("BENCH_STATE"))
    app = Application(
        broker_address=os.environ["BENCH_KAFKA"], consumer_group=f"bench-{uuid.uuid4().hex}",
        auto_offset_reset="earliest", state_dir=tempfile.mkdtemp(), use_changelog_topics=False,
        loglevel="ERROR",
    )  # fmt: skip
    topic = app.topic(
        os.environ["BENCH_TOPIC"], key_deserializer="bytes", value_deserializer="bytes"
    )
    seen, began, used = 0, 0.0, 0.0

    def note(_: Any) -> None:
        nonlocal seen, began, used
        if not seen:
            began, used = time.perf_counter(), time.process_time()
        seen += 1
        if seen == end:
            clock, processor = time.perf_counter() - began, time.process_time() - used
            print((seen - 1) / clock, (seen - 1) / processor, flush=True)
            os._exit(0)

    def count(_: Any, state: Any) -> None:
        state.set("count", state.get("count", 0) + 1)
        note(None)

    frame = app.dataframe(topic)
    if stateful:
        frame.update(count, stateful=True)
    else:
        frame.update(note)
    app.run()


if __name__ == "__main__":
    main()
