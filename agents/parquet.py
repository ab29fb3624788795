"""Estimates as Parquet: a row for each coefficient of each estimate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.extras import extra
from pipeline.messages.estimate import EstimateMessage, read_estimate

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
