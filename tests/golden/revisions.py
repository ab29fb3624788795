"""Texts of studies with the revisions that they have: releases that are out there carry them.

`python -m tests.golden.revisions FILE ...` adds the studies of documents, of examples and of FILEs,
each a JSON list of texts; all are recorded with the revision that they have now, those that are
refused go, and what changed is printed.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

from pipeline.errors import VeilstreamError
from pipeline.methods import revision_of
from pipeline.study_file.load import parse_study
from tests.docs.snippets import PAGES, snippets_of
from tests.golden.cases import CASES

FILE = Path(__file__).with_name("revisions.json.xz")
EXAMPLES = Path(__file__).parents[2] / "pipeline" / "study" / "examples"


def load() -> dict[str, str]:
    """Return the recorded revisions by the text of their study."""
    found: dict[str, str] = json.loads(lzma.decompress(FILE.read_bytes()))
    return found


def current(text: str) -> str:
    """Return the revision that a study has now; a study that cannot be has none, but its error."""
    try:
        return revision_of(parse_study(text))
    except VeilstreamError as error:
        return type(error).__name__


def main() -> None:
    """Record all of them."""
    before = load() if FILE.exists() else {}
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))]
    texts += [one.text for page in PAGES for one in snippets_of(page) if one.language == "toml"]
    texts += [case.study for case in CASES.values()]
    for name in sys.argv[1:]:
        texts += json.loads(Path(name).read_text())
    after = {}
    for text in dict.fromkeys([*before, *texts]):
        found = current(text)
        if found != before.get(text, found):
            print(f"{before[text]} is now {found}:\n{text}")
        if not found.endswith("Error"):
            after[text] = found
    FILE.write_bytes(lzma.compress(json.dumps(after).encode()))
    print(f"{len(after)} studies, {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
