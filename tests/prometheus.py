"""A real Prometheus: the machine's own, or the one of Debian's package, unpacked without rights.

Where neither is to be had, tests fail and say what to install.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.local import program_paths
from infra.local.processes import free_port
from pipeline.settings import Settings
from tests.stage import PATIENCE, until_it_answers

PACKAGE = "prometheus"


def find() -> Path:
    """Return the program; the test fails if there is none."""
    if found := shutil.which(PACKAGE):
        return Path(found)
    kept = program_paths(Settings.read()).cache / "veilstream" / "prometheus"
    if not kept.exists():
        _fetch(kept)
    return kept / "usr" / "bin" / PACKAGE


def _fetch(kept: Path) -> None:
    """Fetch the package, whose signature apt checks."""
    folder = kept.with_name(f"{kept.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        words = ["apt-get", "download", "--quiet", PACKAGE]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
        [archive] = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True, capture_output=True)
        archive.unlink()
        # whole or not there
        if not kept.exists():
            folder.rename(kept)
    except (OSError, subprocess.CalledProcessError):
        pytest.fail(
            "no Prometheus here, and apt-get gives none: install Debian's package `prometheus` (or "
            "put the program on the path): the queries of dashboard and alerts are not tried"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Prometheus:
    """One that runs.

    url: Where it answers.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **asked: str) -> Any:
        """Return what its API answers; the test fails if that is an error."""
        where = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(where, timeout=PATIENCE) as answer:  # noqa: S310  on loopback
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the series that a query gives now."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found


@contextmanager
def scraping(folder: Path, rules: dict[str, Any], jobs: dict[str, int]) -> Iterator[Prometheus]:
    """Yield a Prometheus that asks pages on loopback every second, and looks at rules as often.

    jobs: The port of each job's page.
    """
    (folder / "rules.yml").write_text(json.dumps(rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for name, port in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                find(), f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            made = Prometheus(f"http://127.0.0.1:{port}")
            until_it_answers(process, lambda: _answers(made), folder / "prometheus.log")
            yield made
        finally:
            process.kill()
            process.wait()


def _answers(prometheus: Prometheus) -> bool:
    try:
        return bool(prometheus.get("status/runtimeinfo"))
    except OSError:
        return False
