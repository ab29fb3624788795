"""Pages with cells as Jupyter notebooks, with what each cell printed when the site was built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from _site.cells import RUN, Ran

_CELL = re.compile(r"^```\{code-cell\} python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def write(app: Any, error: Exception | None) -> None:
    """Write a notebook beside each page whose cells were run."""
    if error is None and app.builder.format == "html":
        for page, cells in RUN.items():
            text = Path(app.env.doc2path(page)).read_text("utf-8")
            path = Path(app.outdir, page).with_suffix(".ipynb")
            path.write_text(json.dumps(notebook(text, cells), indent=1) + "\n", "utf-8")


def notebook(text: str, cells: list[Ran]) -> dict[str, Any]:
    """Return a page as a notebook of format 4.

    text: The page: a head between two lines of dashes, words, and cells.
    cells: What was run of it, in order.
    """
    rest, found = iter(cells), []
    for at, part in enumerate(_CELL.split(text.split("---\n", 2)[2])):
        if at % 2:
            found.append(_code(next(rest)))
        elif part.strip():
            found.append({"cell_type": "markdown", "metadata": {}, "source": part.strip()})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4,
    }  # fmt: skip


def _code(cell: Ran) -> dict[str, Any]:
    said = {"output_type": "stream", "name": "stdout", "text": cell.printed}
    drawn = [
        {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": svg.decode()}}
        for svg in cell.figures
    ]
    return {
        "cell_type": "code", "metadata": {}, "execution_count": None, "source": cell.code,
        "outputs": [*([said] if cell.printed else []), *drawn],
    }  # fmt: skip
