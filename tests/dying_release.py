"""A client that releases windows two by two, and is killed at one step of release 2.

SQLite itself tells the steps, as it begins each statement.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import load_study
from producers import client
from producers import start as run
from producers.sender import Sender
from producers.store import ClientStore, Outgoing

TARGET = 2


def main() -> None:
    """Take the step, the study, the source, a file for what is released, and the client."""
    step, study, source, made_at, name = sys.argv[1:]

    def at(*steps: str) -> None:
        if step in steps:
            os.kill(os.getpid(), signal.SIGKILL)

    rows = 0

    def trace(statement: str) -> None:
        nonlocal rows
        at(f"before {statement.split(maxsplit=1)[0]}")
        if "INTO ledger" in statement:
            at("before ledger")
        rows += "INTO outbox" in statement
        if rows:
            at({1: "before outbox", 2: "within outbox"}[rows])

    class Killed(ClientStore):
        def release(self, task: Task, source: str, group: Sequence[Outgoing], **rest: Any) -> None:
            aimed = TARGET in [outgoing.seq for outgoing in group]
            if aimed:
                made = {outgoing.seq: outgoing.payload.hex() for outgoing in group}
                Path(made_at).write_text(json.dumps(made))
                self._db._db.set_trace_callback(trace)
            super().release(task, source, group, **rest)
            self._db._db.set_trace_callback(None)
            if aimed:
                at("after COMMIT")

        def sent(self, study: str, numbers: Sequence[int], place: Any) -> None:
            if TARGET in numbers:
                at("after ack")
            super().sent(study, numbers, place)
            if TARGET in numbers:
                at("after sent")

    class KilledSender(Sender):
        def pump(self) -> None:
            super().pump()
            if any(seq == TARGET for seq, _ in self._pending):
                at("after send")

    client.GROUP = 2
    run.ClientStore, run.Sender = Killed, KilledSender  # type: ignore[misc]
    run.run_client(
        task_of(load_study(Path(study))), Settings.read(), run.Job(name, source),
        report=lambda *_: None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
