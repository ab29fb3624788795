"""`make dist`: archives with all that is needed, and a wheel that works where nothing else is."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from infra.local import LocalRuntime
from tests.docs.test_snippets import play

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HERE = Path(sys.executable).parent
#: Of a clone alone.
APART = {".ci/run", ".dockerignore", ".gitignore"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        ["make", "dist", "-o", ".venv/ready", f"DIST={folder}", f"BIN={HERE}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {name for name in listed.stdout.split() if (ROOT / name).exists()}


def test_the_source_archive_holds_what_a_clone_does(dist: Path) -> None:
    (archive,) = dist.glob("veilstream-*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert tracked() - APART <= names


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(dist: Path) -> None:
    (wheel,) = dist.glob("veilstream-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = tracked("veilstream.py", "pipeline", "producers", "agents", "state", "infra")
    assert needed <= names
    assert all(".dist-info/" in name for name in names - needed)


@pytest.mark.kafka
@pytest.mark.redis
def test_the_wheel_works_in_an_empty_environment(
    dist: Path, tmp_path: Path, local_runtime: LocalRuntime
) -> None:
    (wheel,) = dist.glob("veilstream-*.whl")
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    subprocess.run(
        [HERE / "uv", "pip", "install", "--quiet", "--python", bare / "bin" / "python",
         "-c", ROOT / "requirements.lock", f"veilstream[local,demo] @ {wheel.as_uri()}"],
        check=True,
    )  # fmt: skip
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        n: v for n, v in os.environ.items() if not n.startswith(("VEILSTREAM", "PYTHON"))
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [bare / "bin" / "veilstream", *words], cwd=home, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run("--version").split()[-1] == version("veilstream")
    run("study", "init", "study.toml")
    run("study", "check", "study.toml")
    assert json.loads(run("demo").splitlines()[-1])["state_verified"]
    page = tmp_path / "page"
    page.mkdir()
    play(ROOT / "README.md", page, local_runtime, program=str(bare / "bin"))
