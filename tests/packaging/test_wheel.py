"""The built wheel holds all that the installed program reads."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_data_file(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        cwd=tmp_path,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("veilstream-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "veilstream.py", "pipeline", "producers", "agents", "state", "infra"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    needed = {name for name in tracked if not name.endswith("Dockerfile")}
    assert needed <= names
