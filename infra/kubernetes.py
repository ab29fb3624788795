"""Manifests for workers of a study in Kubernetes: a stateful set that KEDA scales by Kafka's lag.

JSON, which kubectl reads as the YAML that it is. Nothing secret is in it: addresses with passwords
and the study's key come from secrets that the operator makes.
"""

from __future__ import annotations

from typing import Any

from pipeline.errors import ConfigError
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings

Json = dict[str, Any]
PORT = 9464
#: The user of `infra/Dockerfile`.
USER = 10001
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


def manifests(task: Task, text: str, settings: Settings, *, image: str, lag: int) -> Json:
    """Return all objects of a study's workers as one list.

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
    items = [
        _object("v1", "ConfigMap", name, data={"study.toml": text}),
        _service(name),
        _workers(task, name, image, settings),
        _object(
            "policy/v1", "PodDisruptionBudget", name,
            spec={"maxUnavailable": 1, "selector": {"matchLabels": _labels(name)}},
        ),
        _scaling(task, name, settings, lag),
    ]  # fmt: skip
    if proofs := _proofs(name, settings):
        spec = {"secretTargetRef": proofs}
        items.append(_object("keda.sh/v1alpha1", "TriggerAuthentication", name, spec=spec))
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _labels(name: str) -> Json:
    return {"app.kubernetes.io/name": "veilstream", "app.kubernetes.io/instance": name}


def _object(version: str, kind: str, name: str, **parts: Json) -> Json:
    metadata = {"name": name, "labels": _labels(name)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _service(name: str) -> Json:
    """Give pods names of their own, and Prometheus their metrics."""
    ports = [{"name": "metrics", "port": PORT, "targetPort": "metrics"}]
    return _object(
        "v1", "Service", name,
        spec={
            "clusterIP": "None", "publishNotReadyAddresses": True,
            "selector": _labels(name), "ports": ports,
        },
    )  # fmt: skip


def _workers(task: Task, name: str, image: str, settings: Settings) -> Json:
    trusted = task.study.authenticated
    confined = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    variables: list[Json] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "VEILSTREAM_FOLDER", "value": "/work"},
        {"name": "VEILSTREAM_KAFKA", "value": settings.kafka},
        {"name": "VEILSTREAM_KAFKA_SECURITY", "value": settings.kafka_security},
        {"name": "VEILSTREAM_KAFKA_SASL", "value": settings.kafka_sasl},
    ]
    given = {key: name for key, (name, _) in FILES.items() if getattr(settings, key)}
    variables += [
        {"name": f"VEILSTREAM_{key.upper()}", "value": f"/tls/{file}"}
        for key, file in given.items()
    ]
    mounts = [
        {"name": "study", "mountPath": "/studies", "readOnly": True},
        {"name": "tls", "mountPath": "/tls", "readOnly": True},
        {"name": "work", "mountPath": "/work"},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  of the pod alone
    ]
    volumes: list[Json] = [
        {"name": "study", "configMap": {"name": name}},
        {"name": "tls", "secret": {"secretName": f"{name}-tls", "optional": True}},
        {"name": "work", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if trusted:
        variables.append({"name": "VEILSTREAM_STUDY_KEY", "value": "/keys/study.key"})
        mounts.append({"name": "keys", "mountPath": "/keys"})
        volumes += [
            {"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "secret", "secret": {"secretName": f"{name}-key", "defaultMode": 0o440}},
        ]
    container = {
        "name": "worker", "image": image, "securityContext": confined,
        # each name its own, and the same after a restart
        "args": [
            "--log-format", "json", "worker", "/studies/study.toml", "--instance", "$(POD_NAME)",
            "--health-host", "0.0.0.0", "--health-port", str(PORT),  # noqa: S104  of the pod alone
        ],
        "env": variables, "envFrom": [{"secretRef": {"name": f"{name}-env", "optional": True}}],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        # a worker without partitions is not ready, and sound
        "readinessProbe": _probe("/healthz", 5), "livenessProbe": _probe("/metrics", 20),
        "startupProbe": {**_probe("/metrics", 5), "failureThreshold": 24},
        "resources": {
            "requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"},
        },
        "volumeMounts": mounts,
    }  # fmt: skip
    pod: Json = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 60,
        "containers": [container], "volumes": volumes,
    }  # fmt: skip
    if trusted:
        pod["initContainers"] = [_own_key(image, confined)]
    return _object(
        "apps/v1", "StatefulSet", name,
        # without `replicas`: KEDA's number would be undone whenever this is applied again
        spec={
            "serviceName": name, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _labels(name)},
            "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
        },
    )  # fmt: skip


def _own_key(image: str, confined: Json) -> Json:
    """Copy the key to a file of the worker's own: a mounted secret can be read by its group."""
    return {
        "name": "key", "image": image, "securityContext": confined,
        "command": ["install", "-m", "600", "/secret/study.key", "/keys/study.key"],
        "volumeMounts": [
            {"name": "keys", "mountPath": "/keys"},
            {"name": "secret", "mountPath": "/secret", "readOnly": True},
        ],
    }  # fmt: skip


def _probe(path: str, seconds: int) -> Json:
    asked = {"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": seconds}
    return {**asked, "timeoutSeconds": 5, "failureThreshold": 3}


def _scaling(task: Task, name: str, settings: Settings, lag: int) -> Json:
    trigger: Json = {
        "type": "kafka",
        "metadata": {
            "bootstrapServers": settings.kafka, "topic": Topics.of(task.study).releases.name,
            "consumerGroup": f"veilstream-{task.study.name}", "lagThreshold": str(lag),
            "offsetResetPolicy": "earliest",
        },
    }  # fmt: skip
    if settings.kafka_security.endswith("SSL"):
        trigger["metadata"]["tls"] = "enable"
    if settings.kafka_security.startswith("SASL"):
        trigger["metadata"]["sasl"] = SASL[settings.kafka_sasl]
    if _proofs(name, settings):
        trigger["authenticationRef"] = {"name": name}
    return _object(
        "keda.sh/v1alpha1", "ScaledObject", name,
        spec={
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
            # more workers than partitions have nothing to do
            "minReplicaCount": 1, "maxReplicaCount": task.study.stream.partitions,
            "pollingInterval": 15, "triggers": [trigger],
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}}
                }
            },
        },
    )  # fmt: skip


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
