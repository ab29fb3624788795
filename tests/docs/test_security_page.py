"""Each test that the page on security names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_each_row_names_tests_that_exist() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 20
    assert named <= there, named - there


def test_every_row_has_all_its_columns() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 25
    assert {row.count("|") for row in rows} == {6, 4}
    bodies = [row for row in rows if not row.startswith("|---") and row.count("`test_") == 0]
    # the heads of the two tables
    assert [row.split("|")[-2].strip() for row in bodies] == ["test", "test"]
