"""What the lines of the shipped code are, by room: code, texts, imports, docstrings, blank lines.

`python -m benchmarks.sizes`. A room is a package of `pipeline`, a method, or one of
the other packages. Texts are lines of which a string is all but brackets and commas: mostly what
errors, helps and reports say. Lines are as ruff formats them. Prints a table.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "producers", "agents", "state", "infra")
KINDS = ("code", "texts", "imports", "docstrings", "comments", "blank")
#: Rooms whose folders are rooms of their own.
HALLS = ("pipeline", "pipeline/methods", "producers")


def kinds_of(text: str) -> Counter[str]:
    """Return how many lines of a module are of each kind; a line is of the first that it is of."""
    kinds = dict.fromkeys(range(1, len(text.splitlines()) + 1), "code")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            kinds[number] = "blank"
    words: dict[int, set[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        word = "" if token.type == tokenize.STRING else token.string.strip("()[]{},: \n")
        for number in range(token.start[0], token.end[0] + 1):
            words.setdefault(number, set()).add(word)
        if token.type == tokenize.STRING:
            kinds |= dict.fromkeys(range(token.start[0], token.end[0] + 1), "texts")
        elif token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            kinds[token.start[0]] = "comments"
    for number, found in words.items():
        if kinds.get(number) == "texts" and found != {""}:
            kinds[number] = "code"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kinds |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), "imports")
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines = range(first.lineno, (first.end_lineno or 0) + 1)
                kinds |= dict.fromkeys(lines, "docstrings")
    return Counter(kinds.values())


def room_of(path: Path) -> str:
    """Return the room of a module, as its path from the project's folder."""
    folder = path.relative_to(ROOT).parent
    while folder.parent.as_posix() not in (".", *HALLS):
        folder = folder.parent
    return folder.as_posix() if folder != Path() else path.name


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    modules = [ROOT / "veilstream.py"]
    for package in PACKAGES:
        modules += sorted((ROOT / package).rglob("*.py"))
    rooms: dict[str, Counter[str]] = {}
    for module in modules:
        found = kinds_of(module.read_text(encoding="utf-8"))
        rooms.setdefault(room_of(module), Counter()).update({**found, "modules": 1})
    ordered = sorted(rooms.items(), key=lambda item: -sum(item[1][kind] for kind in KINDS))
    total = sum((counts for _, counts in ordered), Counter[str]())
    rows = [["room", "lines", *KINDS, "modules"]]
    for name, counts in (*ordered, ("all", total)):
        lines = sum(counts[kind] for kind in KINDS)
        rows.append([name, *(f"{n:,}" for n in (lines, *(counts[k] for k in (*KINDS, "modules"))))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    lengths = [len(module.read_text(encoding="utf-8").splitlines()) for module in modules]
    print(f"\nmedian of a module: {median(lengths):g} lines, longest {max(lengths)}")


if __name__ == "__main__":
    main()
