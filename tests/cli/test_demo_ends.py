"""Ctrl-C on the demonstration leaves nothing behind, and each comes to its own end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

from pipeline.cli.demo import DEMONSTRATIONS
from pipeline.methods import task_of
from pipeline.study_file.load import load_study
from producers.source_check import Held, refusal
from producers.sources import open_source
from tests.stage import PATIENCE, until_it_answers

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = Path(str(files("pipeline.study") / "examples"))


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


@pytest.mark.takes("the first records of each client of each demonstration")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("airlines", "flights")))
        for name in DEMONSTRATIONS
    ],
)
def test_no_client_of_a_demonstration_is_refused_at_its_start(name: str, tmp_path: Path) -> None:
    task = task_of(load_study(EXAMPLES / f"{name}.toml"))
    for site in DEMONSTRATIONS[name](task, tmp_path).sites:
        source = open_source(site.source, None, folder=tmp_path)
        refused, _ = refusal(task, source, Held())
        source.close()
        assert site.accept or not refused, site.name


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


@pytest.mark.slow
@pytest.mark.parametrize("study", DEMONSTRATIONS)
def test_each_demonstration_comes_to_its_end_and_verifies_its_state(
    tmp_path: Path, study: str
) -> None:
    """Those that README names."""
    assert study == "shuttle" or f"make demo STUDY={study}" in README.read_text()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VEILSTREAM_")}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main", "demo", "--study", study], cwd=tmp_path,
        env=environment, capture_output=True, text=True, timeout=4 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["state_verified"]
    assert result["recovery_seconds"] > 0
    assert result["releases"] > 0
