"""Every kind of source, and a toy, keeps what the compliance suite asks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from producers.sources import open_source
from producers.sources.base import CountedRows, Slot
from tests.compliance.sources import CANARY, CHECKS, Case

CSV = f'x,y\n1,2\n"{CANARY}",2,3\n3,"a\nb"\n{CANARY}\n5,\xe9\n6,7\n"{CANARY}" ,1\n8,9'
JSON = f'{{"x": 1}}\n{{"x": {CANARY}}}\n\n["{CANARY}"]\n{{"x": 2, "y": "z"}}\n{{"x": 3}}'


def toy(position: bytes | None, skip: int = 0) -> CountedRows:
    """Open a source in a dozen lines."""
    return CountedRows(
        "toy", ["x"], 7, lambda start: ({"x": n} for n in range(max(0, start - skip), 7)), position
    )


def of_file(name: str, text: str, bad: int) -> Callable[[Path], Case]:
    def made(folder: Path) -> Case:
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return Case(lambda position: open_source(str(path), position, folder=folder), bad)

    return made


def of_input(form: str, text: str, bad: int) -> Callable[[Path], Case]:
    """Return standard input: a start anew reads it from its pipe, one that resumes its spool."""

    def made(folder: Path) -> Case:
        numbers = count()

        def opened(position: bytes | None) -> object:
            piped = folder / f"piped{next(numbers)}"
            piped.write_text(text, encoding="utf-8")
            spool = folder / f"spool{next(numbers)}"
            if position is not None:
                first = open_source("-", None, folder=spool, form=form, stream=piped.open("rb"))
                while not first.ended:
                    first.read(100, 5.0)
                first.close()
            rest = (folder / "nothing").open("wb+") if position is not None else piped.open("rb")
            return open_source("-", position, folder=spool, form=form, stream=rest)

        return Case(opened, bad)  # type: ignore[arg-type]

    return made


CASES: dict[str, Callable[[Path], Case]] = {
    "csv": of_file("a.csv", CSV, bad=3),
    "jsonl": of_file("a.jsonl", JSON, bad=2),
    "input-csv": of_input("csv", CSV, bad=3),
    "input-jsonl": of_input("jsonl", JSON, bad=2),
    "toy": lambda _: Case(toy),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_a_source_keeps_what_is_asked(
    check: Callable[[Case], None], case: str, tmp_path: Path
) -> None:
    check(CASES[case](tmp_path))


class Hasty(CountedRows):
    """Passes one slot over when it is read in pieces."""

    def __init__(self, position: bytes | None) -> None:
        super().__init__("toy", ["x"], 7, lambda n: ({"x": at} for at in range(n, 7)), position)

    def read(self, limit: int, timeout: float) -> list[Slot]:
        found = super().read(limit, timeout)
        return found[1:] if limit == 1 else found


def forgetful(position: bytes | None) -> CountedRows:
    """Resumes one slot too early."""
    return toy(position, skip=1)


@pytest.mark.parametrize("wrong", [forgetful, Hasty])
def test_a_wrong_source_is_found(wrong: Callable[[bytes | None], CountedRows]) -> None:
    found = 0
    for check in CHECKS:
        try:
            check(Case(wrong))
        except AssertionError:
            found += 1
    assert found
