"""Each test that the page on security names is there, and each that has seen a planted fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
PLANTED = (ROOT / "benchmarks" / "results" / "planted.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(("text", "name"), [(PAGE, r"`(test_\w+)`"), (PLANTED, r'::(test_\w+)"')])
def test_each_row_names_tests_that_exist(text: str, name: str) -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    named = set(re.findall(name, text))
    assert len(named) > 20
    assert named <= there, named - there


def test_every_row_has_all_its_columns() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 25
    assert {row.count("|") for row in rows} == {6, 4}
    bodies = [row for row in rows if not row.startswith("|---") and row.count("`test_") == 0]
    # the heads of the two tables
    assert [row.split("|")[-2].strip() for row in bodies] == ["test", "test"]
