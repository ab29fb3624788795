"""Child processes that outlive their parent, known by pid and start time.

A pid alone is not an identity: after the process ends, the system gives the number to somebody
else. Nothing here signals a pid whose start time is not the recorded one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from infra.local.logs import private
from pipeline.errors import RuntimeSetupError

POLL_SECONDS = 0.02
KILL_SECONDS = 10.0

# Children of this very process that nobody collected yet; until then the system keeps their pids.
_children: set[int] = set()


class Identity(msgspec.Struct, frozen=True):
    """One process for all time: its pid, and when the system says it started."""

    pid: int
    started: str


def spawn(command: list[str], log: Path) -> Identity:
    """Start a program in a session of its own, with both outputs appended to a log.

    Its own session, so that Ctrl-C in a terminal reaches only the parent, which then decides. And
    not ``subprocess.Popen``, whose handle complains when a child is meant to outlive it.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(private(log)), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            # Python ignores these two, and a child would inherit that.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        raise RuntimeSetupError(f"cannot start {command[0]}: {error.strerror}") from error
    _children.add(pid)
    started = _started(pid)
    if started is None:
        raise RuntimeSetupError(f"{command[0]} ended at once; see {log}")
    return Identity(pid, started)


def is_alive(process: Identity) -> bool:
    """Say whether this very process still runs."""
    _reap(process.pid)
    return _started(process.pid) == process.started


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


def _reap(pid: int) -> None:
    """Collect a dead child of ours, which would stay in the process table as a zombie."""
    if pid in _children:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                return
        _children.discard(pid)


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
