"""Every kind of source with records whose numbers are known, fed while clients read and die."""

from __future__ import annotations

import http.client
import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import paho.mqtt.client as mqtt
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from infra.local.processes import HOST, free_port
from tests.broker import MOSQUITTO, PASSWORD, USER, broker
from tests.postgres import postgres
from tests.producers.dying_client import ALL

HEADER = "mark,load,failed,pad\n"
#: Makes a spool large enough to be rewritten: lines are of one length, by which they are counted.
PAD = "p" * 400
#: Records that are there when a client starts, where nothing can be added while it reads.
LOT = 400


def duck_connection(path: str) -> Any:
    """Open a DuckDB file; a process that has loaded DuckDB prints a page of leaks when it ends."""
    import duckdb  # noqa: PLC0415

    return duckdb.connect(path)


def row(mark: int) -> dict[str, Any]:
    """Return the record of a number."""
    return {"mark": mark, "load": 0.25, "failed": 0.5}


def line(mark: int) -> bytes:
    """Return a record as a line of CSV."""
    return f"{mark:05},0.25,0.5,{PAD}\n".encode()


class Kind:
    """A source that is fed.

    options: Of `produce`: which source it is.
    follow: Options of a client that waits for more.
    ordered: Whether the records of a release follow each other.
    ends: Whether a client without `follow` ends at the end of the source.
    piped: Whether it is standard input.
    resting: Whether it is fed by `between` only, while no client runs.
    points: Where clients die, besides what is the same for all sources.
    """

    follow: tuple[str, ...] = ("--follow",)
    ordered = ends = True
    piped = resting = False
    points: tuple[str, ...] = ()

    def __init__(self, *options: str, **environment: str) -> None:
        self.options, self.environment = options, environment

    def add(self, marks: range) -> None:
        """Add records; OSError where they were not taken."""
        raise NotImplementedError

    def between(self, mark: int) -> int:
        """Return which record is added next, while no client runs."""
        return mark

    def ready(self, inbox: Path) -> bool:
        """Whether what is added from now on is kept."""
        del inbox
        return True

    def began(self, stdin: Any) -> None:
        """Hear that a client was started."""


class Lines(Kind):
    """A CSV or JSON-lines file that grows, or a pipe."""

    def __init__(self, path: Path) -> None:
        super().__init__("--source", str(path))
        self._path, self._csv = path, path.suffix == ".csv"
        path.write_text(HEADER if self._csv else "")

    def add(self, marks: range) -> None:
        made = map(line, marks) if self._csv else (told(mark) + b"\n" for mark in marks)
        with self._path.open("ab") as file:
            file.write(b"".join(made))


class Piped(Kind):
    """Standard input: what had not reached the spool when the client died is fed again."""

    follow, piped = (), True
    points = tuple(name for name in ALL if name.startswith("spool-"))

    def __init__(self, home: Path) -> None:
        super().__init__("--source", "-")
        self._home = home
        self._stdin: Any = None

    def add(self, marks: range) -> None:
        if self._stdin is None:
            raise BrokenPipeError
        self._stdin.write(b"".join(map(line, marks)))
        self._stdin.flush()

    def between(self, mark: int) -> int:
        for side in self._home.glob("clients/*.input/*/stdin.json"):
            base = json.loads(side.read_bytes())["base"]
            spool = side.parent / f"stdin-{base}.spool"
            return (base + spool.stat().st_size) // len(line(0)) if spool.exists() else 0
        return 0

    def began(self, stdin: Any) -> None:
        self._stdin = stdin
        try:
            stdin.write(HEADER.encode())
            stdin.flush()
        except OSError:
            # it has died already
            return


class Files(Kind):
    """A folder that gets Parquet and Arrow files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        super().__init__("--source", f"{folder}/")
        self._folder = folder

    def add(self, marks: range) -> None:
        table, name = pa.Table.from_pylist([row(mark) for mark in marks]), f"{marks.start:05}"
        half = self._folder / f".{name}"
        if marks.start // len(marks) % 2:
            pa.parquet.write_table(table, half, 7)
            half.rename(self._folder / f"{name}.parquet")
        else:
            pa.feather.write_feather(table, half, chunksize=7)
            half.rename(self._folder / f"{name}.arrow")


class Table(Kind):
    """A table that grows; DuckDB's only while nobody reads it."""

    def __init__(self, place: str, connect: Callable[[], Any]) -> None:
        mark = "&" if "?" in place else "?"
        super().__init__("--source", f"{place}{mark}table=t&key=mark")
        self._connect = connect
        self._run("CREATE TABLE t (mark BIGINT, load DOUBLE PRECISION, failed DOUBLE PRECISION)")

    def add(self, marks: range) -> None:
        self._run("INSERT INTO t VALUES " + ",".join(f"({mark}, 0.25, 0.5)" for mark in marks))  # noqa: S608

    def _run(self, statement: str) -> None:
        with closing(self._connect()) as database:
            database.cursor().execute(statement)
            database.commit()


class Duck(Table):
    """A table of DuckDB, which nobody can write to while it is read."""

    follow, resting = ("--rate", "500"), True

    def between(self, mark: int) -> int:
        self.add(range(mark, mark + LOT))
        return mark + LOT


class Topic(Kind):
    """A topic of two partitions: of records that are added together, either may come first."""

    ordered = False

    def __init__(self, kafka: str) -> None:
        name = f"source-{uuid.uuid4().hex[:12]}"
        super().__init__("--source", f"kafka://{name}")
        with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
            admin.create_topics([NewTopic(name, 2, 1)])
        self._name, self._producer = name, KafkaProducer(bootstrap_servers=kafka, acks="all")

    def add(self, marks: range) -> None:
        for mark in marks:
            self._producer.send(self._name, told(mark), partition=mark % 2)
        self._producer.flush()


class Posted(Kind):
    """Records that are posted: a request is repeated under its key until it is answered."""

    follow, ends = (), False
    points = tuple(name for name in ALL if name.startswith("inbox-"))

    def __init__(self) -> None:
        self._port = free_port()
        super().__init__("--listen", f"{HOST}:{self._port}")

    def add(self, marks: range) -> None:
        body, headers = b"\n".join(map(told, marks)), {"Idempotency-Key": f"from {marks.start}"}
        while True:
            link = http.client.HTTPConnection(HOST, self._port, timeout=20)
            try:
                link.request("POST", "/", body, headers)
                if link.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
            finally:
                link.close()


class Published(Kind):
    """Messages of an MQTT broker at QoS 1, in the session that the broker keeps."""

    follow, ends = (), False
    points = Posted.points

    def __init__(self, port: int) -> None:
        super().__init__(
            "--source", f"mqtt://{HOST}:{port}/plant/+",
            VEILSTREAM_MQTT_USERNAME=USER, VEILSTREAM_MQTT_PASSWORD=PASSWORD,
        )  # fmt: skip
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.username_pw_set(USER, PASSWORD)
        self._client.connect(HOST, port)
        self._client.loop_start()

    def add(self, marks: range) -> None:
        sent = [self._client.publish("plant/1", told(mark), 1) for mark in marks]
        for message in sent:
            message.wait_for_publish(60)

    def ready(self, inbox: Path) -> bool:
        if not inbox.exists():
            return False
        with closing(sqlite3.connect(f"file:{inbox}?mode=ro", uri=True)) as database:
            try:
                asked = database.execute("SELECT 1 FROM facts WHERE name = 'session'")
                return asked.fetchone() is not None
            except sqlite3.OperationalError:
                return False


def told(mark: int) -> bytes:
    """Return a record as a JSON object."""
    return json.dumps(row(mark)).encode()


@contextmanager
def postgresql(folder: Path, _: str) -> Iterator[Kind]:
    """Yield a table of a PostgreSQL of its own."""
    del folder
    with postgres() as uri:
        yield Table(uri, lambda: adbc_driver_postgresql.dbapi.connect(uri))


@contextmanager
def published(folder: Path, _: str) -> Iterator[Kind]:
    """Yield a topic of an MQTT broker of its own."""
    (folder / "broker").mkdir()
    with broker(folder / "broker", "mosquitto", users=True) as port:
        yield Published(port)


def plain(make: Callable[[Path, str], Kind]) -> Callable[[Path, str], Any]:
    """Return a kind of source that needs nothing around it."""

    @contextmanager
    def found(folder: Path, kafka: str) -> Iterator[Kind]:
        yield make(folder, kafka)

    return found


#: By name: yields a source, given a folder, in which its clients' home is "home", and a Kafka.
SOURCES: dict[str, Callable[[Path, str], Any]] = {
    "csv": plain(lambda folder, _: Lines(folder / "a.csv")),
    "jsonl": plain(lambda folder, _: Lines(folder / "a.jsonl")),
    "pipe": plain(lambda folder, _: Piped(folder / "home")),
    "kafka": plain(lambda _, kafka: Topic(kafka)),
    "arrow": plain(lambda folder, _: Files(folder / "day")),
    "sqlite": plain(
        lambda at, _: Table(f"sqlite://{at}/a.db", lambda: sqlite3.connect(at / "a.db"))
    ),
    "duckdb": plain(
        lambda at, _: Duck(f"duckdb://{at}/a.db", lambda: duck_connection(str(at / "a.db")))
    ),
    "postgresql": postgresql,
    "http": plain(lambda *_: Posted()),
    # amqtt drops what is in flight when a client dies, whatever the protocol says
    **({"mqtt": published} if MOSQUITTO else {}),
}
