"""A study as a version left it: log, stored state, and the folder of a client and of its operator.

`python -m tests.upgrade.kept NAME` records one with the present code, on the local runtime that
`veilstream up` has started. A recorded file is never made again: it is what is out there.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec

from infra.local import connected
from infra.topics import ensure_topics
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from tests.databases import sqlite_file
from tests.stage import Stage, read_topic, send, until

FOLDER = Path(__file__).parent
#: Packaged data, so that no path is part of what is kept.
SOURCE = "shuttle:1/16"
STUDY = """\
[study]
name = "kept"

[data]
response = { name = "anomaly", positive = "1", negative = "0" }

[data.features]
sensor_1 = { min = 20, max = 130 }
sensor_2 = { min = -5000, max = 5100 }

[estimator]
loss = "logistic"

[privacy]
mechanism = "discrete-gaussian"
epsilon = 2.0
delta = 1e-5

[window]
records = 500

[stream]
partitions = 2
retention = "forever"
publish = { releases = 1, seconds = 0.2, pause = 0.05 }

[trust]
releases = "authenticated"
"""


class Record(msgspec.Struct, frozen=True):
    """A record of a topic, by the topic's kind."""

    kind: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Kept(msgspec.Struct, frozen=True):
    """All that is left of a study whose processes have ended.

    redis: By key: the fields of a hash, or the members of a set.
    databases: The SQL of each file of the folder that is one, by its path.
    files: The other files that matter.
    """

    study: str
    log: list[Record]
    redis: dict[str, dict[bytes, bytes] | list[bytes]]
    databases: dict[str, str]
    files: dict[str, bytes]


def load(version: str) -> Kept:
    """Return what a version left."""
    data = lzma.decompress((FOLDER / f"{version}.msgpack.xz").read_bytes())
    return msgspec.msgpack.decode(data, type=Kept)


def record(stage: Stage) -> Kept:
    """Let four releases of a client be folded, end everything, and return what is there."""
    for arguments in (("topics", stage.study), ("study", "keys", stage.study)):
        assert stage.run(*arguments).returncode == 0
    card = stage.folder / "north.json"
    card.write_text(stage.run("client", "enrol", "--client", "north").stdout)
    assert stage.run("client", "admit", stage.study, card).returncode == 0
    # without a worker it waits for a model after so many
    stage.produce("north", SOURCE)
    until(lambda: len(stage.releases()) == 5, "four releases, and an admission")
    assert stage.stop("north") == 0
    stage.worker()
    stage.caught_up()
    stage.final_estimate()
    assert stage.stop("w0") == 0
    return _left(stage)


def _left(stage: Stage) -> Kept:
    log = [
        Record(kind, r.partition, r.timestamp, r.key, r.value, list(r.headers))
        for kind, topic in _topics(stage.topics).items()
        for r in read_topic(stage.settings.kafka, topic)
    ]
    redis: dict[str, Any] = {}
    for key in stage.stored_keys():
        is_set = stage.redis.type(key) == b"set"
        redis[key.decode()] = (
            sorted(stage.redis.smembers(key)) if is_set else stage.redis.hgetall(key)
        )
    databases, files = {}, {}
    for path in sorted(stage.settings.home.rglob("*")):
        name = str(path.relative_to(stage.settings.home))
        if path.suffix in (".db", ".sqlite"):
            with sqlite_file(path) as database:
                databases[name] = "\n".join(database.iterdump())
            database.close()
        elif path.suffix in (".key", ".pinned", ".lock") and "workers" not in name:
            files[name] = path.read_bytes()
    return Kept(STUDY, log, redis, databases, files)


def _topics(topics: Topics) -> dict[str, str]:
    return {
        name: getattr(topics, name).name
        for name in Topics.__match_args__
        if name != "authenticated"
    }


def restore(kept: Kept, stage: Stage) -> None:
    """Put everything back where it was, into a Kafka and a Redis that have never heard of it."""
    ensure_topics(stage.settings, stage.topics.all())
    names = _topics(stage.topics)
    for name in names:
        records = [
            {"key": r.key, "value": r.value, "partition": r.partition, "headers": r.headers,
             "timestamp_ms": r.timestamp}
            for r in kept.log if r.kind == name
        ]  # fmt: skip
        send(cast("str", stage.settings.kafka), names[name], records)
    for key, held in kept.redis.items():
        if isinstance(held, dict):
            stage.redis.hset(key, mapping=cast("Any", held))
        else:
            stage.redis.sadd(key, *held)
    for name, sql in kept.databases.items():
        with sqlite_file(_place(stage, name)) as database:
            database.executescript(sql)
        database.close()
    for name, data in kept.files.items():
        path = _place(stage, name)
        path.write_bytes(data)
        path.chmod(0o600)


def _place(stage: Stage, name: str) -> Path:
    path = stage.settings.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main(version: str) -> None:
    """Record a version with the present code."""
    settings = connected(Settings.read())
    path = FOLDER / f"{version}.msgpack.xz"
    if path.exists():
        raise SystemExit(f"{path} is there: what is out there does not change")
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), settings.kafka or "", settings.redis or "", STUDY)
        try:
            kept = record(stage)
        finally:
            stage.remove()
    path.write_bytes(lzma.compress(msgspec.msgpack.encode(kept), preset=9))


if __name__ == "__main__":
    main(sys.argv[1])
