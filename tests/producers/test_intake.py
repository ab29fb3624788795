"""What a client does for a record must not depend on the record: its time shows in arrivals."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import numpy as np
import pytest

from benchmarks.timing import GOOD, KINDS, STUDY, slot_of
from pipeline.records.batch import Column, Columns
from pipeline.records.encoder import Encoder
from pipeline.study_file.load import parse_study
from producers.intake import encoded
from producers.sources.csv_file import Table
from producers.sources.json_lines import Objects


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep what others have asked the collector of garbage to call out of the counts."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls that a piece of work makes, of Python's functions and of C's."""
    count = 0

    def seen(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with no_collection():
        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(None)
    return count


#: Slots of a block, and calls that a bad record may take beyond those of a good one: to find out
#: what is wrong with it, and to say so. They take a few microseconds; see benchmarks.timing.
SLOTS, WORDS = 50, 25


def calls_more(study: str, good: dict[str, str], other: dict[str, str] | None) -> tuple[int, ...]:
    """Return the calls of blocks beyond those of a good one: with one other record, and of them."""
    encoder, one = Encoder(parse_study(study)), slot_of(good)
    # ways to write a class or a level are remembered
    encoded(encoder, None, [one])
    blocks = ([one] * SLOTS, [*[one] * (SLOTS - 1), slot_of(other)], [slot_of(other)] * SLOTS)
    least, *found = [calls_of(lambda b=block: encoded(encoder, None, b)) for block in blocks]
    return tuple(calls - least for calls in found)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "good"])
def test_a_clipped_or_bad_record_takes_about_the_calls_of_a_good_one(kind: str) -> None:
    """A few more for the words on a bad one, and none for the records beside it."""
    one, all_of_them = calls_more(STUDY, GOOD, KINDS[kind])
    if "clipped" in kind:
        assert (one, all_of_them) == (0, 0)
    assert 0 <= one <= WORDS
    assert 0 <= all_of_them <= SLOTS * WORDS


#: Shares of slots that are bad, in a hundred.
SHARES = (0, 1, 50, 100)


def typed(bad: int) -> Columns:
    """Return a hundred slots of numbers, some of which have none."""
    gone = np.arange(100) < bad
    given = {name: float(value) for name, value in GOOD.items()}
    columns = {name: Column(np.full(100, value), gone) for name, value in given.items()}
    return Columns(columns, 100)


def texts(bad: int) -> Table:
    """Return a hundred slots of lines of CSV, some of which have a value that is no number."""
    good, other = (",".join(record.values()).encode() for record in (GOOD, {**GOOD, "x0": "?"}))
    return Table.of_lines(list(GOOD), [other] * bad + [good] * (100 - bad), {}, {})


#: What a JSON text may be in place of that of a good record.
STRANGE = {
    "a word": b'{"x0":"?"',
    "no value": b'{"x0":null',
    "a list": b'{"x0":[1]',
    "a text of a number": b'{"x0":"1.5"',
    "broken": b'{"x0":',
    "not UTF-8": b'{"x0":"\xff"',
}


def objects(bad: int, start: bytes) -> Objects:
    """Return a hundred slots of JSON texts, some of which are strange at their first value."""
    good = json.dumps({name: float(value) for name, value in GOOD.items()}).encode()
    other = start + good[good.index(b",") :] if start else b"{}"
    lost = {} if start else dict.fromkeys(range(bad), "a message without a value")
    return Objects([other] * bad + [good] * (100 - bad), lost)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", STRANGE)
def test_json_takes_the_steps_of_good_texts_however_many_are_strange(kind: str, share: int) -> None:
    """But for the words on a bad record: the texts beside it take not one step more."""
    encoder = Encoder(parse_study(STUDY))
    encoder.block(objects(0, b""))
    least, found = (
        calls_of(partial(encoder.block, objects(bad, STRANGE[kind]))) for bad in (0, share)
    )
    assert least <= found <= least + WORDS * share + (2 if share else 0)


@pytest.mark.parametrize("share", SHARES)
def test_columns_take_the_steps_of_good_ones_however_many_values_are_missing(share: int) -> None:
    """Arrays not one more; texts no more than the words on a bad record, as one by one."""
    encoder = Encoder(parse_study(STUDY))
    for make, most in ((typed, 0), (texts, WORDS)):
        encoder.block(make(share))
        least, found = (calls_of(partial(encoder.block, make(bad))) for bad in (0, share))
        assert least <= found <= least + most * share + (2 if share else 0)


def test_records_are_still_told_apart_and_clipped_values_counted() -> None:
    encoder = Encoder(parse_study(STUDY))
    block = encoded(encoder, None, [slot_of(record) for record in KINDS.values()])
    said = [block.reasons.words[code] for code in block.reasons.codes]
    reasons, empty = dict(zip(KINDS, said, strict=True)), np.isnan(block.arrays.responses)
    for kind, missing in zip(KINDS, empty, strict=True):
        assert missing == (reasons[kind] != "") == (kind != "good" and "clipped" not in kind)
    assert reasons["last column no number"] == "column 'x8': not a number"
    assert reasons["all columns no numbers"] == "column 'x0': not a number"
    assert reasons["unreadable line"] == "not 10 fields"
    # of the two clipped records; what a bad one holds beside its fault is not counted
    assert encoder.clipped == {"x0": 2, **{f"x{i}": 1 for i in range(1, 9)}}
