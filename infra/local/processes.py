"""Child processes that outlive their parent: pid and start time, ports, logs, ``runtime.json``.

A pid alone is not an identity: after the process ends, the system gives the number to somebody
else. Nothing here signals a pid whose start time is not the recorded one.

A start that polls a port every few milliseconds wants one question and one answer; a client library
brings its own retries and time limits.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pipeline.errors import AlreadyRunning, ConfigError, RuntimeSetupError

FOLLOW_SECONDS = 0.2


def private(log: Path) -> Path:
    """Return a log that its owner alone can read, made if it is not there."""
    log.touch(mode=0o600)
    log.chmod(0o600)
    return log


def log_size(log: Path) -> int:
    """Return where the next line will go."""
    return log.stat().st_size if log.exists() else 0


def tail(log: Path, lines: int) -> list[str]:
    """Return the last lines; none when there is no log yet."""
    if not log.exists():
        return []
    with log.open(encoding="utf-8", errors="replace") as stream:
        return [line.rstrip("\n") for line in deque(stream, maxlen=lines)]


def follow(log: Path) -> Iterator[str]:
    """Yield lines as they are written, without end."""
    while not log.exists():
        time.sleep(FOLLOW_SECONDS)
    with log.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(0, os.SEEK_END)
        line = ""
        while True:
            line += stream.readline()
            if line.endswith("\n"):
                yield line.rstrip("\n")
                line = ""
            else:
                time.sleep(FOLLOW_SECONDS)


def last_word(log: Path, start: int) -> str:
    """Return the line after ``start`` that says best why a service ended.

    Mostly the last one, as with Redis. Kafka's cause comes before pages of stacks and of parts that
    end, and Java's before two lines that say no more than that it ended.
    """
    with log.open("rb") as stream:
        stream.seek(start)
        text = stream.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    telling = [
        line for line in lines if not (line.startswith(("at ", "Error: ")) or " INFO " in line)
    ]
    return (causes or telling or lines or ["nothing"])[-1]


HOST = "127.0.0.1"

# Below the ports that Linux (32768 up) and macOS (49152 up) hand to outgoing connections. A client
# that retries a loopback port of that range while its server is down can connect to itself, and
# then the server never gets its port back.
PORTS = range(20_000, 32_768)


def free_port(avoid: Container[int] = ()) -> int:
    """Choose a loopback port that nobody listens on.

    avoid: Ports that are promised to somebody who does not listen yet.
    """
    # Random, so that two runtimes that start at once do not both take the first free one.
    for port in random.sample(PORTS, k=1000):
        if port not in avoid and is_free(port):
            return port
    raise RuntimeSetupError(f"no free port on {HOST} between {PORTS.start} and {PORTS.stop - 1}")


def is_free(port: int) -> bool:
    """Say whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As the servers do: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(service: str, port: int) -> None:
    """Refuse a port that another process holds.

    Raises ConfigError: the number is no port; RuntimeSetupError: somebody listens on it.
    """
    if not 1024 <= port <= 65_535:
        raise ConfigError(f"{service} port {port} is not between 1024 and 65535")
    if not is_free(port):
        raise RuntimeSetupError(
            f"{service} cannot listen on {HOST}:{port}: another process holds that port; "
            f"end that process, or choose another port with --{service}-port"
        )


PROBE_SECONDS = 2.0


def kafka_answers(port: int) -> bool:
    """Ask for the cluster's metadata: yes, when it lists a broker that takes requests.

    A broker that is still starting accepts connections before it is listed, and would then refuse
    to create topics.
    """
    client = b"veilstream"
    no_topics = 0
    # Metadata (3), version 1, correlation id 1.
    request = struct.pack(f">hhih{len(client)}si", 3, 1, 1, len(client), client, no_topics)
    answer = _ask(port, struct.pack(">i", len(request)) + request, answer_bytes=12)
    if answer is None:
        return False
    _size, correlation, brokers = struct.unpack(">iii", answer)
    return bool(correlation == 1 and brokers > 0)


def redis_answers(port: int) -> bool:
    """Send a PING: no, while it still loads its append-only file."""
    return _ask(port, b"PING\r\n", answer_bytes=7) == b"+PONG\r\n"


def _ask(port: int, request: bytes, *, answer_bytes: int) -> bytes | None:
    try:
        with socket.create_connection((HOST, port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                answer = stream.read(answer_bytes)
    except OSError:
        return None
    return answer if len(answer) == answer_bytes else None


POLL_SECONDS = 0.02
KILL_SECONDS = 10.0

# Children of this very process, by pid; until one is collected, the system keeps its number. They
# are kept to the end: a child is meant to outlive its parent, of which its handle would complain.
_children: dict[int, subprocess.Popen[bytes]] = {}


class Identity(msgspec.Struct, frozen=True):
    """One process for all time: its pid, and when the system says it started."""

    pid: int
    started: str


def spawn(command: list[str], log: Path) -> Identity:
    """Start a program in a session of its own, with both outputs appended to a log.

    Its own session, so that Ctrl-C in a terminal reaches only the parent, which then decides.
    """
    try:
        with private(log).open("ab") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise RuntimeSetupError(f"cannot start {command[0]}: {error.strerror}") from error
    _children[child.pid] = child
    started = _started(child.pid)
    if started is None:
        raise RuntimeSetupError(f"{command[0]} ended at once; see {log}")
    return Identity(child.pid, started)


def is_alive(process: Identity) -> bool:
    """Say whether this very process still runs."""
    if _started(process.pid) == process.started:
        return True
    if process.pid in _children:
        # it would stay in the process table as a zombie
        _children[process.pid].poll()
    return False


def send(process: Identity, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it is gone."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def stop(processes: Iterable[Identity], grace: float) -> None:
    """End processes together: ask, wait for ``grace`` seconds, then kill; return when all are gone.

    Raises RuntimeSetupError: the system does not let go of one of them even after SIGKILL.
    """
    pending = list(processes)
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_SECONDS)):
        for process in pending:
            send(process, number)
        deadline = time.monotonic() + seconds
        while pending := [process for process in pending if is_alive(process)]:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    if pending:
        pids = ", ".join(str(process.pid) for process in pending)
        raise RuntimeSetupError(f"process {pids} does not end, not even by SIGKILL")


def _started(pid: int) -> str | None:
    """Tell when a process started, in the system's own words; None when it does not run."""
    if Path("/proc/self/stat").exists():
        try:
            line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The second field is the program's name in brackets, and may hold spaces and brackets.
        fields = line.rpartition(")")[2].split()
        state, threads, started = fields[0], int(fields[17]), fields[19]
        # The first thread of a program can be done while others still hold its ports and files.
        return None if state in "ZX" and threads <= 1 else started
    listing = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        # The same words from every shell.
        env={"LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = listing.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


class Record(msgspec.Struct):
    """One service. Its port outlives its process, so that clients find it again.

    port: Where it listens.
    process: None when it was ended on purpose; one that died stays here until it is started again.
    """

    port: int
    process: Identity | None = None


Records = dict[str, Record]


def read_state(folder: Path) -> Records:
    """Read the records; none when there is no file yet.

    Raises RuntimeSetupError: the file is not one that this project wrote.
    """
    path = folder / "runtime.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Records)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise RuntimeSetupError(
            f"{path} cannot be read ({error}): end the servers it was about and remove it"
        ) from error


def write_state(folder: Path, records: Records) -> None:
    """Replace the file in one step."""
    path = folder / "runtime.json"
    aside = path.with_suffix(".new")
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(records)) + b"\n")
    aside.replace(path)


@contextmanager
def hold(folder: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock in the folder; the system lets go of it when the process ends, however it ends.

    Raises AlreadyRunning: another process holds it, and ``wait`` is False.
    """
    # Never removed: a lock file that comes and goes can be held by two processes at once.
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise AlreadyRunning(f"another process holds {folder / name}") from error
        yield
    finally:
        os.close(descriptor)
