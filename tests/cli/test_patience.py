"""A command that computes for long says so on standard error, and a short one says nothing."""

from __future__ import annotations

import threading

import pytest

from pipeline.cli.context import Work, while_computing


def test_a_long_computation_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    work = Work("a plan of a study", 301)
    asked = threading.Event()

    def said() -> str:
        asked.set()
        return work.said()

    with while_computing(said, first=0.0):
        assert asked.wait(60)
    out = capsys.readouterr()
    assert "computing a plan of a study with 301 coefficients for 0 s. The time grows" in out.err
    assert out.out == ""


def test_designs_say_how_long_the_rest_takes_about() -> None:
    work = Work("a plan of a study", 301)
    work.report(3, 12)
    assert ": 3 of 12 designs, about 1 s left. The time grows" in work.said()


def test_a_short_computation_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with while_computing(Work("a plan of a study", 3).said, first=3600.0):
        pass
    assert capsys.readouterr().err == ""
