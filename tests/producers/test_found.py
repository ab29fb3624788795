"""What a search of the releases topic makes of what it finds, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from producers.rollback import Found


def header(ledger: str, seq: int) -> Any:
    return SimpleNamespace(ledger=ledger, seq=seq)


def test_the_newest_release_of_the_own_ledger_is_found_whatever_stands_beside_it() -> None:
    """Releases can stand twice in the log, and those of another ledger between them."""
    found = Found()
    for offset, (ledger, seq) in enumerate(
        [("mine", 3), ("mine", 4), ("theirs", 900), ("mine", 5), ("mine", 4)], start=70
    ):
        found.take(header(ledger, seq), offset, "mine")
    assert found.newest == header("mine", 5)
    assert (found.first, found.offset, found.others) == (70, 73, True)


def test_a_log_of_the_own_ledger_alone_names_no_other() -> None:
    found = Found()
    found.take(header("mine", 0), 5, "mine")
    assert not found.others
    assert found.newest == header("mine", 0)
