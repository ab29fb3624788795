"""Everything that a study has put out: topics, stored state, pages, logs, files."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import msgspec
from kafka.admin import KafkaAdminClient

from pipeline.errors import PayloadError
from pipeline.messages.release import read
from pipeline.release.task import Task
from pipeline.stream.partition import SIZE
from tests.canaries import Output, text
from tests.stage import PATIENCE, Stage
from tests.wire import described

#: Makes every logger of a process, the libraries' as well, say all that it can.
LOUD = """\
import faulthandler, logging, mode.utils.logging
faulthandler.enable()
mode.utils.logging.DEVLOG = True
logging.basicConfig(level=logging.DEBUG)
logging.captureWarnings(True)
"""


def at_terminal(stage: Stage, name: str, *arguments: object) -> None:
    """Run a process at a terminal of its own to its end; what it shows goes to its log."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "wb", buffering=0) as terminal:
        stage.start(name, *arguments, out=terminal)
    with stage.log(name).open("ab") as log:
        while shown := _read(ours):
            log.write(shown)
    os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the process that had it open has ended
        return b""


def pages(port: int) -> list[Output]:
    """Return what a worker answers over HTTP."""
    found = []
    for page in ("healthz", "metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=PATIENCE) as answer:
            head = str(answer.headers)
            found.append(text(f"http {page}", head + answer.read().decode()))
    return found


def topics(stage: Stage) -> list[Output]:
    """Return every record of every topic that bears the study's name, also unforeseen ones."""
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        names = [name for name in admin.list_topics() if stage.task.study.name in name]
    assert set(names) >= {topic.name for topic in stage.topics.all()}
    found = []
    for name in sorted(names):
        for record in stage.read(name):
            place = f"{name.removeprefix(f'veil.{stage.task.study.name}.')} at {record.offset}"
            found.append(text(f"{place}, key", record.key or b""))
            for header, value in record.headers:
                found.append(
                    text(f"{place}, header {header}", f"{header}: ".encode() + (value or b""))
                )
            found += payload(f"{place}, value", record.value or b"", stage.task)
    return found


def payload(place: str, value: bytes, task: Task | None = None) -> list[Output]:
    """Return a message as it came, and as a reader decodes it; a release needs its task."""
    if value.startswith(b"{"):
        return [text(place, value), text(f"{place}, decoded", repr(msgspec.json.decode(value)))]
    found = [Output(place, value)]
    if task is None:
        try:
            return [*found, text(f"{place}, fields", repr(msgspec.msgpack.decode(value)))]
        except msgspec.DecodeError:
            return found
    try:
        release, shown = read(task, value), described(task, value)
    except PayloadError:
        return found
    numbers = {"point": release.point, **release.parts}
    decoded = {name: (stored.tolist(), shown.pop(name)) for name, stored in numbers.items()}
    return [
        *found,
        Output(f"{place}, decoded", repr(decoded).encode()),
        text(f"{place}, fields", repr(shown)),
    ]


def redis_keys(stage: Stage) -> list[Output]:
    """Return every key of the study in Redis, of whatever kind, with all that it holds."""
    found = []
    for key in sorted(stage.redis.scan_iter(f"*{stage.task.study.name}*")):
        # another kind of key would need a reader of its own here
        assert stage.redis.type(key) == b"hash", key
        found.append(text(f"redis {key!r}", key))
        for name, value in stage.redis.hgetall(key).items():
            place = f"redis {key!r} {name!r}"
            found += [text(place, name), Output(place, value)]
            if not name.startswith(b"sums"):
                # behind a message is its checksum, and behind a head the totals of both keys first
                found += payload(place, value[: -SIZE * (3 if name == b"head" else 1)])
    return found


def files(stage: Stage, *, apart: set[Path], local: set[str], unnumbered: str) -> list[Output]:
    """Return every file of the stage but those that lie in some folders.

    Parameters
    ----------
    local
        Names of files that show what a person sees at a client.
    unnumbered
        Before the names of files with so many numbers that any count stands among them.
    """
    found = []
    for path in sorted(stage.folder.rglob("*")):
        if path.is_file() and not apart & set(path.parents):
            place = f"file {path.relative_to(stage.folder)}"
            kind = Output if path.name.startswith(unnumbered) else text
            found.append(kind(place, path.read_bytes(), local=path.name in local))
    return found


def command(stage: Stage, *arguments: object) -> list[Output]:
    """Run a command and return its standard output and its standard error."""
    # a process of its own, as several run at once, and what it says must be all of it
    done = stage.run_beside(*arguments)
    name = " ".join(Path(str(argument)).name for argument in arguments)
    assert done.returncode == 0, (name, done.stderr)
    return [text(f"{name}, stdout", done.stdout), text(f"{name}, stderr", done.stderr)]
