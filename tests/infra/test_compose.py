"""The containers are well described, and run Kafka and Redis as the local runtime does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from infra.local.services import HERE, REDIS_SETTINGS
from tests.forks import FORKS
from tests.stage import Stage, study_text, write_csv

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Return the services that docker-compose.yml describes."""
    described = YAML(typ="safe").load(COMPOSE)
    return dict(described["services"])


def test_compose_file_follows_the_compose_schema() -> None:
    # The schema that check-jsonschema brings, without its command line: release 0.38 needs
    # click 8.4, and Faust needs an older one.
    package = importlib.util.find_spec("check_jsonschema")
    assert package is not None
    assert package.origin is not None
    vendored = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text(encoding="utf-8"))
    described = YAML(typ="safe").load(COMPOSE)
    assert [str(error) for error in Draft202012Validator(schema).iter_errors(described)] == []


def test_kafka_has_the_settings_of_the_local_runtime(services: dict[str, Any]) -> None:
    given = services["kafka"]["environment"]
    _, settings = (HERE / "server.properties").read_text().split("\n\n")
    lines = [line.partition("=") for line in settings.splitlines() if not line.startswith("#")]
    wanted = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, _, value in lines}
    assert len(wanted) > 10
    assert {name: given.get(name) for name in wanted} == wanted


def test_redis_has_the_settings_of_the_local_runtime(services: dict[str, Any]) -> None:
    words = services["redis"]["command"]
    given = {name[2:]: value for name, value in pairwise(words) if name.startswith("--")}
    assert given == REDIS_SETTINGS


@pytest.mark.parametrize("name", ["worker", "producer"])
def test_programs_wait_for_servers_that_answer(services: dict[str, Any], name: str) -> None:
    needs = services[name]["depends_on"]
    for server in ("kafka", "redis"):
        assert needs[server]["condition"] == "service_healthy"
        assert "healthcheck" in services[server]


@pytest.mark.slow
def test_what_compose_runs_first_admits_the_client(
    services: dict[str, Any], tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """Worker and client ended with 10, again and again: nobody had made a key."""
    text = study_text() + '\n[trust]\nreleases = "authenticated"\n'
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        source = str(write_csv(tmp_path / "a.csv", 200))
        [line] = services["admission"]["command"]
        line = line.replace("/studies/shuttle.toml", str(stage.study))
        paths = f"{FORKS.commands(tmp_path / 'bin')}:{os.environ['PATH']}"
        for _ in range(2):
            done = subprocess.run(
                ["sh", "-c", line], env=stage.environment | {"PATH": paths}, check=False,
                capture_output=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        [_, _, *others] = services["producer"]["command"]
        sent = [source if word.startswith("shuttle") else word for word in others]
        # it waits for a worker's model, and is not refused
        done = stage.run("produce", stage.study, *sent, "--timeout", "1")
        assert done.returncode == 26, done.stderr
        needed = services["worker"]["depends_on"]["admission"]["condition"]
        assert needed == "service_completed_successfully"
        stage.remove()


def test_what_builds_and_installs_is_checked_by_its_hash() -> None:
    """pip takes what builds a package from wherever it likes where it is isolated."""
    for file in ("Makefile", "infra/Dockerfile"):
        for line in (ROOT / file).read_text().replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                if "pip install" in command:
                    own = "--no-deps" in command and "--no-build-isolation" in command
                    assert own or "--require-hashes" in command, (file, command)
    for file in ("requirements.lock", "requirements-uv.lock"):
        blocks = re.split(r"\n(?=[a-z])", (ROOT / file).read_text().strip())
        assert all("--hash=sha256:" in block for block in blocks if "==" in block), file
    assert "\nsetuptools==" in (ROOT / "requirements.lock").read_text()


def test_images_are_pinned(services: dict[str, Any]) -> None:
    images = [service["image"] for service in services.values()]
    for line in (ROOT / "infra" / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM "):
            images.append(line.split()[1])
    for image in images:
        tag = image.partition(":")[2]
        assert tag.count(".") >= 2, f"{image} can change under its tag"
