"""Single faults planted at random in lines that tests run, and how many of them the tests catch.

`python -m benchmarks.mutants [--faults N] [--seed S] [--all] [--jobs J] [--tests FILE ...]`

A fault is one of four: a comparison the other way, a sign, a constant, a call left out. The seed
draws a kind and then a place, from the code as it is now: of the packages that know no transport
(`pyproject.toml` lists them), or with --all of all that is shipped. What runs at import, texts and
annotations are left alone. A first run of all tests without Kafka, Redis or a browser finds out
which of them pass each place, and how long they take; each fault is then planted in a copy of the
program, and some of these tests run until one fails: the quickest for 10 seconds in all, and others
that are drawn for as long. Prints each fault with the test that caught it, and the share that
was caught; ends with 1 where it is below 85 %.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
#: What a test that failed is printed as; its parameters are left out.
FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>[^\s\[]+)", re.MULTILINE)
PACKAGES = ("pipeline", "producers", "agents", "state", "infra")
#: Of the quickest tests that pass a place, and of others: seconds in all, and how many at least.
SECONDS, LEAST_TESTS = 10.0, 20
#: The share that should be caught.
ENOUGH = 0.85
#: A fault counts as caught where its tests come to no end: in so many seconds, and so many times
#: as long as they take without it.
PATIENCE = (60, 10)
#: Of places that are drawn, about half are passed by tests that need no server.
SPARE = 3
KINDS = ("comparison", "sign", "constant", "call")
#: Files of tests that look at the text of the program, or run others on all of it.
TEXTS = ("tests/wordings", "tests/packaging", "tests/docs", "tests/upgrade")
#: What a copy of the program does without.
LEFT = (".*", "__pycache__", "build", "dist", "*.egg-info")
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a file, what it becomes there, and what is evaluated just before it.

    start, end: Of what is replaced, in bytes of the file.
    new: What it becomes.
    probe: Start and end of the expression whose evaluation shows that a test passes here.
    """

    file: str
    function: str
    kind: str
    start: int
    end: int
    new: str
    probe: tuple[int, int]

    def planted(self, text: bytes) -> bytes:
        """Return the text of the file with the fault."""
        return text[: self.start] + self.new.encode() + text[self.end :]

    def told(self, text: bytes) -> str:
        """Return the fault in words that stay when lines move."""
        old = " ".join(text[self.start : self.end].decode().split())
        return f"{self.file} {self.function}: {old}  ->  {self.new}"


def places(file: str, text: bytes) -> list[Place]:
    """Return every place of a file where a fault can be planted."""
    ends = [0]
    for line in text.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            ends[node.lineno - 1] + node.col_offset,
            ends[node.end_lineno - 1] + node.end_col_offset,
        )

    found = []
    for function, node in _reachable(ast.parse(text), ()):
        fault = _fault(node)
        if fault is None:
            continue
        kind, new, evaluated = fault
        found.append(Place(file, ".".join(function), kind, *span(node), new, span(evaluated)))
    return found


def _reachable(
    node: ast.AST, function: tuple[str, ...], *, inside: bool = False
) -> Iterator[tuple[tuple[str, ...], ast.expr | ast.stmt]]:
    """Yield what runs when a function is called, with the names of the function around it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        function, inside = (*function, node.name), inside or not isinstance(node, ast.ClassDef)
        below: Iterable[ast.AST] = node.body
    elif isinstance(node, ast.AnnAssign):
        below = [node.value] if node.value else []
    # positions within texts are unknown, and what an error says is looked at by tests/wordings
    elif isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert, ast.pattern)):
        below = []
    elif isinstance(node, ast.Call):
        # `strict` of zip is there for those who change the program
        named = [k.value for k in node.keywords if k.arg != "strict"]
        below = [node.func, *node.args, *named]
        # a type is said there
        if isinstance(node.func, ast.Name) and node.func.id in ("cast", "TypeVar"):
            below = node.args[1:]
    else:
        below = ast.iter_child_nodes(node)
    if inside and isinstance(node, (ast.expr, ast.stmt)):
        yield function, node
    for child in below:
        yield from _reachable(child, function, inside=inside)


def _fault(node: ast.expr | ast.stmt) -> tuple[str, str, ast.expr] | None:
    """Return the kind of fault that a node can have, its text then, and what shows a visit."""
    found: tuple[str, str, ast.expr] | None = None
    match node:
        case ast.Compare(left, [op], right):
            other = ast.Compare(left, [FLIPPED[type(op)]()], right)
            found = "comparison", f"({ast.unparse(other)})", node
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            if not (_is_text(left) or _is_text(right)):
                found = "sign", f"({ast.unparse(ast.BinOp(left, _other(op), right))})", node
        case ast.UnaryOp(ast.USub(), operand):
            found = "sign", f"({ast.unparse(operand)})", node
        case ast.AugAssign(target, ast.Add() | ast.Sub() as op, value):
            found = "sign", ast.unparse(ast.AugAssign(target, _other(op), value)), value
        case ast.Constant(bool() as value):
            found = "constant", str(not value), node
        case ast.Constant(int() as value):
            found = "constant", f"({value + 1})", node
        case ast.Constant(float() as value):
            found = "constant", repr(2 * value or 1.0), node
        case ast.Expr((ast.Call() | ast.Await()) as call):
            found = "call", "None", call
    return found


def _other(sign: ast.operator) -> ast.operator:
    return ast.Sub() if isinstance(sign, ast.Add) else ast.Add()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def pure() -> list[str]:
    """Return the packages and modules that know no transport, as paths."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [names] = [
        contract["source_modules"]
        for contract in told["tool"]["importlinter"]["contracts"]
        if contract["name"] == "maths knows no transport"
    ]
    return [name.replace(".", "/") for name in names]


def files(roots: Iterable[str]) -> list[str]:
    """Return the modules of some packages, in order."""
    found = set[Path]()
    for root in roots:
        found |= {*(ROOT / root).rglob("*.py"), *ROOT.glob(f"{root}.py")}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def drawn(roots: Iterable[str], count: int, seed: int) -> list[Place]:
    """Return places in the order in which the seed draws them, none within another."""
    by_kind: dict[str, list[Place]] = {kind: [] for kind in KINDS}
    for file in files(roots):
        for place in places(file, (ROOT / file).read_bytes()):
            by_kind[place.kind].append(place)
    rng, chosen = random.Random(seed), list[Place]()
    while len(chosen) < count and any(by_kind.values()):
        kind = by_kind[rng.choice([kind for kind in KINDS if by_kind[kind]])]
        place = kind.pop(rng.randrange(len(kind)))
        if not any(_overlap(place, other) for other in chosen):
            chosen.append(place)
    return chosen


def _overlap(one: Place, other: Place) -> bool:
    return one.file == other.file and max(one.start, other.start) < min(one.end, other.end)


def probed(tree: Path, chosen: list[Place]) -> None:
    """Let each place of a copy of the program say by its number that it is passed."""
    # from the end of each file, so that what is before stays where it is
    for number, place in sorted(enumerate(chosen), key=lambda item: -item[1].start):
        path, (start, end) = tree / place.file, place.probe
        text = path.read_bytes()
        visit = f'(__import__("benchmarks.mutant_probe").mutant_probe.passed({number}) and ('
        inner = visit.encode() + text[start:end] + b"))"
        path.write_bytes(text[:start] + inner + text[end:])


def covered(
    tree: Path, chosen: list[Place], tests: list[str], jobs: int
) -> list[list[tuple[str, float]]]:
    """Return for each place the tests without servers that pass it and succeed, with seconds."""
    probed(tree, chosen)
    seen = tree / "seen"
    seen.mkdir()
    command = [*tests, "-p", "benchmarks.mutant_probe", *(["-n", str(jobs)] if jobs > 1 else [])]
    ran = run_tests(tree, command, MUTANTS_SEEN=str(seen))
    found: list[list[tuple[str, float]]] = [[] for _ in chosen]
    passed: dict[str, tuple[float, list[int]]] = {}
    for file in seen.glob("*.json"):
        passed |= json.loads(file.read_text(encoding="utf-8"))
    for test in sorted(passed):
        seconds, numbers = passed[test]
        for number in numbers:
            found[number].append((test, seconds))
    if not any(found):
        sys.exit(f"no test passes any place: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return found


def some_of(tests: list[tuple[str, float]], rng: random.Random) -> list[tuple[str, float]]:
    """Return the quickest tests and some at random, in the order of their seconds."""
    quickest = sorted(tests, key=itemgetter(1))
    first = _within_time(quickest)
    others = quickest[len(first) :]
    more = _within_time(rng.sample(others, len(others)))
    return sorted([*first, *more], key=itemgetter(1))


def _within_time(tests: list[tuple[str, float]]) -> list[tuple[str, float]]:
    ends = accumulate(seconds for _, seconds in tests)
    return tests[: max(LEAST_TESTS, sum(end <= SECONDS for end in ends))]


def caught(tree: Path, place: Place, tests: list[tuple[str, float]]) -> str:
    """Plant a fault, run the tests, and return the one that saw it, or nothing."""
    path = tree / place.file
    right = path.read_bytes()
    path.write_bytes(place.planted(right))
    try:
        patience = PATIENCE[0] + PATIENCE[1] * sum(seconds for _, seconds in tests)
        ran = run_tests(tree, ["-x", *(test for test, _ in tests)], timeout=patience)
    except subprocess.TimeoutExpired:
        return "no end"
    finally:
        path.write_bytes(right)
    if not ran.returncode:
        return ""
    if re.search(r"^ERROR: (not found|file or directory)", ran.stdout + ran.stderr, re.MULTILINE):
        sys.exit(f"the tests are not there: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ", ".join(FAILED.findall(ran.stdout)) or "nothing can be imported"


def run_tests(
    tree: Path, arguments: list[str], timeout: float | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run some tests in a copy of the program, slow ones left out."""
    # a file that changes twice within a second must not be read from its byte code
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors", *arguments]
    return subprocess.run(
        command, cwd=tree, capture_output=True, text=True, check=False, env=environment,
        timeout=timeout,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="in all shipped packages")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders or files of tests")
    options = parser.parse_args()
    drawing = drawn(PACKAGES if options.all else pure(), SPARE * options.faults, options.seed)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        *trees, first = [Path(folder) / f"tree{number}" for number in range(options.jobs + 1)]
        for tree in (*trees, first):
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT))
        texts = [f"--ignore={name}" for name in TEXTS]
        passing = covered(first, drawing, [*options.tests, *texts], options.jobs)
        chosen = [
            (place, some_of(tests, rng))
            for place, tests in zip(drawing, passing, strict=True)
            if tests
        ][: options.faults]
        free = SimpleQueue[Path]()
        for tree in trees:
            free.put(tree)
        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(partial(_report, free), *zip(*chosen, strict=True)))
    print(f"{sum(found)} of {len(found)} faults are caught (seed {options.seed})")
    if sum(found) < ENOUGH * len(found):
        sys.exit(1)


def _report(free: SimpleQueue[Path], place: Place, tests: list[tuple[str, float]]) -> bool:
    tree = free.get()
    try:
        found = caught(tree, place, tests)
    finally:
        free.put(tree)
    told = place.told((tree / place.file).read_bytes())
    print(f"{'caught' if found else 'PASSED'}  {told}\n        {found or f'{len(tests)} tests'}",
          flush=True)  # fmt: skip
    return bool(found)


if __name__ == "__main__":
    main()
