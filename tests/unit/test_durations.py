"""The watch over tests that take long."""

from __future__ import annotations

import pytest

from tests import durations

SPENDING = """\
import time, pytest

def spend():
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass

def test_bare():
    spend()

@pytest.mark.takes("it must")
def test_with_a_reason():
    spend()

@pytest.mark.takes("")
def test_with_an_empty_one():
    spend()

@pytest.mark.slow
def test_slow():
    spend()
"""
pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("far", "outcome"), [(99.0, (4, 0)), (0.04, (2, 2))])
def test_what_takes_long_without_a_reason_is_listed_or_fails(
    far: float, outcome: tuple[int, int], pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytester.makepyfile(SPENDING)
    pytester.makeini("[pytest]\nmarkers =\n  takes(reason)\n  slow")
    with monkeypatch.context() as patch:
        patch.setattr(durations, "LONG", 0.03)
        patch.setattr(durations, "FAR_TOO_LONG", far)
        done = pytester.runpytest_inprocess("-p", "tests.durations", "-p", "no:cacheprovider")
    passed, failed = outcome
    done.assert_outcomes(passed=passed, failed=failed)
    listed = [line for line in done.outlines if " s  test_" in line]
    assert sorted(line.rpartition("::")[2] for line in listed) == [
        "test_bare", "test_with_an_empty_one",
    ]  # fmt: skip
