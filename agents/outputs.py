"""Where the estimates of a replay go: lines, files that are whole or not there, a topic."""

from __future__ import annotations

import asyncio
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from agents.link import Link
from infra.topics import ensure_topics
from pipeline.errors import ConfigError, LocalStoreError
from pipeline.messages.envelope import json_headers
from pipeline.messages.estimate import EstimateMessage, read_estimate, write_estimate
from pipeline.messages.topics import Topic, Topics, is_of_a_study
from pipeline.settings import Settings, extra
from pipeline.study.model import Study

#: What an unfinished file is called, behind the name that it will have.
PARTIAL = ".partial"


class Output(ABC):
    """What takes estimates."""

    @abstractmethod
    def write(self, message: EstimateMessage) -> None:
        """Take one."""

    def finish(self) -> None:  # noqa: B027  most are whole at any time
        """Make a whole of it: nothing comes any more."""

    def close(self) -> None:  # noqa: B027  most have nothing open
        """Close what is open; what is unfinished stays so."""


class Shown(Output):
    """Estimates that somebody else shows."""

    def __init__(self, show: Callable[[EstimateMessage], None]) -> None:
        self._show = show

    def write(self, message: EstimateMessage) -> None:
        """As `Output.write`."""
        with file_faults("standard output"):
            self._show(message)


class File(Output):
    """JSON lines, or Parquet made of them at the end.

    The lines go to a file beside it, which gets its name when it is whole. A file that is no
    regular one, such as a pipe, is written as it comes.

    path: Its name; one that ends in .parquet becomes Parquet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.parquet = path, path.suffix.lower() == ".parquet"
        self._lines = path.with_name(path.name + PARTIAL) if is_regular(path) else path
        with file_faults(str(path)):
            self._file: BinaryIO = self._lines.open("wb")

    def write(self, message: EstimateMessage) -> None:
        """As `Output.write`."""
        with file_faults(str(self._path)):
            self._file.write(write_estimate(message) + b"\n")

    def finish(self) -> None:
        """As `Output.finish`."""
        with file_faults(str(self._path)):
            self._file.flush()
            if self._lines == self._path:
                return
            os.fsync(self._file.fileno())
            self._file.close()
            if self.parquet:
                made = self._path.with_name(self._path.name + ".made")
                to_parquet(self._lines, made)
                made.replace(self._path)
                self._lines.unlink()
            else:
                self._lines.replace(self._path)

    def close(self) -> None:
        """As `Output.close`."""
        # a disk that is full is so for what is still in the buffer, too
        try:
            self._file.close()
        except OSError:
            return


class TopicOf(Output):
    """A topic of its own, made if it is not there.

    Raises ConfigError if the name is that of a study's own topic, or Kafka allows none such;
    BrokerError if Kafka fails.
    """

    def __init__(self, name: str, study: Study, settings: Settings, revision: str) -> None:
        if is_of_a_study(name):
            raise ConfigError(
                f"--topic: {name} belongs to a study; replayed estimates need a topic that "
                "belongs to none"
            )
        self._name, self._study, self._revision = name, study, revision
        kept = Topics.of(study).estimates.config
        ensure_topics(settings, [Topic(name, 1, study.stream.replication, kept)])
        self._loop, self._link = asyncio.new_event_loop(), Link(settings)
        try:
            self._loop.run_until_complete(self._link.start())
        except BaseException:
            self.close()
            raise

    def write(self, message: EstimateMessage) -> None:
        """As `Output.write`; it returns when Kafka has it, so that the order stays."""
        study = self._study.name
        identity = f"replay/{self._revision}/{message.state_version}"
        marks = json_headers("estimate/1", study, identity, message.published_at, by="/replay")
        payload = write_estimate(message)
        self._loop.run_until_complete(
            self._link.send(self._name, study.encode(), payload, [(k, v) for k, v in marks])
        )

    def close(self) -> None:
        """As `Output.close`."""
        self._loop.run_until_complete(self._link.stop())
        self._loop.close()


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, or will be one."""
    return path.is_file() or not path.exists()


@contextmanager
def file_faults(name: str) -> Iterator[None]:
    """Turn faults of a file that is written into ours; a reader that has gone is none.

    LocalStoreError, naming the file and what is wrong.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LocalStoreError(
            f"{name} cannot be written ({error.strerror}): check the disk and the folder, then "
            "run the command again"
        ) from error


#: Estimates of one row group.
GROUP = 500


def to_parquet(lines: Path, made: Path) -> None:
    """Write the estimates of a file of JSON lines as Parquet, some at a time.

    OSError if a file cannot be read or written.
    """
    pa, parquet = extra("pyarrow", "--out"), extra("pyarrow.parquet", "--out")
    time, number = pa.timestamp("us", tz="UTC"), pa.float64()
    schema = pa.schema(
        [
            ("at", time), ("event_time", time), ("state_version", pa.int64()),
            ("status", pa.string()), ("records", pa.int64()), ("releases", pa.int64()),
            ("clients", pa.int64()), ("effective_records", number), ("level", number),
            ("coefficient", pa.string()), ("value", number), ("standard_error", number),
            ("lower", number), ("upper", number), ("sampling_se", number), ("privacy_se", number),
        ]
    )  # fmt: skip
    with lines.open("rb") as file, parquet.ParquetWriter(made, schema) as writer:
        while group := list(itertools.islice(file, GROUP)):
            rows = [row for line in group for row in _rows(read_estimate(line))]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _rows(message: EstimateMessage) -> Iterator[dict[str, Any]]:
    shared = {
        "at": _time(message.published_at),
        "event_time": None if message.event_time is None else _time(message.event_time),
        "state_version": message.state_version,
        "status": message.status,
        "records": message.records,
        "releases": message.releases,
        "clients": message.clients,
        "effective_records": message.diagnostics.effective_records,
        "level": message.level,
    }
    for row in message.coefficients:
        lower, upper = row.interval or (None, None)
        yield {
            **shared,
            "coefficient": row.name,
            "value": row.value,
            "standard_error": row.standard_error,
            "lower": lower,
            "upper": upper,
            "sampling_se": row.sampling_se,
            "privacy_se": row.privacy_se,
        }


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
