"""Other processes for many independent calls: one that dies takes its own call with it, no other.

Each call is given to one process, once. A process that has died is replaced by a new one, so there
are never more processes than calls.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from pipeline.cli.cores import THREADS
from pipeline.errors import VeilstreamError

Found = TypeVar("Found")


class Pool:
    """Processes that compute on one core each.

    jobs: How many at a time, >= 1; by default as many as there are cores.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs or os.cpu_count() or 1

    def __call__(
        self, work: Callable[..., Found], calls: Sequence[tuple[Any, ...]]
    ) -> Generator[tuple[int, Found | VeilstreamError]]:
        """Yield the number of each call and what it came to, as they end.

        work: A function of a module.
        calls: Its arguments, for each call.

        A call comes to a VeilstreamError if it raises one, its memory runs out, or its process
        dies. Any other error is raised. When this ends or is closed, no process is left.
        """
        waiting = list(enumerate(calls))[::-1]
        free = [_Member() for _ in range(min(self._jobs, len(waiting)))]
        busy: dict[Connection, tuple[int, _Member]] = {}
        try:
            while waiting or busy:
                while free and waiting:
                    process, (number, call) = free[-1], waiting.pop()
                    process.give(work, call)
                    busy[process.connection] = number, process
                    free.pop()
                for one in wait(list(busy)):
                    number, process = busy[one]  # type: ignore[index]
                    outcome, alive = process.outcome()
                    free.append(process if alive else _Member())
                    del busy[one]  # type: ignore[arg-type]
                    if isinstance(outcome, Exception) and not isinstance(outcome, VeilstreamError):
                        raise outcome
                    yield number, outcome
        finally:
            # an interrupt may have left one in both
            for process in [*free, *(process for _, process in busy.values())]:
                process.end()


class _Member:
    """A process, which starts with its first call; connection: What it answers on."""

    def __init__(self) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(self._theirs,), daemon=True
        )

    def give(self, work: Callable[..., Any], call: tuple[Any, ...]) -> None:
        if self._process.pid is None:
            with _undisturbed(), _one_core():
                self._process.start()
            self._theirs.close()
        # if it has died meanwhile, reading from it says so
        with suppress(OSError):
            self.connection.send((work, call))

    def outcome(self) -> tuple[Any, bool]:
        """Return what the call came to, and whether the process is still there."""
        try:
            return self.connection.recv(), True
        except (EOFError, OSError):
            self._process.join()
        code = self._process.exitcode or 0
        self.end()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return _unfinished(
            f"ended before it had a result ({how}), most often for want of memory"
        ), False

    def end(self) -> None:
        if self._process.pid is not None:
            # it has nothing to put in order, and one that is stopped takes no other signal
            self._process.kill()
            self._process.join()
        self.connection.close()
        self._theirs.close()


def _unfinished(why: str) -> VeilstreamError:
    return VeilstreamError(
        f"its process {why}; the operator must free some or give fewer --jobs, and then run this "
        "setting again"
    )


@contextmanager
def _one_core() -> Iterator[None]:
    """Have processes compute on one core: they are started afresh, and read this."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep interrupts from a process that starts, and from us until it has started.

    A terminal sends them to all processes, and one that still imports would print a traceback.
    """
    # starting this later would let interrupts through again
    resource_tracker.ensure_running()
    came: list[int] = []
    # the mask is what a new process inherits; other threads of ours may still get the signal
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _serve(connection: Connection) -> None:
    """Compute calls one after the other, and end when the parent does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            work, call = connection.recv()
        except EOFError:
            return
        outcome: Any
        try:
            outcome = work(*call)
        except MemoryError:
            outcome = _unfinished("ran out of memory")
        except Exception as error:
            # the parent raises it
            error.add_note(traceback.format_exc())
            outcome = error
        connection.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
