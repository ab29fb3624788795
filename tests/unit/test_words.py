"""What is said to people: counts, waits and units."""

from __future__ import annotations

import pytest
from rich.console import Console

from pipeline.cli.produce import PATIENCE, Waiting
from pipeline.library.table import line, table, unit_line
from pipeline.library.words import clipped_line, counted
from pipeline.offline import OfflineRun
from tests.builders import plan_of


@pytest.mark.parametrize(("number", "said"), [(0, "0 records"), (1, "1 record"), (2, "2 records")])
def test_one_is_not_said_in_the_plural(number: int, said: str) -> None:
    assert counted(number, "record") == said


def test_values_beyond_their_ranges_are_counted_by_column() -> None:
    assert clipped_line({"heat": 2, "power": 0, "load": 1}) == (
        "3 values outside the public ranges, cut to them: heat 2, load 1"
    )


def test_a_wait_is_said_once_and_only_when_it_lasts() -> None:
    waits = Waiting()
    for _ in range(3):
        # one that ends in time is not worth a line
        assert not any(waits.hint("a newer model") for _ in range(PATIENCE - 1))
        assert waits.hint("") == ""
    said = [waits.hint("a newer model") for _ in range(3 * PATIENCE)]
    assert [bool(words) for words in said].index(True) == PATIENCE - 1
    assert sum(map(bool, said)) == 1
    assert "`veilstream worker`" in said[PATIENCE - 1]
    assert waits.hint("") == ""
    assert not any(waits.hint("a newer model") for _ in range(2 * PATIENCE))
    said = [waits.hint("Kafka") for _ in range(PATIENCE)]
    assert said[-1] == "waiting for Kafka"


@pytest.mark.parametrize(
    ("scaling", "words"), [("unit", "per half of a feature's public range"), ("none", "per unit")]
)
def test_a_table_says_what_step_a_coefficient_stands_for(scaling: str, words: str) -> None:
    plan = plan_of(p=2, private=False, scaling=scaling)
    _, message = OfflineRun(plan).estimate(0.0)
    assert unit_line(message).startswith(words)
    console = Console(width=200, record=True)
    console.print(table(message, plan.study))
    assert words in console.export_text()
    assert "0 releases, 0 clients" in line(message)
