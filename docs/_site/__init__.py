"""What the documentation site adds to Sphinx: parts made from code, and cells that run."""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from _site.cells import CodeCell
from _site.generated import Generated
from _site.notebooks import write

#: Cells of so many characters are sentences: on a narrow screen a table scrolls before these are
#: squeezed into a column of single words.
SENTENCE = 36


class Sentences(SphinxPostTransform):
    """Marks cells of tables that hold sentences."""

    default_priority: ClassVar[int] = 900

    def run(self, **_: Any) -> None:
        """Give each of them the class `sentence`."""
        for entry in self.document.findall(nodes.entry):
            if len(entry.astext()) > SENTENCE:
                entry["classes"].append("sentence")


def setup(app: Any) -> dict[str, bool]:
    """Register both directives and the marks with Sphinx."""
    app.add_post_transform(Sentences)
    app.add_directive("generated", Generated)
    app.add_directive("code-cell", CodeCell)
    app.connect("build-finished", write)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
