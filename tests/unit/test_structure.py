"""Modules and folders of the product import each other without a circle, and none is too long.

Every import counts: those within functions and those for types alone too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "producers", "agents", "state", "infra")
LONGEST = 600
#: Modules, and folders, that reach each other by imports. Nothing may be added to these lists; who
#: cuts a circle takes it out.
FILES: tuple[set[str], ...] = ()
FOLDERS: tuple[set[str], ...] = ()


@cache
def modules() -> dict[str, str]:
    """Return the text of each module by its name; a package is named as its folder."""
    paths = [ROOT / "veilstream.py"]
    for package in PACKAGES:
        paths += sorted((ROOT / package).rglob("*.py"))
    named = ((path.relative_to(ROOT).with_suffix("").as_posix(), path) for path in paths)
    return {
        name.removesuffix("/__init__").replace("/", "."): path.read_text(encoding="utf-8")
        for name, path in named
    }


@cache
def imported(text: str) -> list[str]:
    """Return the names that a module imports: modules, and what may be one."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def links(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which of the modules each one imports."""
    found = {}
    for name, text in texts.items():
        names = (n if n in texts else n.rpartition(".")[0] for n in imported(text))
        found[name] = {n for n in names if n in texts} - {name}
    return found


def between_folders(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which folders the modules of each folder import from."""
    folders = {name.rpartition(".")[0] for name in texts}
    of = {name: name if name in folders else name.rpartition(".")[0] for name in texts}
    found: dict[str, set[str]] = {}
    for name, others in links(texts).items():
        found.setdefault(of[name], set()).update({of[other] for other in others} - {of[name]})
    return found


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of two or more that all reach each other, by the name that comes first."""

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    ahead = {name: reached(name) for name in graph}
    found = {
        frozenset({other for other in ahead[name] if name in ahead.get(other, ())})
        for name in graph
        if name in ahead[name]
    }
    return sorted(map(set, found), key=min)


@pytest.mark.parametrize(("what", "known"), [("files", FILES), ("folders", FOLDERS)])
def test_no_circle_of_imports_but_those_that_are_listed(
    what: str, known: tuple[set[str], ...]
) -> None:
    found = circles(links(modules()) if what == "files" else between_folders(modules()))
    new = [circle for circle in found if circle not in known]
    gone = [circle for circle in known if circle not in found]
    assert not new, f"a circle of {what} that is not listed; what imports upwards?"
    assert not gone, f"a circle of {what} is gone, or smaller: take it from the list"


def test_circles_are_seen_wherever_the_import_stands() -> None:
    texts = {
        "a": "import b",
        "b": "def f():\n    from c.d import x",
        "c.d": "if TYPE_CHECKING:\n    import a",
        "c.e": "from c import d, g",
        "f": "import a\nimport os",
    }
    assert circles(links(texts)) == [{"a", "b", "c.d"}]
    assert circles(links({**texts, "a": ""})) == []
    folders = {"c.d": "from g import h", "c.e": "", "g.h": "", "g.i": "from c.e import x"}
    assert circles(links(folders)) == []
    assert circles(between_folders(folders)) == [{"c", "g"}]


def test_no_module_is_too_long() -> None:
    """One idea takes 150 to 500 lines."""
    long = {name: n for name, text in modules().items() if (n := text.count("\n")) > LONGEST}
    assert not long


#: The files of a method: each may import those before it. Its mathematics, under names of its own,
#: may stand anywhere in this order. `report` has the words that an estimate gives as its reasons.
ORDER = ("spec", "client", "state", "sums", "report", "estimate", "server", "plan", "method")


def upwards(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the pairs of one method's files of which the first imports a later one."""
    found = set()
    for name, others in links(texts).items():
        folder, _, file = name.rpartition(".")
        for other in others:
            where, _, later = other.rpartition(".")
            own = folder == where and folder.startswith("pipeline.methods.")
            if own and {file, later} <= set(ORDER) and ORDER.index(file) < ORDER.index(later):
                found.add((name, other))
    return found


def test_the_files_of_a_method_import_in_one_order() -> None:
    """What a method's `spec` to `method` import of each other comes before them."""
    assert upwards(modules()) == set()
