"""The demonstration's own processes: started in sessions of their own, always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import VeilstreamError


class Processes:
    """Child processes that run `veilstream` commands.

    logs: Folder for their output.
    environment: Variables on top of the inherited ones.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = {**os.environ, **environment}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *arguments: str) -> None:
        """Start `veilstream ARGUMENTS` under a name; its output goes to a log of that name."""
        command = [sys.executable, "-m", "pipeline.cli.main", *arguments]
        with (self._logs / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End a process as a crash would: SIGKILL."""
        child = self._children[name]
        child.kill()
        child.wait()

    def check(self) -> None:
        """Refuse to go on if a process has failed.

        VeilstreamError with the last words of its log.
        """
        for name, child in self._children.items():
            code = child.poll()
            if code not in (None, 0, -signal.SIGKILL):
                text = (self._logs / f"{name}.log").read_text(errors="replace").strip()
                last = text.splitlines()[-1] if text else "it said nothing"
                raise VeilstreamError(f"{name} ended with code {code}: {last}")

    def running(self, prefix: str) -> int:
        """Return how many processes whose name begins so still run."""
        return sum(
            child.poll() is None
            for name, child in self._children.items()
            if name.startswith(prefix)
        )

    def end(self, grace: float = 3.0) -> None:
        """End all that still run: politely, then for good."""
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + grace
        for child in self._children.values():
            try:
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def signals_as_exit() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` runs as it does on Ctrl-C."""
    handled = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in handled}

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    # a shell starts background jobs with SIGINT ignored; whoever sends one means it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
