"""Times: what records, columns and options may say, and that all are read alike."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from pipeline.backtest.options import EventTime, seconds_of
from pipeline.errors import ConfigError, RecordError
from pipeline.records.batch import Column, Columns
from pipeline.records.values import milliseconds_of, time_of

EAST = timezone(timedelta(hours=2))
TIMES = {
    "2013-06-01T12:00:00Z": 1_370_088_000_000,
    "2013-06-01t14:00:00.250999+02:00": 1_370_088_000_250,
    "2013-06-01 12:00:00Z": 1_370_088_000_000,
    "1370088000": 1_370_088_000_000,
    " 1370088000.25 ": 1_370_088_000_250,
    "1370088000250": 1_370_088_000_250,
    1_370_088_000: 1_370_088_000_000,
    1_370_088_000.25: 1_370_088_000_250,
    1_370_088_000_250.0: 1_370_088_000_250,
    datetime(2013, 6, 1, 14, tzinfo=EAST): 1_370_088_000_000,
}
NO_TIMES = ("2013-06-01T12:00:00", "2013-06-01", "20130601x", "yesterday", "", None, True, math.nan,
            math.inf, 1e17, 10**400, -(10**400), "1e999", datetime(2013, 6, 1, 12))  # noqa: DTZ001  # fmt: skip


def moments(column: Column) -> Columns:
    """Return slots with one column, of times."""
    return Columns({"t": column}, len(column.values))


@pytest.mark.parametrize(("value", "expected"), TIMES.items())
def test_a_time_has_the_same_meaning_everywhere(value: object, expected: int) -> None:
    assert milliseconds_of(value) == time_of(value, "t") == expected
    arrived, read = EventTime("t").read(moments(Column([value])))
    assert arrived[0] == read[0] == expected / 1000
    if isinstance(value, str):
        assert seconds_of(value, "--from") == expected / 1000
    if isinstance(value, float):
        assert EventTime("t").read(moments(Column(np.array([value]))))[0] == expected / 1000


@pytest.mark.parametrize("value", NO_TIMES)
def test_what_is_no_time_is_none_anywhere(value: object) -> None:
    assert milliseconds_of(value) is None
    with pytest.raises(RecordError, match="'t' holds no time"):
        time_of(value, "t")
    if isinstance(value, str):
        with pytest.raises(ConfigError, match="--from"):
            seconds_of(value, "--from")
    clock = EventTime("t")
    arrived, read = clock.read(moments(Column([17, value])))
    assert arrived.tolist() == [17.0, 17.0]
    assert np.isnan(read[1])
    assert clock.untimed == 1


def test_typed_columns_are_utc() -> None:
    times = np.array(["2013-06-01T12:00:00.250", "NaT"], dtype="datetime64[ns]")
    arrived, read = EventTime("t").read(moments(Column(times)))
    assert arrived.tolist() == [1_370_088_000.25] * 2
    assert read[0] == datetime(2013, 6, 1, 12, 0, 0, 250_000, tzinfo=UTC).timestamp()
    assert np.isnan(read[1])
