"""The wording of every error, read from the source: `make wordings` writes them down again.

A test of a refusal asserts its class, which has the exit code, and the key that it names. How it
says so is in `errors.txt` alone, where a reviewer reads all sentences beside each other.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline import errors

ROOT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).with_name("errors.txt")
PACKAGES = ("pipeline", "producers", "agents", "state", "infra")
KINDS = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.VeilstreamError)
}


def wordings() -> str:
    """Return every sentence under its file, each with the class and the exit code of its error."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            said = sorted(set(sentences(ast.parse(path.read_text(encoding="utf-8")))))
            if said:
                found.append(f"{path.relative_to(ROOT)}\n" + "".join(f"  {s}\n" for s in said))
    return "\n".join(found)


def sentences(tree: ast.AST) -> Iterator[str]:
    """Yield what a file's errors say, with the source of what is filled in between braces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            text = " | ".join(filter(None, map(words, node.args)))
            if name in KINDS and text:
                yield f"{KINDS[name]} {name}: {text}"


def words(node: ast.expr) -> str:
    """Return the text of an argument; of one that is made elsewhere, how it is made."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words(node.left) + words(node.right)
    return f"{{{ast.unparse(node)}}}"


def changes() -> list[str]:
    """Return how the sentences differ from those that are written down."""
    before = SNAPSHOT.read_text(encoding="utf-8") if SNAPSHOT.exists() else ""
    both = before.splitlines(), wordings().splitlines()
    return list(difflib.unified_diff(*both, "errors.txt", "the code", n=0, lineterm=""))


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in changes())
    SNAPSHOT.write_text(wordings(), encoding="utf-8")
