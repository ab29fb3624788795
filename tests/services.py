"""Fixtures that give tests a real Kafka and a real Redis.

In this order: servers named by VEILSTREAM_KAFKA and VEILSTREAM_REDIS; containers, when
VEILSTREAM_TESTCONTAINERS=1; else the local runtime. None of them skips a test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local import LocalRuntime
from tests.asking import ask_soon
from tests.secured import Secured, SecuredRuntime

KAFKA_IMAGE = "confluentinc/cp-kafka:7.9.1"
REDIS_IMAGE = "redis:7.4.2-alpine"
#: Folder of the shared runtime within the session's own.
RUNTIME = "runtime"
#: Files that take longest, and folders whose tests start processes: what begins last is short.
#: Between those that wait for what they start are some that compute, lest the cores idle at first.
FIRST = (
    "test_rollback", "test_snippets", "test_outages", "test_lost_topics", "test_distinguishing",
    "test_source_kills", "test_admission", "test_least_rights", "test_restores",
    "test_forget", "test_sgd_live",
    "test_stream_attack", "test_kills", "test_local_runtime", "test_crashes", "test_canary",
    "test_ledger_crashes", "test_sensitivity", "test_backtest", "test_age_aware",
    "test_sites_method", "test_noisy_mle", "test_kafka_topic", "test_doctor", "consistency",
    "integration", "infra", "test_method_checks", "cli", "test_design", "test_facts", "producers",
    "test_grid", "test_sgd_intervals", "test_readiness", "test_logs", "test_sgd_study",
    "test_sgd_path",
)  # fmt: skip


ask_soon()


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
def local_runtime(tmp_path_factory: pytest.TempPathFactory) -> SecuredRuntime:
    """Return the runtime that all tests share, in all processes; do not kill what it runs."""
    runtime = SecuredRuntime(_shared_folder(tmp_path_factory))
    # the first process starts it, the others find it up
    runtime.up()
    return runtime


@pytest.fixture(scope="session")
def secured(local_runtime: SecuredRuntime) -> Secured:
    """Return the listeners of the shared Kafka that ask for TLS and for users."""
    return local_runtime.listeners()


@pytest.fixture(scope="module")
def frail_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuntime]:
    """Yield the runtime of the tests of a module that kill Kafka or Redis, and start them again."""
    runtime = LocalRuntime(tmp_path_factory.mktemp("frail"))
    with runtime:
        yield runtime


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the shared runtime when the tests of all processes are over."""
    # a worker of xdist ends before the others do
    if not hasattr(session.config, "workerinput"):
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        LocalRuntime(factory.getbasetemp() / RUNTIME).down()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, so that no process ends with a long file."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    names = {item.path.stem, *item.path.parts}
    return next((place for place, name in enumerate(FIRST) if name in names), len(FIRST))


@pytest.fixture(scope="session")
def kafka_container() -> Iterator[str]:
    """Yield the bootstrap address of Kafka in a container."""
    from testcontainers.community.kafka import KafkaContainer  # noqa: PLC0415  seldom needed

    _require_engine()
    container = KafkaContainer(KAFKA_IMAGE).with_kraft()
    with container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false") as running:
        yield running.get_bootstrap_server()


@pytest.fixture(scope="session")
def redis_container() -> Iterator[str]:
    """Yield the address of Redis in a container."""
    from testcontainers.community.redis import RedisContainer  # noqa: PLC0415  seldom needed

    _require_engine()
    container = RedisContainer(REDIS_IMAGE).with_command("redis-server --appendonly yes")
    with container as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(running.port)
        yield f"redis://{host}:{port}/0"


def _shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the shared runtime: beside the folders of xdist's workers."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / RUNTIME


def _in_containers() -> bool:
    return os.environ.get("VEILSTREAM_TESTCONTAINERS") == "1"


def _require_engine() -> None:
    import docker  # noqa: PLC0415  seldom needed
    from docker.errors import DockerException  # noqa: PLC0415

    try:
        docker.from_env(timeout=3).ping()
    except DockerException as error:
        pytest.fail(f"VEILSTREAM_TESTCONTAINERS=1, and no Docker engine answers: {error}")
