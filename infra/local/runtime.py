"""A real Kafka and a real Redis in one folder, as child processes, without Docker.

``runtime.json`` remembers ports and processes between commands. `supervise` keeps both up.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.local import processes
from infra.local.download import ProgramPaths
from infra.local.processes import (
    Record,
    Records,
    free_port,
    hold,
    is_alive,
    last_word,
    log_size,
    read_state,
    require_free,
    write_state,
)
from infra.local.services import MEMORY, Kafka, Redis
from pipeline.errors import AlreadyRunning, ConfigError, RuntimeSetupError

WATCH_SECONDS = 0.5
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# A service that ran this long before it died starts again after the first pause.
STEADY_SECONDS = 60.0


def supervise(runtime: LocalRuntime, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Watch a runtime that is up until ``stop`` is set or somebody takes it down; then end both.

    stop: Set by a signal handler or another thread.
    say: Takes a line for the operator.

    Raises AlreadyRunning: another process supervises this folder; it goes on, and both services
    stay up.
    """
    with hold(runtime.folder, "supervisor.lock", wait=False):
        try:
            _watch(runtime, stop, say)
        finally:
            runtime.down()


def _watch(runtime: LocalRuntime, stop: threading.Event, say: Callable[[str], None]) -> None:
    pauses: dict[str, float] = {}
    started: dict[str, float] = {}
    while not stop.wait(WATCH_SECONDS):
        if runtime.ended():
            say("taken down by another process")
            return
        for name in runtime.dead():
            steady = time.monotonic() - started.get(name, -math.inf) > STEADY_SECONDS
            pause = FIRST_PAUSE if steady else min(2 * pauses[name], LONGEST_PAUSE)
            say(f"{name} died; starting it again in {pause:g} s")
            if stop.wait(pause):
                return
            pauses[name], started[name] = pause, time.monotonic()
            try:
                runtime.restart(name)
            except RuntimeSetupError as error:
                say(str(error))
            else:
                say(f"{name} runs again")


@dataclass(frozen=True)
class Addresses:
    """What clients connect to."""

    kafka: str
    redis: str


@dataclass(frozen=True)
class ServiceStatus:
    """One service as it is now.

    running: Its process exists.
    answers: It takes requests.
    pid, address: None when it does not run.
    """

    name: str
    running: bool
    answers: bool
    pid: int | None
    address: str | None


def look_at(service: Kafka | Redis, record: Record | None) -> ServiceStatus:
    """Look at a service now; there is no record when it was never started."""
    if record is None or record.process is None or not is_alive(record.process):
        return ServiceStatus(service.name, running=False, answers=False, pid=None, address=None)
    return ServiceStatus(
        service.name,
        running=True,
        answers=service.answers(record.port),
        pid=record.process.pid,
        address=service.address(record.port),
    )


READY_SECONDS = 90.0
GRACE_SECONDS = 15.0


class LocalRuntime:
    """Kafka and Redis in a folder of their own.

    Parameters
    ----------
    folder
        Data, logs and state; two folders are two runtimes that know nothing of each other.
    program_paths
        Where to find the programs.
    java_options
        Kafka's memory, and whatever else is to differ: of two options Java takes the last.

    Examples
    --------
    >>> with LocalRuntime(Path(".veilstream")) as addresses:  # doctest: +SKIP
    ...     print(addresses.kafka, addresses.redis)
    """

    def __init__(
        self, folder: Path, program_paths: ProgramPaths | None = None, *,
        java_options: Sequence[str] = MEMORY,
    ) -> None:  # fmt: skip
        self.folder = folder.absolute()
        services: tuple[Kafka | Redis, ...] = (
            # Redis first: it starts while Kafka is still being prepared.
            Redis(self.folder / "redis"),
            Kafka(self.folder / "kafka", program_paths or ProgramPaths(), java_options),
        )
        self._services = {service.name: service for service in services}

    def up(self, *, kafka_port: int | None = None, redis_port: int | None = None) -> Addresses:
        """Start what does not run, and return when both answer.

        Each keeps the port and the data that it had before.

        kafka_port, redis_port: Where to listen; by default the port of the last time, at first a
            free one.

        Raises AlreadyRunning if a service runs on another port than the one asked for;
        RuntimeSetupError if something that is needed is missing, a port is taken, or a service does
        not start.
        """
        if kafka_port is not None and kafka_port == redis_port:
            raise ConfigError(f"kafka and redis cannot both listen on port {kafka_port}")
        asked = {"kafka": kafka_port, "redis": redis_port}
        with self._locked() as records:
            for name in self._services:
                self._settle_port(records, name, asked[name])
            self._start(records, list(self._services))
            return self._addresses(records)

    def down(self) -> None:
        """End both, and return when they are gone; a second time nothing happens."""
        if not (self.folder / "runtime.lock").exists():
            return  # Nobody ever started anything here; leave the folder as it is.
        with self._locked() as records:
            running = [record.process for record in records.values() if record.process]
            processes.stop(running, GRACE_SECONDS)
            for record in records.values():
                record.process = None
            write_state(self.folder, records)

    def restart(self, name: str) -> None:
        """End one service if it runs, and start it again on the same port and data."""
        with self._locked() as records:
            process = self._known(records, name).process
            if process is not None:
                processes.stop([process], GRACE_SECONDS)
            self._start(records, [name])

    def kill(self, name: str) -> None:
        """End one service as a crash would, with SIGKILL, and return when it is gone."""
        with self._locked() as records:
            process = self._known(records, name).process
            if process is not None:
                processes.send(process, signal.SIGKILL)
                processes.stop([process], grace=processes.KILL_SECONDS)

    def addresses(self) -> Addresses:
        """Return the addresses of a runtime that is up.

        Raises RuntimeSetupError if it has never been up.
        """
        records = read_state(self.folder)
        for name in self._services:
            self._known(records, name)
        return self._addresses(records)

    def status(self) -> list[ServiceStatus]:
        """Look at each service, without a lock: also while another process starts them."""
        records = read_state(self.folder)
        return [look_at(self._services[name], records.get(name)) for name in sorted(self._services)]

    def dead(self) -> list[str]:
        """Name the services that should run, because nobody ended them, and do not."""
        return [
            name
            for name, record in read_state(self.folder).items()
            if record.process and not processes.is_alive(record.process)
        ]

    def ended(self) -> bool:
        """Say whether both were ended on purpose."""
        return not any(record.process for record in read_state(self.folder).values())

    def log_path(self, name: str) -> Path:
        """Return the file that a service writes to."""
        return self._services[name].log

    def __enter__(self) -> Addresses:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    @contextmanager
    def _locked(self) -> Iterator[Records]:
        for service in self._services.values():
            service.log.parent.mkdir(parents=True, exist_ok=True)
        with hold(self.folder, "runtime.lock"):
            yield read_state(self.folder)

    def _settle_port(self, records: Records, name: str, asked: int | None) -> None:
        record = records.get(name)
        if record is None:
            promised = {other.port for other in records.values()}
            records[name] = Record(free_port(avoid=promised) if asked is None else asked)
        elif asked not in (None, record.port):
            if record.process and processes.is_alive(record.process):
                raise AlreadyRunning(
                    f"{name} already runs on port {record.port}, not {asked}: "
                    "run `veilstream down` first"
                )
            record.port = asked

    def _start(self, records: Records, names: list[str]) -> None:
        """Start those that do not run; when one fails, those started here do not stay behind."""
        before = read_state(self.folder)
        launched = []
        try:
            log_starts = {name: log_size(self._services[name].log) for name in names}
            for name in names:
                record = records[name]
                if record.process is None or not processes.is_alive(record.process):
                    require_free(name, record.port)
                    service = self._services[name]
                    record.process = processes.spawn(service.command(record.port), service.log)
                    launched.append(record.process)
                    write_state(self.folder, records)
            for name in names:
                self._wait_ready(name, records[name], log_starts[name])
        except BaseException:
            processes.stop(launched, GRACE_SECONDS)
            write_state(self.folder, before)
            raise

    def _wait_ready(self, name: str, record: Record, log_start: int) -> None:
        service = self._services[name]
        deadline = time.monotonic() + READY_SECONDS
        while not service.answers(record.port):
            if record.process is None or not processes.is_alive(record.process):
                fault = "ended while it started"
            elif time.monotonic() > deadline:
                fault = f"does not answer on port {record.port} after {READY_SECONDS:.0f} s"
            else:
                time.sleep(processes.POLL_SECONDS)
                continue
            said = last_word(service.log, log_start)
            raise RuntimeSetupError(f"{name} {fault}; {service.log} says: {said}")

    def _known(self, records: Records, name: str) -> Record:
        if name not in records:
            raise RuntimeSetupError(f"{name} has never been up in {self.folder}")
        return records[name]

    def _addresses(self, records: Records) -> Addresses:
        kafka, redis = (self._services[n].address(records[n].port) for n in ("kafka", "redis"))
        return Addresses(kafka, redis)
