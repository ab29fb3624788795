"""What the documentation site adds to Sphinx: parts made from code, and cells that run."""

from __future__ import annotations

from typing import Any

from _site.cells import CodeCell
from _site.generated import Generated


def setup(app: Any) -> dict[str, bool]:
    """Register both directives with Sphinx."""
    app.add_directive("generated", Generated)
    app.add_directive("code-cell", CodeCell)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
