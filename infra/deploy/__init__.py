"""What runs and watches workers elsewhere: manifests, a dashboard, alert rules, and least rights.

Each of the first is a file beside this one, in which values have the place of `@{name}`. All are
JSON, which kubectl and Prometheus read as the YAML that it is. Nothing secret is in them: addresses
with passwords and the study's key come from secrets that the operator makes.

The rights of each role in Kafka and Redis are one file, too: documents, `veilstream study acls` and
a test on a real broker read it. Read and Write bring Describe with them. Kafka cannot bind a client
to its own key: whose release it is, its MAC says.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from importlib.resources import files
from string import Template
from typing import Any, Literal, NamedTuple

from pipeline.errors import ConfigError
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study.model import Study

Json = dict[str, Any]
#: Kubernetes adds a hash to the name of a stateful set, in a label of 63 characters.
LONGEST_NAME = 40
#: Settings that name a PEM file: its key in the secret of these, and KEDA's word for it.
FILES = {
    "kafka_ca": ("ca.crt", "ca"),
    "kafka_certificate": ("tls.crt", "cert"),
    "kafka_key": ("tls.key", "key"),
}
#: KEDA's words for SASL.
SASL = {
    "PLAIN": "plaintext",
    "SCRAM-SHA-256": "scram_sha256",
    "SCRAM-SHA-512": "scram_sha512",
}


class _At(Template):
    """Grafana's own variables begin with a dollar sign."""

    delimiter = "@"


def _filled(file: str, /, **values: object) -> Json:
    """Return one of the files with its values; texts stand inside quotes there."""
    written = {key: json.dumps(str(value))[1:-1] for key, value in values.items()}
    found: Json = json.loads(_At((files(__name__) / file).read_text("utf-8")).substitute(written))
    return found


def dashboard(study: str = "") -> Json:
    """Return the dashboard, as Grafana imports it: of one study, or of all jobs.

    Metrics name no study: whoever scrapes them gives the job its name.
    """
    # Grafana takes 40 characters at most, and dashboards of two studies must not be one
    own = f"-{hashlib.sha256(study.encode()).hexdigest()[:16]}" if study else ""
    return _filled(
        "dashboard.json",
        title=f"veilstream: {study}" if study else "veilstream",
        uid=f"veilstream{own}",
        text=study or "All",
        value=study or "$__all",
    )


def alerts(study: str = "") -> Json:
    """Return the rules, as a file of `rule_files`: of one study, or of all jobs."""
    job = f'job="{study}"' if study else ""
    return _filled(
        "alerts.json",
        name=f"veilstream-{study}" if study else "veilstream",
        job=job and f"{{{job}}}",
        also=job and f"{job},",
    )


def manifests(task: Task, text: str, settings: Settings, *, image: str, lag: int) -> Json:
    """Return all objects of a study's workers as one list; KEDA scales them by Kafka's lag.

    text: The study file.
    settings: Where Kafka is, and how one enters.
    image: The image of `infra/Dockerfile`, with its tag.
    lag: Records of the log that one worker may leave waiting before another one starts.

    Raises ConfigError if the study's name is too long, or nothing says where Kafka is.
    """
    study = task.study.name
    if len(study) > LONGEST_NAME:
        raise ConfigError(
            f"study.name: at most {LONGEST_NAME} characters in Kubernetes, and it has {len(study)}"
        )
    if not settings.kafka:
        raise ConfigError("VEILSTREAM_KAFKA: set it to the servers that pods and KEDA reach")
    name = f"veil-{study}-worker"
    made = _filled(
        "workers.json",
        name=name,
        study=study,
        text=text,
        image=image,
        kafka=settings.kafka,
        security=settings.kafka_security,
        sasl=settings.kafka_sasl,
        topic=Topics.of(task.study).releases.name,
        partitions=task.study.stream.partitions,
        lag=lag,
    )
    items = {one["kind"]: one for one in made["items"]}
    pod = items["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = {key: file for key, (file, _) in FILES.items() if getattr(settings, key)}
    container["env"] += [
        {"name": f"VEILSTREAM_{key.upper()}", "value": f"/tls/{file}"}
        for key, file in given.items()
    ]
    if task.study.authenticated:
        key = _filled("study_key.json", name=name, image=image)
        container["env"].append(key["env"])
        container["volumeMounts"].append(key["mount"])
        pod["volumes"] += key["volumes"]
        pod["initContainers"] = key["init"]
    [trigger] = items["ScaledObject"]["spec"]["triggers"]
    if settings.kafka_security.endswith("SSL"):
        trigger["metadata"]["tls"] = "enable"
    if settings.kafka_security.startswith("SASL"):
        trigger["metadata"]["sasl"] = SASL[settings.kafka_sasl]
    if proofs := _proofs(name, settings):
        trigger["authenticationRef"] = {"name": name}
        made["items"].append(
            {
                "apiVersion": "keda.sh/v1alpha1",
                "kind": "TriggerAuthentication",
                "metadata": items["ScaledObject"]["metadata"],
                "spec": {"secretTargetRef": proofs},
            }
        )
    return made


def _proofs(name: str, settings: Settings) -> list[Json]:
    """Return where KEDA finds what Kafka asks for."""
    found = [
        (word, f"{name}-tls", file) for key, (file, word) in FILES.items() if getattr(settings, key)
    ]
    if settings.kafka_security.startswith("SASL"):
        found += [
            (word, f"{name}-env", f"VEILSTREAM_KAFKA_{word.upper()}")
            for word in ("username", "password")
        ]
    return [{"parameter": word, "name": secret, "key": key} for word, secret, key in found]


Role = Literal["client", "worker", "reader", "operator"]
#: Of each role: who it is; commands of Redis, beside the keys of the study; operations on the
#: topics of a study where the operator has made them; more of those where it is authenticated.
_RIGHTS = json.loads((files(__name__) / "rights.json").read_text("utf-8"))
#: Who each role is.
ROLES: dict[Role, str] = {role: told["who"] for role, told in _RIGHTS.items()}


class Right(NamedTuple):
    """What may be done with one topic or group."""

    kind: Literal["topic", "group"]
    name: str
    operations: tuple[str, ...]


def kafka_rights(study: Study, role: Role, settings: Settings) -> list[Right]:
    """Return the rights of a role where the operator has made the topics."""
    topics, told = Topics.of(study), _RIGHTS[role]
    keys = told["keys"] if study.authenticated else {}
    found = []
    for name in {**told["topics"], **keys}:
        topic = settings.ledger_topic if name == "ledger" else getattr(topics, name).name
        operations = (*told["topics"].get(name, ()), *keys.get(name, ()))
        found.append(Right("topic", topic, operations))
    if role == "worker":
        found.append(Right("group", f"veilstream-{study.name}", ("Read",)))
    return found


def kafka_commands(study: Study, role: Role, user: str, settings: Settings) -> list[str]:
    """Return the commands of Kafka's own tool that give a user the rights of a role."""
    servers = settings.kafka or "HOST:PORT"
    return [
        shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", servers, "--add"),
                *("--allow-principal", f"User:{user}"),
                *(word for operation in right.operations for word in ("--operation", operation)),
                *(f"--{right.kind}", right.name),
            ]
        )
        for right in kafka_rights(study, role, settings)
    ]


def redis_command(study: Study, role: Role, user: str) -> str:
    """Return the command of Redis that makes a user of a role; empty if it needs none."""
    if not _RIGHTS[role]["redis"]:
        return ""
    allowed = " ".join(f"+{command}" for command in _RIGHTS[role]["redis"])
    keys = f"~veil:{{{study.name}}}:*"
    return f"ACL SETUSER {user} reset on >PASSWORD {keys} -@all {allowed}"
