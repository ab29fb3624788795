"""Read the log of a service: its end, what is added to it, and why it died."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

FOLLOW_SECONDS = 0.2


def private(log: Path) -> Path:
    """Return a log that its owner alone can read, made if it is not there."""
    log.touch(mode=0o600)
    log.chmod(0o600)
    return log


def log_size(log: Path) -> int:
    """Return where the next line will go."""
    return log.stat().st_size if log.exists() else 0


def tail(log: Path, lines: int) -> list[str]:
    """Return the last lines; none when there is no log yet."""
    if not log.exists():
        return []
    with log.open(encoding="utf-8", errors="replace") as stream:
        return [line.rstrip("\n") for line in deque(stream, maxlen=lines)]


def follow(log: Path) -> Iterator[str]:
    """Yield lines as they are written, without end."""
    while not log.exists():
        time.sleep(FOLLOW_SECONDS)
    with log.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(0, os.SEEK_END)
        line = ""
        while True:
            line += stream.readline()
            if line.endswith("\n"):
                yield line.rstrip("\n")
                line = ""
            else:
                time.sleep(FOLLOW_SECONDS)


def last_word(log: Path, start: int) -> str:
    """Return the line after ``start`` that says best why a service ended.

    Mostly the last one, as with Redis. Kafka's cause comes before pages of stacks and of parts that
    end, and Java's before two lines that say no more than that it ended.
    """
    with log.open("rb") as stream:
        stream.seek(start)
        text = stream.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    telling = [
        line for line in lines if not (line.startswith(("at ", "Error: ")) or " INFO " in line)
    ]
    return (causes or telling or lines or ["nothing"])[-1]
