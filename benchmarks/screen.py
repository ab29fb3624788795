"""The last screen of a demonstration as a picture.

`COLUMNS=100 make demo 2>&1 | python -m benchmarks.screen docs/demo.svg` draws the comparison that
it has printed, and what follows.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

WIDTH = 88


def drawn(printed: str) -> str:
    """Return a picture of the last table of a demonstration and of the words below it."""
    lines = printed.splitlines()
    first = max(i for i, line in enumerate(lines) if "what privacy costs" in line)
    shown = [line for line in lines[first:] if line and not line.startswith("{")]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print("$ make demo", style="bold")
    for line in shown:
        console.print(line, markup=False, highlight=line[0] in "│┃")
    # a reader's own font: nothing is fetched from elsewhere
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code", "monospace")
    return console.export_svg(title="veilstream", theme=MONOKAI, code_format=form, unique_id="demo")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(sys.stdin.read()), encoding="utf-8")
