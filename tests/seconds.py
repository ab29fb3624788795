"""Seconds of each file of tests, with all processes that it starts: `make durations`.

Of the processor, and of the clock: the difference is time that it waits.

Children that nobody has waited for count too, such as the shared Kafka: they are known by a mark in
their environment, which Linux shows. What several files share counts where it was used.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Not one of the program's variables: it refuses names that it does not know
NAME = "SECONDS_OF_TESTS"
#: Clock ticks in a second, as the system counts.
TICKS = os.sysconf("SC_CLK_TCK")


class Seconds:
    """The plugin."""

    def __init__(self) -> None:
        os.environ[NAME] = uuid.uuid4().hex
        self._mark = f"{NAME}={os.environ[NAME]}".encode()
        self._strangers = {str(os.getpid())}
        self._spent: Counter[str] = Counter()
        self._clock: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._last, self._seen = self._all(), time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take what collecting has used."""
        del session
        self._take("(collection)")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Take what a file has used, behind its last test."""
        yield
        file = item.nodeid.partition("::")[0]
        self._tests[file] += 1
        if nextitem is None or nextitem.path != item.path:
            self._take(file)
        return True  # type: ignore[return-value]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("seconds of processor and clock of each file, its tests")
        for file, seconds in self._spent.most_common():
            terminalreporter.write_line(
                f"{seconds:8.1f} {self._clock[file]:8.1f} {self._tests[file]:5d}  {file}"
            )
        terminalreporter.write_line(
            f"{self._spent.total():8.1f} {self._clock.total():8.1f} {self._tests.total():5d}  all"
        )

    def _take(self, file: str) -> None:
        now, clock = self._all(), time.monotonic()
        self._spent[file] += now - self._last  # type: ignore[assignment]
        self._clock[file] += clock - self._seen  # type: ignore[assignment]
        self._last, self._seen = now, clock

    def _all(self) -> float:
        """Return what this process, its ended children and all living descendants have used."""
        return sum(os.times()[:4]) + sum(map(self._used, os.listdir("/proc")))

    def _used(self, pid: str) -> float:
        if not pid.isdigit() or pid in self._strangers:
            return 0.0
        try:
            if self._mark not in Path("/proc", pid, "environ").read_bytes():
                self._strangers.add(pid)
                return 0.0
            fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        # of itself, and of its own ended children, each for the user and for the system
        return sum(map(int, fields[11:15])) / TICKS


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure."""
    config.pluginmanager.register(Seconds())
