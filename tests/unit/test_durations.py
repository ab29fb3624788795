"""A test that waits for what never comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
import pytest
from tests import durations

durations.LONGEST = 0.5
sys.exit(pytest.main([sys.argv[1], "-q", "-c", "/dev/null", "--rootdir", sys.argv[2]], [durations]))
"""
WAITS = """
import threading

def test_waits():
    while True:
        try:
            threading.Event().wait(30)
        except Exception:
            pass

def test_is_next():
    pass
"""


@pytest.mark.slow
@pytest.mark.takes("a run of pytest of its own")
def test_it_fails_by_its_name_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "test_waiting.py"
    path.write_text(WAITS)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Failed: not done within 0.5 s: it waits for what does not come" in done.stdout
    assert "::test_waits" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
