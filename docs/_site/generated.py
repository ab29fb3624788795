"""The directive `{generated} PART`: a part of the reference, made from code by each build."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import veilstream
from _site import commands, numbers, schemas

#: Ancestors whose members scikit-learn describes, and members that it adds to every class.
FOREIGN = "BaseEstimator, ClassifierMixin, RegressorMixin"
ADDED = ", ".join(
    [
        "get_metadata_routing",
        *(
            f"set_{name}_request"
            for name in ("fit", "partial_fit", "predict", "score", "learn_one")
        ),
    ]
)
#: Parts, with what writes each in Markdown.
PARTS: dict[str, Callable[[], str]] = {
    "commands": commands.text,
    "study": schemas.study,
    "methods": schemas.methods,
    "messages": schemas.messages,
    "metrics": numbers.metrics,
    "alerts": numbers.alerts,
    "errors": numbers.errors,
}


class Generated(SphinxDirective):
    """Writes one of `PARTS` in its place, with headings below that of the page."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the part."""
        part = self.arguments[0]
        written = python() if part == "python" else PARTS[part]()
        lines = StringList(written.splitlines(), source=f"generated {part}")
        holder = nodes.section()
        holder.document = self.state.document
        self.state.nested_parse(lines, 0, holder, match_titles=True)
        return holder.children


def python() -> str:
    """Return directives for every name of `veilstream`, functions first."""
    found: dict[str, list[str]] = {"function": [], "class": [], "exception": []}
    for name in veilstream.__all__:
        thing = getattr(veilstream, name)
        if not isinstance(thing, type):
            kind = "function"
        else:
            kind = "exception" if issubclass(thing, BaseException) else "class"
        found[kind].append(name)
    parts = []
    for kind, title in (("function", "Functions"), ("class", "Classes"), ("exception", "Errors")):
        parts += [f"## {title}", "", "```{eval-rst}"]
        for name in found[kind]:
            parts.append(f".. auto{kind}:: veilstream.{name}")
            if kind == "class":
                parts += [
                    "   :members:",
                    f"   :inherited-members: {FOREIGN}",
                    f"   :exclude-members: {ADDED}",
                ]
            parts.append("")
        parts += ["```", ""]
    return "\n".join(parts)
