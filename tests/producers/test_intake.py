"""What a client does for a record must not depend on the record: its time shows in arrivals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from benchmarks.timing import (
    GOOD,
    KINDS,
    LEVEL_KINDS,
    OF_KINDS,
    STUDY,
    STUDY_OF_KINDS,
    slot_of,
)
from pipeline.records.encode import Encoder
from pipeline.study import parse_study
from producers.intake import GOOD as USABLE
from producers.intake import encoded


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls that a piece of work makes, of Python's functions and of C's."""
    count = 0

    def seen(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "good"])
def test_a_clipped_or_bad_record_takes_the_calls_of_a_good_one(kind: str) -> None:
    """A few more for the error of a bad one: benchmarks.timing says what they take."""
    encoder = Encoder(parse_study(STUDY))
    good = calls_of(lambda: encoded(encoder, None, slot_of(GOOD)))
    other = calls_of(lambda: encoded(encoder, None, slot_of(KINDS[kind])))
    if "clipped" in kind:
        assert other == good
    assert 0.95 * good <= other <= 1.2 * good


@pytest.mark.parametrize("kind", [kind for kind in LEVEL_KINDS if kind != "good"])
def test_a_record_of_an_unknown_level_takes_about_the_calls_of_a_good_one(kind: str) -> None:
    """As many more as for any other fault: that a text is no number costs an error as well."""
    encoder = Encoder(parse_study(STUDY_OF_KINDS))
    good = calls_of(lambda: encoded(encoder, None, slot_of(OF_KINDS)))
    other = calls_of(lambda: encoded(encoder, None, slot_of(LEVEL_KINDS[kind])))
    if "clipped" in kind:
        assert other == good
    assert 0.95 * good <= other <= 1.2 * good


def test_records_are_still_told_apart_and_clipped_values_counted() -> None:
    encoder = Encoder(parse_study(STUDY))
    reasons = {kind: encoded(encoder, None, slot_of(record)) for kind, record in KINDS.items()}
    for kind, (row, reason) in reasons.items():
        assert (row is None) == (reason != USABLE) == (kind != "good" and "clipped" not in kind)
    assert reasons["last column no number"][1] == "column 'x8': not a number"
    assert reasons["all columns no numbers"][1] == "column 'x0': not a number"
    assert reasons["unreadable line"][1] == "not 10 fields"
    # of the two clipped records; what a bad one holds beside its fault is not counted
    assert encoder.clipped == {"x0": 2, **{f"x{i}": 1 for i in range(1, 9)}}
