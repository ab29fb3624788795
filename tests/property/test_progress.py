from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PayloadError, StateError
from pipeline.stream.partition import MAX_GAPS, Progress

ORDERS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.permutations(range(n)),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 2 * n)), max_size=20),
    )
)


LEDGER = "l"


@settings(derandomize=True)
@given(ORDERS)
def test_any_order_with_any_duplicates_folds_each_number_once_and_leaves_no_hole(
    case: tuple[int, list[int], list[tuple[int, int]]],
) -> None:
    n, order, repeats = case
    sequence = list(order)
    for number, place in repeats:
        sequence.insert(place, number)
    progress, folded = Progress(LEDGER), []
    for number in sequence:
        if progress.accept(LEDGER, number) != "duplicate":
            folded.append(number)
        seen = set(folded)
        assert progress.highest == max(seen)
        gaps = {i for first, last in progress.gaps for i in range(first, last + 1)}
        assert gaps == set(range(progress.highest)) - seen
        assert progress.missing == len(gaps)
    assert sorted(folded) == list(range(n))
    assert (progress.highest, progress.gaps, progress.missing) == (n - 1, [], 0)


@settings(derandomize=True)
@given(st.lists(st.integers(0, 60), max_size=60))
def test_what_is_stored_comes_back_and_goes_on_in_the_same_way(numbers: list[int]) -> None:
    progress = Progress(LEDGER)
    for number in numbers:
        progress.accept(LEDGER, number)
    again = Progress.decode(progress.encode())
    assert again == progress
    for number in range(62):
        assert again.accept(LEDGER, number) == progress.accept(LEDGER, number)


def test_the_outcomes_have_their_names() -> None:
    progress = Progress(LEDGER)
    assert [progress.accept(LEDGER, i) for i in (0, 3, 2, 2, 0, 1, 4)] == [
        "next", "next", "late", "duplicate", "duplicate", "late", "next",
    ]  # fmt: skip


def accept_all(progress: Progress, numbers: Iterable[int]) -> None:
    for number in numbers:
        progress.accept(LEDGER, number)


def test_random_numbers_are_refused_before_the_holes_fill_the_memory() -> None:
    progress = Progress(LEDGER)
    with pytest.raises(PayloadError, match="too-many-gaps"):
        accept_all(progress, range(1, 2 * MAX_GAPS + 4, 2))
    assert len(progress.gaps) <= MAX_GAPS


def test_late_numbers_cannot_split_a_hole_into_more_than_the_limit() -> None:
    progress = Progress(LEDGER)
    progress.accept(LEDGER, 10**9)
    with pytest.raises(PayloadError, match="too-many-gaps"):
        accept_all(progress, range(2, 2 * MAX_GAPS + 200, 2))
    assert len(progress.gaps) <= MAX_GAPS


def test_a_refused_number_changes_nothing() -> None:
    progress = Progress(LEDGER)
    for i in range(MAX_GAPS):
        progress.accept(LEDGER, 2 * i + 1)
    before = progress.encode()
    with pytest.raises(PayloadError):
        progress.accept(LEDGER, 10**6)
    assert progress.encode() == before
    assert progress.accept(LEDGER, 0) == "late"


def test_another_ledger_is_refused() -> None:
    progress = Progress("mine")
    assert progress.accept("mine", 0) == "next"
    with pytest.raises(PayloadError, match="foreign-ledger"):
        progress.accept("yours", 1)
    assert progress.highest == 0


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\xa1l\x01"])
def test_damaged_progress_is_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        Progress.decode(data)
