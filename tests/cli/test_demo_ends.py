"""Ctrl-C on the demonstration leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.stage import PATIENCE, until_it_answers


def test_ctrl_c_on_the_demo_ends_every_process_and_removes_the_folder(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VEILSTREAM_")}
    environment["TMPDIR"] = str(tmp_path)
    with (tmp_path / "said").open("wb") as said:
        demo = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli.main", "demo"],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        # Kafka, Redis, a worker, a page, 8 clients
        until_it_answers(demo, lambda: len(_of(tmp_path, demo.pid)) >= 12, tmp_path / "said")
        time.sleep(1.0)
        first = (tmp_path / "said").read_text().splitlines()
        assert "whether anomaly is '1', from sensor_1, sensor_2" in first[1]
        assert first[2].startswith("a coefficient: what half of a feature's public range adds")
        # of keys and trust only an operator needs to know
        assert not [line for line in first if "key" in line or "trust" in line or "admit" in line]
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE) == 130, (tmp_path / "said").read_text()
        assert _of(tmp_path, demo.pid) == []
        assert list(tmp_path.glob("veilstream-demo-*")) == []
        assert "Traceback" not in (tmp_path / "said").read_text()
    finally:
        demo.kill()
        demo.wait()
        for pid in _of(tmp_path, demo.pid):
            os.kill(pid, signal.SIGKILL)


def _of(folder: Path, parent: int) -> list[int]:
    """Return the processes, but the demonstration itself, that name its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), parent):
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            # Redis writes its title over both, but it works in its folder
            words += os.fsencode((entry / "cwd").readlink())
        except OSError:
            continue
        if os.fsencode(folder) in words:
            found.append(int(entry.name))
    return found
