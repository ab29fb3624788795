"""The list of planted faults keeps step with the program, and the page with what was found."""

from __future__ import annotations

import json

import pytest

from benchmarks.planted import RESULTS, ROOT, markdown, planted
from benchmarks.planted_faults import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_can_be_planted(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert planted(fault, text) != text
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")


def test_the_page_holds_what_was_found_and_nothing_passed() -> None:
    rows = json.loads(RESULTS.read_text())
    assert {row["fault"] for row in rows} == {fault.name for fault in FAULTS}
    assert all(row["caught"] for row in rows)
    assert markdown(rows) in (ROOT / "docs" / "privacy" / "attacks.md").read_text(encoding="utf-8")
