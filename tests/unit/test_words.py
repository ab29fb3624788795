"""What is said to people: counts, waits and units."""

from __future__ import annotations

import time

import pytest
from rich.console import Console

from infra.process import FIRST, Waiting
from pipeline.api.table import line, short_table, table, unit_lines
from pipeline.errors import WaitTimeout
from pipeline.stream.in_process import OfflineRun
from pipeline.words import clipped_line, counted
from tests.builders import task_of


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


def test_a_source_that_is_slow_is_said_once_a_minute() -> None:
    now = 1000.0
    waits = Waiting(clock=lambda: now)
    said: list[int] = []
    for second in range(130):
        now = 1000.0 + second
        # a record every ten seconds
        what = "" if second % 10 == 0 else "records from the source"
        if waits.hint(what, done=second // 10):
            said.append(second)
    assert said == [6, 66, 126]


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
