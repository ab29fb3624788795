"""The directive `{code-cell}`: Python that runs when the site is built, with what it prints below.

All cells of a page share their names; an error in one ends the build. A page with cells is offered
as a Jupyter notebook, too, see `_site.notebooks`.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import sys
import traceback
from pathlib import PurePosixPath
from typing import Any, ClassVar, NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

Names = dict[str, Any]


class Ran(NamedTuple):
    """A cell that was run: what it printed, and its figures as SVG."""

    code: str
    printed: str
    figures: list[bytes]


#: Of each page.
_NAMES: dict[str, Names] = {}
#: The cells of each page, in order.
RUN: dict[str, list[Ran]] = {}


class CodeCell(SphinxDirective):
    """A cell: its code, then what it printed, its last value and its figures."""

    has_content = True
    optional_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Run the cell and return its nodes."""
        code = "\n".join(self.content)
        names = _NAMES.setdefault(self.env.docname, {"__name__": "__main__"})
        try:
            printed, figures = run(code, names)
        except Exception as error:
            raise self.error(f"a cell failed:\n{traceback.format_exc()}") from error
        shown: list[nodes.Node] = [nodes.literal_block(code, code, language="python")]
        before = RUN.setdefault(self.env.docname, [])
        if not before:
            name = PurePosixPath(self.env.docname).name
            link = f'<p><a href="{name}.ipynb" download>This page as a Jupyter notebook</a></p>'
            shown.insert(0, nodes.raw("", link, format="html"))
        before.append(Ran(code, printed, figures))
        output = nodes.container(classes=["cell-output"])
        if printed:
            output += nodes.literal_block(printed, printed, language="text")
        for picture in figures:
            address = "data:image/svg+xml;base64," + base64.b64encode(picture).decode()
            output += nodes.raw("", f'<img alt="figure" src="{address}">', format="html")
        return [*shown, output] if output.children else shown


def run(code: str, names: Names) -> tuple[str, list[bytes]]:
    """Run code as a notebook does: the value of a last expression is printed.

    Returns what was printed, warnings too, and figures as SVG.
    """
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102  pages of this project
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
            figure = type(value).__module__.partition(".")[0] == "matplotlib"
            if value is not None and not figure:
                print(value)
    return said.getvalue().rstrip("\n"), _figures()


def _figures() -> list[bytes]:
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot as plt  # noqa: PLC0415  only where a cell has drawn

    drawn = []
    for number in plt.get_fignums():
        held = io.BytesIO()
        plt.figure(number).savefig(held, format="svg", bbox_inches="tight")
        drawn.append(held.getvalue())
    plt.close("all")
    return drawn
