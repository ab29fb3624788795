"""The fenced blocks of the documents: what each is, and whether a test runs it.

A block in `bash` or `python` is run, one in `toml` is checked as a study file. A comment just
before a block says otherwise: `<!-- not run: REASON -->`, or `<!-- file: NAME -->` for one that the
reader saves under a name. A comment of a page, `<!-- given: NAME ... -->`, names what its blocks
find in their folder (`given.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
#: Blocks that are run or checked; `{code-cell}` runs when the site is built.
RUN = ("bash", "python", "toml")
BUILT = "{code-cell}"
#: Blocks alone: what is within a line, which takes most of the time, has none.
_MARKDOWN = MarkdownIt().disable("inline")
#: Blocks that only show something, and parts of pages.
SHOWN = ("text", "json", "yaml", "ini", "{toctree}", "{generated}", "{eval-rst}")
#: Lines that are commands.
COMMAND = re.compile(r"^(\$ )?(veilstream|make|pip|python3?) [a-z-]", re.MULTILINE)
_COMMENT = re.compile(r"^<!-- (not run|file): (.+?) -->$", re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One block.

    file: The name under which the reader saves it.
    reason: Why it is not run, if it is not.
    """

    page: Path
    line: int
    language: str
    text: str
    file: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        """Where it begins."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether a test runs or checks it."""
        return self.language in RUN and not self.reason


def snippets_of(page: Path) -> list[Snippet]:
    """Return all blocks of a page in their order, those that are only indented too."""
    found: list[Snippet] = []
    said: dict[str, str] = {}
    for token in _MARKDOWN.parse(page.read_text("utf-8")):
        if token.type == "html_block":
            comment = _COMMENT.match(token.content.strip())
            said = {comment[1]: " ".join(comment[2].split())} if comment else {}
        elif token.type in ("fence", "code_block"):
            language = token.info.split(" ")[0] if token.type == "fence" else "indented"
            line = (token.map or [0])[0] + 1
            file, reason = said.get("file", ""), said.get("not run", "")
            found.append(Snippet(page, line, language, token.content, file, reason))
            said = {}
        elif token.type == "inline":
            said = {}
    return found


def given_of(page: Path) -> list[str]:
    """Return the names of what a page's blocks find in their folder."""
    said = re.search(r"^<!-- given: (.+?) -->$", page.read_text("utf-8"), re.MULTILINE)
    return said[1].split() if said else []


ALL = {page: snippets_of(page) for page in PAGES}
