"""Faults planted in the privacy core, one at a time, and the tests that see them.

`python -m benchmarks.planted [NAME ...]` copies the program to a temporary folder, changes one
place of it, runs the tests that ought to fail, and says which did. First they run without any
fault. Ends with 1 if one passes. `--markdown` prints the table of docs/privacy/attacks.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.mutants import FAILED, LEFT, ROOT, run_tests
from benchmarks.planted_faults import FAULTS, Fault

RESULTS = Path(__file__).parent / "results" / "planted.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults; default: all")
    parser.add_argument("--markdown", action="store_true", help="print the results file and end")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(RESULTS.read_text())), end="")
        return
    chosen = [fault for fault in FAULTS if not options.names or fault.name in options.names]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT))
        if failed := caught_by(tree, sorted({test for fault in chosen for test in fault.tests})):
            sys.exit(f"without any fault these tests fail already: {', '.join(failed)}")
        rows = [_row(tree, fault) for fault in chosen]
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known = {row["fault"]: row for row in [*held, *rows]}
    kept = [known[fault.name] for fault in FAULTS if fault.name in known]
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    if passed := [row["fault"] for row in rows if not row["caught"]]:
        sys.exit(f"no test sees: {', '.join(map(str, passed))}")


def planted(fault: Fault, text: str) -> str:
    """Return the text of the fault's file with the fault.

    ValueError if what it changes is not there exactly once: the list must follow the program.
    """
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.file}: {fault.name}: the text to change must be there once")
    return text.replace(fault.old, fault.new)


def caught_by(tree: Path, tests: list[str]) -> list[str]:
    """Run some tests in a copy of the program, and return those that fail, without parameters."""
    ran = run_tests(tree, tests)
    if ran.returncode not in (0, 1):
        sys.exit(f"the tests did not run: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return sorted(set(FAILED.findall(ran.stdout)))


def _row(tree: Path, fault: Fault) -> dict[str, object]:
    path = tree / fault.file
    right = path.read_text(encoding="utf-8")
    path.write_text(planted(fault, right), encoding="utf-8")
    found = caught_by(tree, list(fault.tests))
    path.write_text(right, encoding="utf-8")
    print(f"{fault.name}: {', '.join(found) or 'PASSED'}", flush=True)
    return {"fault": fault.name, "file": fault.file, "new": fault.test_is_new, "caught": found}


def markdown(rows: list[dict[str, object]]) -> str:
    """Return the results as the table of the document."""
    lines = ["| fault | where | seen by | |", "|---|---|---|---|"]
    for row in rows:
        tests = [str(test).rpartition("::")[2] for test in list(row["caught"])]  # type: ignore[call-overload]
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        file = str(row["file"])
        test = f"`{tests[0]}`{more}" if tests else "**nothing**"
        lines.append(f"| {row['fault']} | `{file}` | {test} | {'new' if row['new'] else ''} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
