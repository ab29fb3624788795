"""The Python of xdist's processes: forked from the first of them, which has imported what all do.

Each process of a run collects all tests, and half of that is imports of libraries. xdist runs this
file where it would run Python: `--tx '6*popen//python=.venv/bin/python tests/processes.py'`. It
starts one process after the other, so the first one is there when the next one asks, in a folder
that is of this run and this user alone. Modules of the tests are left to each process: pytest
rewrites their assertions.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

#: The variable with the folder of a run: whoever may write there may have its processes run code.
ROOM = "ROOM_OF_TESTS"
#: What tests import that takes longest; of the project what has no state of a process.
MODULES = (
    "adbc_driver_postgresql.dbapi",
    "click.testing",
    "dp_accounting.pld.privacy_loss_distribution",
    "faust",
    "kafka.admin",
    "markdown_it",
    "matplotlib.figure",
    "mpmath",
    "opendp.prelude",
    "pandas",
    "pyarrow.parquet",
    "redis",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.base",
    "sklearn.utils.estimator_checks",
)


def main() -> None:
    """Run what Python is asked to run, in a process that is forked for it."""
    line = sys.argv[-1]
    if not hasattr(os, "pidfd_open") or ROOM not in os.environ:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606
    address = Path(os.environ[ROOM]) / "processes"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ask:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            ask.connect(str(address))
            socket.send_fds(ask, [b"fork"], [0, 1, 2])
            # the process holds the other end while it lives, and Ctrl-C is for it
            with suppress(KeyboardInterrupt):
                ask.recv(1)
            return
        # of a process that is gone
        address.unlink(missing_ok=True)
        ask.bind(str(address))
        ask.listen()
        held = _serve(ask)
    if held is not None:
        # a process of the run from here on
        sys.argv = ["-c"]
        code = compile(line, "<string>", "exec", dont_inherit=True)
        exec(code, {"__name__": "__main__"})  # noqa: S102  what `python -c` does
        held.close()


def _serve(listener: socket.socket) -> socket.socket | None:
    """Fork for the one who has started this and for whoever asks, until all processes have ended.

    Returns None then. In a forked process it returns what tells those who asked of its end.
    """
    import gc  # noqa: PLC0415  who only asks should start quickly
    import signal  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415

    gc.disable()
    for module in MODULES:
        import_module(module)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    nobody, waits = socket.socketpair()
    nobody.close()
    streams = [os.dup(place) for place in range(3)]
    # what the first process is told is not for this one
    for place, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        nothing = os.open(os.devnull, mode)
        os.dup2(nothing, place)
        os.close(nothing)
    while True:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for handle in running:
                os.close(handle)
            for place, held in enumerate(streams):
                os.dup2(held, place)
                os.close(held)
            return waits
        running[os.pidfd_open(pid)] = pid
        for held in streams:
            os.close(held)
        waits.close()
        if not _asked(listener, running):
            return None
        waits, _ = listener.accept()
        _, streams, _, _ = socket.recv_fds(waits, 16, 3)


def _asked(listener: socket.socket, running: dict[int, int]) -> bool:
    """Wait until somebody asks for a process; False when all have ended."""
    import select  # noqa: PLC0415  as above

    while running:
        ready = select.select([listener, *running], [], [])[0]
        if listener in ready:
            return True
        for handle in ready:
            os.waitpid(running.pop(handle), 0)
            os.close(handle)
    return False


if __name__ == "__main__":
    main()
