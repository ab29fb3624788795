"""`veilstream` processes, forked from one that has imported everything.

Most of a start is imports, a second of processor time for a worker, and the suite starts some
hundreds of processes. `Forks.start` asks a server, which has done nothing but import, for a child:
a process of its own, with its own pid, environment, output and end, that a test may kill. The
server is started once, for all processes of a run. Whatever is about the start itself is for
`subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from tests.asking import ask_soon
from tests.processes import ROOM

#: What commands import when they run.
MODULES = (
    "amqtt.broker",
    "pipeline.cli.main",
    "pipeline.cli.produce",
    "pipeline.cli.worker",
    "agents.worker",
    "cryptography.hazmat.backends.openssl.backend",
    "encodings.idna",
    "faust.app",
    "faust.app.router",
    "faust.assignor.leader_assignor",
    "faust.fixups.django",
    "faust.tables.objects",
    "faust.tables.sets",
    "faust.topics",
    "faust.transport.utils",
    "faust.worker",
    "producers.start",
    "producers.sources.push",
    "producers.sources.kafka",
    "producers.sources.push",
    "scipy.linalg",
    "pipeline.methods.age_aware.method",
    "pipeline.methods.ldp_sgd.method",
    "pipeline.methods.noisy_copies.method",
    "pipeline.methods.noisy_mle.method",
    "pipeline.methods.renewable.method",
)
#: Whose `main` is `veilstream`.
PROGRAM = "pipeline.cli.main"
#: Longest request: the words and the environment of a process.
LONGEST = 1 << 20
#: A command that does not take the time of a start; what ends it ends its process.
COMMAND = """\
#!{python} -SE
import json, os, signal, socket, sys
ask = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ask.connect({address!r})
ask.recv(3)
outcome, tell = os.pipe()
told = ["pipeline.cli.main", sys.argv[1:], dict(os.environ), os.getcwd(), ""]
socket.send_fds(ask, [json.dumps(told).encode()], [0, 1, 2, tell])
pid = int(ask.recv(16))
os.close(tell)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(os.read(outcome, 16) or -signal.SIGKILL)
sys.exit(code if code >= 0 else 128 - code)
"""
#: What the server says to a process that may ask from now on.
GREETING = b"ask"


class Forked:
    """A forked process, with what tests use of `subprocess.Popen`.

    Parameters
    ----------
    pid
        Its number.
    outcome
        Where its exit code comes.
    stdin
        What it reads, if that is a pipe.
    """

    def __init__(self, pid: int, outcome: int, stdin: IO[bytes] | None = None) -> None:
        self.pid, self._outcome, self.stdin = pid, outcome, stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, which is negative for a signal."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash would."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        # nobody will ask any more how it ended
        if self.returncode is None:
            os.close(self._outcome)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and _said(self._outcome, seconds):
            said = os.read(self._outcome, 16)
            os.close(self._outcome)
            self.returncode = int(said) if said else -signal.SIGKILL
        return self.returncode


def files_below(size: int) -> str:
    """Return Python for a process that cannot write files beyond some bytes: its disk is full."""
    # no byte code either: what is cut short would fail every later test
    return (
        "import resource, sys\nsys.dont_write_bytecode = True\n"
        f"most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, most))"
    )


#: What a test may ask, signal and wait for.
Process = subprocess.Popen[bytes] | Forked


def _said(outcome: int, seconds: float | None) -> bool:
    # `select` refuses files above 1,023, and a process that has run a thousand tests has such
    waits = select.poll()
    waits.register(outcome, select.POLLIN)
    return bool(waits.poll(None if seconds is None else 1000.0 * seconds))


class Forks:
    """The server, started with the first process that is asked for.

    Attributes
    ----------
    usable
        Whether this system tells of the end of a process, as Linux does, by a file.
    """

    usable = hasattr(os, "pidfd_open")

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._address = Path()
        # threads may ask at once, and each gets its own answer
        self._one = Lock()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        out: IO[bytes],
        errors: IO[bytes] | None = None,
        *,
        module: str = PROGRAM,
        stdin: int = subprocess.DEVNULL,
        before: str = "",
    ) -> Process:
        """Run `veilstream ARGUMENTS` in a process with this environment and these outputs.

        Parameters
        ----------
        module
            Whose `main` is called.
        stdin
            What it reads, as `subprocess` is told.
        before
            Python that the process runs first, as a `sitecustomize` would.
        """
        if not self.usable:
            return subprocess.Popen(
                [sys.executable, "-c", f"{before}\nfrom {module} import main\nmain()", *arguments],
                stdin=stdin, stdout=out, stderr=errors or out, env=environment,
            )  # fmt: skip
        with self._one:
            ask = self._socket or self._serve()
        outcome, tell = os.pipe()
        write = None
        if stdin == subprocess.PIPE:
            read, write = os.pipe()
        else:
            read = os.dup(stdin) if stdin >= 0 else os.open(os.devnull, os.O_RDONLY)
        told = [module, list(arguments), dict(environment), os.getcwd(), before]
        request = json.dumps(told).encode()
        with self._one:
            socket.send_fds(ask, [request], [read, out.fileno(), (errors or out).fileno(), tell])
            pid = int(ask.recv(16))
        os.close(read)
        os.close(tell)
        return Forked(pid, outcome, None if write is None else os.fdopen(write, "wb"))

    def run(
        self, arguments: Sequence[object], environment: Mapping[str, str], *,
        stdin: str | bytes = b"", before: str = "", seconds: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run `veilstream ARGUMENTS` in such a process to its end, which reads this."""
        words = [str(argument) for argument in arguments]
        with ExitStack() as stack:
            given, out, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
            process = self.start(
                words, environment, out, errors, stdin=given.fileno(), before=before
            )
            try:
                code = process.wait(seconds)
            finally:
                process.kill()
            said = []
            for file in (out, errors):
                file.seek(0)
                said.append(file.read().decode())
        return subprocess.CompletedProcess(words, code, *said)

    def commands(self, folder: Path) -> Path:
        """Write a command `veilstream` that asks for such a process; return its folder."""
        with self._one:
            self._socket = self._socket or self._serve()
        folder.mkdir()
        command = folder / "veilstream"
        command.write_text(COMMAND.format(python=sys.executable, address=str(self._address)))
        command.chmod(0o755)
        return folder

    def _serve(self) -> socket.socket:
        server = own_room = None
        if ROOM not in os.environ:
            own_room = tempfile.mkdtemp(prefix="forks-")
        self._address = address = Path(own_room or os.environ[ROOM]) / "forks"
        mine, deadline = None, time.monotonic() + 10.0
        while mine is None:
            assert time.monotonic() < deadline, "no server of forks"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            own = address.with_suffix(f".{os.getpid()}")
            own.unlink(missing_ok=True)
            # but for the first process of the run, another one holds the address
            place = address
            with listener, suppress(FileExistsError):
                listener.bind(str(own))
                listener.listen()
                os.link(own, address)
                server, place = _started(listener), own
            # who has started a server asks that one, lest it wait for ever: the address may be
            # taken away by now, by one that found the former server gone
            mine = _connected(place)
            own.unlink(missing_ok=True)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        self._socket = mine

        def end() -> None:
            mine.close()
            if server is not None:
                server.wait()
            if own_room is not None:
                shutil.rmtree(own_room)

        atexit.register(end)
        return mine


def _started(given: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.forks", str(given.fileno())],
        stdin=subprocess.DEVNULL, pass_fds=[given.fileno()],
    )  # fmt: skip


def _connected(address: Path) -> socket.socket | None:
    """Return a connection that the server has accepted; None if it ended just then.

    It ends with the last process that asks: one that comes at that moment is still let in by the
    system, and nobody would ever answer it.
    """
    mine = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with suppress(ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
        mine.connect(str(address))
        if mine.recv(len(GREETING)) == GREETING:
            return mine
    mine.close()
    address.unlink(missing_ok=True)
    return None


FORKS = Forks()


def serve(listener: socket.socket) -> None:
    """Fork what is asked for, and tell how each process ended, until nobody can ask any more.

    Parameters
    ----------
    listener
        Where all processes of a run ask: they share what is imported once.
    """
    for module in MODULES:
        import_module(module)
    ask_soon()
    _draw()
    # Faust asks where its agents are written, and the first answer looks through all modules
    inspect.getmodule(sys._getframe())
    # Ctrl-C is for those who asked
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    asking = {_let_in(listener)}
    running: dict[int, tuple[int, int, socket.socket]] = {}
    while asking:
        for ready in select.select([*asking, *running, listener], [], [])[0]:
            if isinstance(ready, int):
                pid, tell, _ = running.pop(ready)
                _tell(ready, pid, tell)
            elif ready is listener:
                asking.add(_let_in(listener))
            else:
                request, files = _asked(ready)
                if not request:
                    asking.remove(ready)
                    ready.close()
                    _end([pid for pid, _, asker in running.values() if asker is ready])
                    continue
                *streams, tell = files
                pid = os.fork()
                if not pid:
                    for asks in (listener, *asking):
                        asks.close()
                    for held in (tell, *running, *(other for _, other, _ in running.values())):
                        os.close(held)
                    _run(*json.loads(request), streams)
                for held in streams:
                    os.close(held)
                running[os.pidfd_open(pid)] = pid, tell, ready
                # who asked may be gone; others still ask
                with suppress(BrokenPipeError):
                    ready.send(str(pid).encode())


def _end(pids: list[int]) -> None:
    """End processes whose asker is gone: nobody else knows of them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _let_in(given: socket.socket) -> socket.socket:
    asks = given.accept()[0]
    with suppress(BrokenPipeError):
        asks.send(GREETING)
    return asks


def _asked(asks: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request with its files; an empty one of who is gone."""
    try:
        request, files, _, _ = socket.recv_fds(asks, LONGEST, 4)
    except ConnectionResetError:
        # it was killed with an answer on its way
        return b"", []
    return request, files


def _draw() -> None:
    """Release nothing of the study that most tests use: tables of its noise are made but once."""
    tests, methods, model, releasing, study = map(
        import_module,
        ("tests.stage", "pipeline.methods", "pipeline.release.model", "pipeline.stream.release",
         "pipeline.study_file.load"),
    )  # fmt: skip
    task = methods.task_of(study.parse_study(tests.study_text("drawn")))
    for version in (0, 1):
        point = model.Model(version, np.zeros(task.size, dtype=np.int64), (1024, 1024))
        releasing.release_of(task, [], point, client="c", ledger="l", seq=0)


def _tell(handle: int, pid: int, outcome: int) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(handle)
    try:
        os.write(outcome, str(os.waitstatus_to_exitcode(status)).encode())
    except BrokenPipeError:
        # nobody waits for it any more
        pass
    finally:
        os.close(outcome)


def _run(
    module: str, arguments: list[str], environment: dict[str, str], folder: str, before: str,
    streams: list[int],
) -> Any:  # fmt: skip
    """Be the process that was asked for; this does not return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for place, held in enumerate(streams):
            os.dup2(held, place)
            os.close(held)
        sys.argv = ["veilstream", *arguments]
        exec(before, {})  # noqa: S102  as a `sitecustomize` of its own would
        try:
            import_module(module).main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
