"""Mutated messages of every kind; `python -m benchmarks.trust` reads a million of them."""

from benchmarks.trust import fuzzed


def test_no_mutated_message_crashes_a_reader_or_counts() -> None:
    found = fuzzed(3000)
    assert (found["crashes"], found["accepted"]) == ({}, {})
    assert found["letters_exact"]
    assert found["clients_kept"] == 1
