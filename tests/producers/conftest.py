"""Where a client's database is, in tests of one."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the database of client "site", which is not there yet."""
    return tmp_path / "clients" / "site.db"
