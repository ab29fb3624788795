"""Faults that `make mutants` draws: what they change, where none is planted, and by which seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.mutants import KINDS, ROOT, drawn, places, probed, pure

TEXT = b'''\
LIMIT = 3
def f(x: int = 2, *, kind: "str" = "a") -> int:
    """Text of 1."""
    if x < LIMIT and kind in ("a", "b"):
        check(x)
    if not x:
        raise ValueError(f"{x + 1} is " + "too much")
    elif x == -y:
        total[0] += g(x)
    return [z - 1.5 for z in zip(x, y, strict=True)]
'''


def test_every_kind_of_fault_and_no_text_type_default_or_line_that_runs_at_import() -> None:
    found = {place.told(TEXT).partition(": ")[2] for place in places("m.py", TEXT)}
    assert found == {
        "x < LIMIT  ->  (x <= LIMIT)",
        "kind in (\"a\", \"b\")  ->  (kind not in ('a', 'b'))",
        "check(x)  ->  None",
        "x == -y  ->  (x != -y)",
        "-y  ->  (y)",
        "total[0] += g(x)  ->  total[0] -= g(x)",
        "0  ->  (1)",
        "z - 1.5  ->  (z + 1.5)",
        "1.5  ->  3.0",
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_faults_that_a_seed_draws_can_be_planted(seed: int) -> None:
    chosen = drawn(pure(), 40, seed)
    assert chosen == drawn(pure(), 40, seed)
    assert {place.kind for place in chosen} == set(KINDS)
    for place in chosen:
        text = (ROOT / place.file).read_bytes()
        assert ast.dump(ast.parse(place.planted(text))) != ast.dump(ast.parse(text))


def test_places_say_by_number_that_they_are_passed(tmp_path: Path) -> None:
    chosen = [place for place in places("m.py", TEXT) if place.kind in ("sign", "call")]
    alone = [
        p for p in chosen if not any(p is not o and o.start <= p.start < o.end for o in chosen)
    ]
    (tmp_path / "m.py").write_bytes(TEXT)
    probed(tmp_path, alone)
    text = (tmp_path / "m.py").read_text()
    ast.parse(text)
    assert all(f"passed({number})" in text for number in range(len(alone)))


def test_lines_that_move_leave_the_faults_as_they_are() -> None:
    moved = b"# a comment\n\n" + TEXT
    here, there = places("m.py", TEXT), places("m.py", moved)
    assert [p.told(TEXT) for p in here] == [p.told(moved) for p in there]
