"""What people are told at a terminal: waits, forecasts, tables and digits."""

from __future__ import annotations

import io
import time
from functools import cache

import msgspec
import pytest
from rich.console import Console

from agents.publishing import LOOK_BACK_SECONDS, Pace
from infra.process import FIRST, Waiting
from pipeline.api.table import (
    LOOK_BACK,
    STOPPED_SECONDS,
    Forecast,
    comparison,
    line,
    short_table,
    state_of,
    table,
    unit_lines,
)
from pipeline.errors import WaitTimeout
from pipeline.messages.estimate import EstimateMessage, ProgressMessage
from pipeline.methods.plan_words import two_digits
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import combine
from pipeline.stream.replay import difference
from pipeline.words import clipped_line, counted
from tests.builders import folded, sample_log, task_of


@pytest.mark.parametrize(("number", "said"), [(0, "0 records"), (1, "1 record"), (2, "2 records")])
def test_one_is_not_said_in_the_plural(number: int, said: str) -> None:
    assert counted(number, "record") == said


def test_values_beyond_their_ranges_are_counted_by_column() -> None:
    assert clipped_line({"heat": 2, "power": 0, "load": 1}) == (
        "3 values outside the public ranges, cut to them: heat 2, load 1"
    )


def test_a_wait_is_said_when_it_lasts_and_then_once_a_minute() -> None:
    now = 1000.0
    waits = Waiting(clock=lambda: now)
    said: dict[float, str] = {}
    for second in range(200):
        now = 1000.0 + second
        # one that ends in time is not worth a line; what it counts down to changes nothing
        if line := waits.hint("" if second == 3 else f"{500 - second} more records"):
            said[second] = line
    assert list(said) == [9, 69, 129, 189]
    since = time.strftime("%H:%M:%S", time.localtime(1004.0))
    assert said[9] == f"waiting for 491 more records since {since}"
    waits.hint("a newer model")
    now += FIRST
    assert "`veilstream worker` must be running" in waits.hint("a newer model")
    assert waits.hint("") == ""


def test_a_wait_ends_where_one_thing_takes_too_long() -> None:
    now = 1000.0
    waits = Waiting(clock=lambda: now, timeout=3.0)
    for second in range(10):
        now = 1000.0 + second
        waits.hint("a newer model", done=second // 2)
    now += 3.0
    assert waits.hint("") == waits.hint("Kafka") == ""
    now += 2.9
    waits.hint("Kafka")
    now += 0.1
    with pytest.raises(WaitTimeout, match="3 s without Kafka"):
        waits.hint("Kafka")


def test_a_client_that_goes_on_waits_for_nothing() -> None:
    now = 1000.0
    waits = Waiting(clock=lambda: now)
    # models come, and each is used up before the next look
    said: list[str] = []
    for second in range(100):
        now = 1000.0 + second
        said.append(waits.hint("a newer model", done=min(second, 90)))
    assert [second for second, line in enumerate(said) if line] == [95]
    assert time.strftime("%H:%M:%S", time.localtime(1090.0)) in said[95]


def test_to_wait_as_long_as_a_study_publishes_is_normal() -> None:
    now = 1000.0
    waits = Waiting(clock=lambda: now, rhythm=20.0)
    assert waits.hint("a newer model") == waits.hint("Kafka") == ""
    now += FIRST
    assert "waiting for Kafka" in waits.hint("Kafka")
    assert waits.hint("a newer model") == ""
    now += 39.0
    assert waits.hint("a newer model") == ""
    now += 1.0
    assert "`veilstream worker` must be running" in waits.hint("a newer model")


@pytest.mark.parametrize(
    ("scaling", "words"), [("unit", "half the feature's public range"), ("none", "one unit")]
)
def test_a_table_says_what_step_a_coefficient_stands_for(scaling: str, words: str) -> None:
    task = task_of(p=2, private=False, scaling=scaling)
    _, message = OfflineRun(task).estimate(0.0)
    assert words in unit_lines(message)[0]
    console = Console(width=200, record=True)
    console.print(table(message, task.study))
    assert words in console.export_text()
    assert "0 releases, 0 clients" in line(message)


@pytest.mark.parametrize("height", [12, 24])
def test_a_low_screen_shows_how_it_stands_and_as_many_coefficients_as_fit(height: int) -> None:
    task = task_of(p=20)
    message = OfflineRun(task).estimate(0.0)[1]
    console = Console(width=80, height=height)
    shown = console.render_lines(short_table(message, task.study, height), pad=False)
    lines = ["".join(part.text for part in line) for line in shown]
    # a line is left for what the worker waits for
    assert len(lines) < height
    assert lines[0].startswith("0 record slots")
    rows = max(1, height - 10)
    assert f"{21 - rows} more coefficients" in lines[-2] + lines[-1]


TASK = task_of(p=2, records=50, loss="logistic")


@cache
def estimate(records_per_second: float | None = None) -> EstimateMessage:
    partition = folded(TASK, sample_log(TASK))
    return combine(
        TASK, {0: partition}, topic="t", model_version=1, published_at=1.0,
        records_per_second=records_per_second,
    )[1]  # fmt: skip


def at(records: int, missing: int | None, rate: float | None = 10.0) -> EstimateMessage:
    share = 1.0 if missing == 0 else 0.5
    progress = ProgressMessage(share, missing, rate, None)
    return msgspec.structs.replace(estimate(), records=records, progress=progress)


def test_the_rate_is_that_of_the_last_minutes() -> None:
    pace = Pace()
    assert pace.rate(0.0, 1000) is None
    assert pace.rate(10.0, 1500) == 50.0
    # what came long ago does not count
    for second in range(20, 2000, 10):
        found = pace.rate(float(second), 1500 + 20 * (second - 10))
    assert found == pytest.approx(20.0)
    assert pace.rate(2000.0 + LOOK_BACK_SECONDS, 1500 + 20 * 1980) is not None
    # a state that was rebuilt has fewer
    assert pace.rate(3000.0, 10) is None
    assert pace.rate(3001.0, 30) == 20.0


def test_an_estimate_has_the_rate_and_the_time_and_a_replay_has_neither() -> None:
    live, replayed = estimate(25.0), estimate()
    assert live.progress is not None
    assert replayed.progress is not None
    assert live.progress.missing_records
    assert live.progress.seconds == live.progress.missing_records / 25.0
    assert (replayed.progress.records_per_second, replayed.progress.seconds) == (None, None)
    assert difference(live, replayed) is None
    idle = estimate(0.0).progress
    assert idle is not None
    assert (idle.records_per_second, idle.seconds) == (0.0, None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def told(forecast: Forecast, message: EstimateMessage) -> str:
    forecast.take(message)
    return forecast.told()


def test_a_forecast_is_the_middle_of_the_last_ones() -> None:
    forecast = Forecast()
    assert forecast.told() == ""
    assert (
        told(forecast, at(1000, 6000))
        == "all intervals in about 10 minutes if 10 records a second keep coming"
    )
    # every fourth estimate says ten times as much
    said = [told(forecast, at(1000, 60_000 if n % 4 == 0 else 6000)) for n in range(LOOK_BACK)]
    assert said[-1] == "all intervals in about 10 minutes if 10 records a second keep coming"
    spread = [told(forecast, at(1000, 3000 if n % 2 else 9000)) for n in range(LOOK_BACK)]
    assert spread[-1] == "all intervals in about 5 to 15 minutes if 10 records a second keep coming"
    # who has seen as many estimates as it needs is told of the end, not of the past
    assert "1 second if 10 " in told(forecast, at(9995, 5))
    assert told(forecast, at(1000, None)) == ""
    assert told(forecast, at(1000, 0)) == ""
    assert told(forecast, at(1000, 600, rate=None)) == ""
    assert told(forecast, at(1000, 600, rate=0.0)) == ""


def test_a_forecast_ends_with_the_records_and_comes_back_with_them() -> None:
    steady = Clock()
    forecast = Forecast(steady=steady)
    forecast.take(at(1000, 6000))
    steady.now = STOPPED_SECONDS - 1
    # what was promised has come nearer
    assert forecast.told() == "all intervals in about 9 minutes if 10 records a second keep coming"
    steady.now = 300.0
    assert forecast.told() == (
        "no new estimate for 5 minutes: no more records are coming, or no worker runs; without new "
        "records there will be no further intervals"
    )
    assert told(forecast, at(1000, 6000)).endswith("keep coming")
    forecast.take(at(7000, 0))
    steady.now = 4000.0
    assert forecast.told() == ""


def test_a_time_that_has_passed_without_an_estimate_is_promised_no_longer() -> None:
    steady = Clock()
    forecast = Forecast(steady=steady)
    assert told(forecast, at(1000, 40)).startswith("all intervals in about 4 seconds if")
    steady.now = 3.0
    assert forecast.told().startswith("all intervals in about 1 second if")
    steady.now = 4.5
    assert forecast.told() == ""
    steady.now = 7.0
    assert forecast.told() == "no new estimate for 7 seconds"


def test_a_stream_that_has_ended_is_said_to_have_within_seconds() -> None:
    steady = Clock()
    forecast = Forecast(steady=steady)
    for number in range(5):
        published = f"2026-01-01T00:00:0{number}Z"
        message = msgspec.structs.replace(at(1000 + 10 * number, 600), published_at=published)
        forecast.take(message)
    steady.now = 4.0
    assert "keep coming" in forecast.told()
    assert not forecast.stopped
    steady.now = 5.0
    assert "no new estimate for 5 seconds: no more records are coming" in forecast.told()
    assert forecast.stopped


def test_clients_that_have_ended_are_soon_no_part_of_the_rate() -> None:
    forecast = Forecast()
    for second in range(30):
        # all but one of ten clients end after ten seconds; the last minutes say 1,000 a second
        records = 1000 * min(second, 10) + 100 * max(0, second - 10)
        published = f"2026-01-01T00:00:{second:02}Z"
        message = at(records, 60_000, rate=1000.0)
        forecast.take(msgspec.structs.replace(message, published_at=published))
    assert "if 100 records a second keep coming" in forecast.told()


def test_a_stream_that_is_slow_by_nature_has_not_stopped() -> None:
    steady = Clock()
    forecast = Forecast(steady=steady)
    for number in range(3):
        published = f"2026-01-01T00:{10 * number:02}:00Z"
        message = at(1000 + 6000 * number, 60_000)
        forecast.take(msgspec.structs.replace(message, published_at=published))
    steady.now = 1000.0
    assert "keep coming" in forecast.told()
    steady.now = 1700.0
    assert "are coming" not in forecast.told()
    steady.now = 1900.0
    assert "no new estimate for 32 minutes" in forecast.told()


def test_who_looks_later_is_told_how_old_the_newest_estimate_is() -> None:
    message = msgspec.structs.replace(at(1000, 6000), published_at="1970-01-01T00:00:10Z")
    for live, age in ((False, 7200.0), (True, 0.0)):
        forecast = Forecast(lambda: 7210.0, Clock())
        forecast.take(message, live=live)
        assert forecast.age == age
        assert ("2 hours" in forecast.told()) is not live


def test_ready_says_how_many_intervals_there_are_unless_all() -> None:
    message = estimate()
    rows = [
        msgspec.structs.replace(row, interval=(-1.0, 1.0) if i else None)
        for i, row in enumerate(message.coefficients)
    ]
    some = msgspec.structs.replace(message, status="ready", reason="", coefficients=rows)
    assert state_of(some) == f"ready ({len(rows) - 1} of {len(rows)} intervals)"
    assert state_of(some) in line(some)
    # a replay has no model, and says nothing of one
    assert "model 1, " in line(some)
    assert "model" not in line(msgspec.structs.replace(some, model_version=None))
    whole = [msgspec.structs.replace(row, interval=(-1.0, 1.0)) for row in rows]
    assert state_of(msgspec.structs.replace(some, coefficients=whole)) == "ready"
    assert state_of(message) == message.status != "ready"


def test_two_intervals_side_by_side_fit_into_a_terminal() -> None:
    message = estimate()
    rows = [
        msgspec.structs.replace(row, name="a_column", value=-12.25, interval=(-12.345, -10.125))
        for row in message.coefficients
    ]
    text, one = io.StringIO(), msgspec.structs.replace(message, coefficients=rows)
    Console(file=text, width=80, color_system=None).print(comparison(one, one))
    told = [line for line in text.getvalue().splitlines() if "a_column" in line]
    assert [line.count("[-12.345, -10.125]") for line in told] == [2] * len(rows)
    assert all(line.rstrip().endswith("yes") for line in told)


@pytest.mark.parametrize("width", [72, 80, 120])
def test_no_number_of_a_table_is_cut(width: int) -> None:
    message = estimate()
    rows = [
        msgspec.structs.replace(
            row, name="a_column_with_a_long_name_" + row.name, value=-0.123456,
            interval=(-10.25, -10.125), standard_error=0.1, sampling_se=0.25, privacy_se=0.5,
        )
        for row in message.coefficients
    ]  # fmt: skip
    text = io.StringIO()
    drawn = table(msgspec.structs.replace(message, coefficients=rows), TASK.study)
    Console(file=text, width=width, color_system=None).print(drawn)
    said = text.getvalue()
    for number in ("-0.1235", "[-10.250, -10.125]", "0.2500", "0.5000", "privacy se"):
        assert number in said
    assert "…" not in said
    cells = (drawn.split("│")[1].strip() for drawn in said.splitlines() if drawn.startswith("│"))
    assert "".join(cells) == "".join(row.name for row in rows)


@pytest.mark.parametrize(
    ("number", "told"),
    [(120.4, "120"), (1234.0, "1,200"), (99.6, "100"), (4.26, "4.3"), (0.0312, "0.031")],
)
def test_no_power_of_ten_is_printed(number: float, told: str) -> None:
    assert two_digits(number) == told


def test_a_bound_wider_than_the_range_is_no_bound() -> None:
    assert two_digits(12.0, 10.0) == "-"
    assert two_digits(9.0, 10.0) == "9"
    assert two_digits(None) == "-"
