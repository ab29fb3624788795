"""Fixtures that give tests a real Kafka and a real Redis.

In this order: servers named by VEILSTREAM_KAFKA and VEILSTREAM_REDIS; containers, when
VEILSTREAM_TESTCONTAINERS=1; else the local runtime. None of them skips a test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from testcontainers.community.kafka import KafkaContainer
from testcontainers.community.redis import RedisContainer

from infra.local import LocalRuntime

KAFKA_IMAGE = "confluentinc/cp-kafka:7.9.1"
REDIS_IMAGE = "redis:7.4.2-alpine"


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> str:
    """Return the bootstrap address of a running Kafka."""
    if given := os.environ.get("VEILSTREAM_KAFKA"):
        return given
    if _in_containers():
        return str(request.getfixturevalue("kafka_container"))
    runtime: LocalRuntime = request.getfixturevalue("local_runtime")
    return runtime.addresses().kafka


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """Return the address of a running Redis."""
    if given := os.environ.get("VEILSTREAM_REDIS"):
        return given
    if _in_containers():
        return str(request.getfixturevalue("redis_container"))
    runtime: LocalRuntime = request.getfixturevalue("local_runtime")
    return runtime.addresses().redis


@pytest.fixture(scope="session")
def local_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuntime]:
    """Yield the runtime that all tests of the session share; do not kill what it runs."""
    yield from _up_then_down(tmp_path_factory.mktemp("runtime"))


@pytest.fixture
def fresh_runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    """Yield a runtime of the test's own, up, for tests that kill Kafka or Redis."""
    yield from _up_then_down(tmp_path / "runtime")


@pytest.fixture(scope="session")
def kafka_container() -> Iterator[str]:
    """Yield the bootstrap address of Kafka in a container."""
    _require_engine()
    container = KafkaContainer(KAFKA_IMAGE).with_kraft()
    with container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false") as running:
        yield running.get_bootstrap_server()


@pytest.fixture(scope="session")
def redis_container() -> Iterator[str]:
    """Yield the address of Redis in a container."""
    _require_engine()
    container = RedisContainer(REDIS_IMAGE).with_command("redis-server --appendonly yes")
    with container as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(running.port)
        yield f"redis://{host}:{port}/0"


def _up_then_down(folder: Path) -> Iterator[LocalRuntime]:
    runtime = LocalRuntime(folder)
    with runtime:
        yield runtime


def _in_containers() -> bool:
    return os.environ.get("VEILSTREAM_TESTCONTAINERS") == "1"


def _require_engine() -> None:
    try:
        docker.from_env(timeout=3).ping()
    except DockerException as error:
        pytest.fail(f"VEILSTREAM_TESTCONTAINERS=1, and no Docker engine answers: {error}")
