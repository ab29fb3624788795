"""What runs workers elsewhere: manifests for Kubernetes against its schemas, units for systemd."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest

from infra.deploy import manifests
from pipeline.cli.produce import produce
from pipeline.cli.watch import page
from pipeline.cli.worker import worker
from pipeline.errors import ConfigError
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from tests.stage import study_text
from tests.trusted import TRUST

VERSIONS = ("1.30.0", "1.37.0")
UNITS = sorted((Path(__file__).parents[2] / "infra" / "systemd").glob("*.service"))
PLAIN = Settings(kafka="kafka:9092")
SECURED = Settings(
    kafka="kafka:9093", kafka_security="SASL_SSL", kafka_username="u", kafka_password="pw-secret",  # noqa: S106
    kafka_ca="/x/ca.pem", redis_password="redis-secret",  # noqa: S106
)  # fmt: skip


def made(settings: Settings = PLAIN, *, trust: str = TRUST) -> dict[str, Any]:
    text = study_text("kept", partitions=3) + trust
    found = manifests(task_of(parse_study(text)), text, settings, image="veilstream:1", lag=500)
    return {f"{one['kind']}": one for one in found["items"]}


@pytest.mark.parametrize("settings", [PLAIN, SECURED])
def test_manifests_keep_the_schemas_of_kubernetes(settings: Settings) -> None:
    for kind, one in made(settings).items():
        for version in VERSIONS:
            if not one["apiVersion"].startswith("keda"):
                kubernetes_validate.validate(one, version, strict=True)
            if kind == "StatefulSet":
                broken = json.loads(json.dumps(one).replace("containerPort", "containersPort"))
                with pytest.raises(kubernetes_validate.ValidationError):
                    kubernetes_validate.validate(broken, version, strict=True)


def test_workers_are_known_by_their_pods_and_scaled_by_lag() -> None:
    found = made()
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    command = ["--log-format", "json", "worker", "/studies/study.toml"]
    assert container["args"][:4] == command
    options = {name for one in worker.params for name in one.opts}
    given = [word for word in container["args"][4:] if word.startswith("--")]
    assert set(given) <= options
    assert container["args"][container["args"].index("--instance") + 1] == "$(POD_NAME)"
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in (
        container["env"]
    )
    known = {f"VEILSTREAM_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert {one["name"] for one in container["env"]} - {"POD_NAME"} <= known
    assert container["securityContext"]["readOnlyRootFilesystem"]
    # a secret's file can be read by its group, and a key that others can read is refused
    assert pod["initContainers"][0]["command"][:3] == ["install", "-m", "600"]
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert "secret" not in mounted
    assert mounted < {one["name"] for one in pod["volumes"]}
    scaled, study = found["ScaledObject"]["spec"], parse_study(study_text("kept"))
    assert scaled["maxReplicaCount"] == 3
    assert scaled["scaleTargetRef"]["name"] == found["StatefulSet"]["metadata"]["name"]
    trigger = scaled["triggers"][0]["metadata"]
    assert trigger["topic"] == Topics.of(study).releases.name
    assert all(isinstance(value, str) for value in trigger.values())
    assert "replicas" not in found["StatefulSet"]["spec"]


def test_nothing_secret_is_in_them() -> None:
    assert "-secret" not in json.dumps(made(SECURED))
    proofs = made(SECURED)["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert [one["parameter"] for one in proofs] == ["ca", "username", "password"]
    metadata = made(SECURED)["ScaledObject"]["spec"]["triggers"][0]["metadata"]
    assert (metadata["sasl"], metadata["tls"]) == ("scram_sha512", "enable")
    assert "TriggerAuthentication" not in made()
    assert "initContainers" not in made(trust="")["StatefulSet"]["spec"]["template"]["spec"]


def test_values_stand_in_the_files_as_they_were_given() -> None:
    text = study_text("kept") + '# "quoted" \\ @{image} $1 \u00e9\n'
    settings = Settings(kafka='a:1,"b":2')
    made = manifests(task_of(parse_study(text)), text, settings, image="@{lag}", lag=7)
    assert made["items"][0]["data"]["study.toml"] == text
    [container] = made["items"][2]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "@{lag}"
    assert {"name": "VEILSTREAM_KAFKA", "value": settings.kafka} in container["env"]


def test_what_cannot_be_deployed_is_refused() -> None:
    task = task_of(parse_study(study_text("x" * 41)))
    with pytest.raises(ConfigError, match=r"study\.name: at most 40"):
        manifests(task, "", PLAIN, image="i", lag=1)
    with pytest.raises(ConfigError, match="VEILSTREAM_KAFKA"):
        made(Settings())


def words(unit: Path) -> list[str]:
    """Return the command of a unit, and check that it is one that this program knows."""
    config = configparser.ConfigParser(strict=False, interpolation=None)
    config.optionxform = str  # type: ignore[assignment,method-assign]
    config.read(unit)
    assert config["Service"]["Restart"] == "on-failure"
    assert config["Service"]["ProtectSystem"] == "strict"
    assert "10" in config["Service"]["RestartPreventExitStatus"].split()
    return config["Service"]["ExecStart"].split()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_sound(unit: Path, tmp_path: Path) -> None:
    program, *arguments = words(unit)
    assert program == "/opt/veilstream/bin/veilstream"
    commands: dict[str, click.Command] = {"worker": worker, "produce": produce, "page": page}
    command = commands[arguments[2]]
    options = {name for one in command.params for name in one.opts}
    assert {word for word in arguments[3:] if word.startswith("--")} <= options
    if shutil.which("systemd-analyze") is None:
        return
    # neither the program nor its user is on this machine
    text = re.sub(r"^User=.*\n", "", unit.read_text().replace(program, "/bin/true"), flags=re.M)
    copy = tmp_path / unit.name.replace("@", "@a")
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
