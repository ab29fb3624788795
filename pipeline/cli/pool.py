"""Other processes for many independent calls: one that dies takes its own call with it, no other.

An executor whose process dies fails all its calls, so each has one process and one call at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from pipeline.cli.main import THREADS
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
        busy: dict[Future[Found], tuple[int, _Member]] = {}
        try:
            while waiting or busy:
                while free and waiting:
                    number, call = waiting.pop()
                    busy[free[-1].submit(work, call)] = number, free[-1]
                    free.pop()
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    number, member = busy[future]
                    outcome: Found | VeilstreamError
                    try:
                        outcome = future.result()
                    except VeilstreamError as error:
                        outcome = error
                    except MemoryError:
                        outcome = _unfinished("ran out of memory")
                    except BrokenProcessPool:
                        outcome, member = member.death(), _Member()
                    free.append(member)
                    del busy[future]
                    yield number, outcome
        finally:
            # an interrupt may have left one in both
            for member in [*free, *(member for _, member in busy.values())]:
                member.end()


class _Member:
    """A process, which starts with its first call."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(1, spawn, _end_with_parent)
        self._process: BaseProcess | None = None

    def submit(self, work: Callable[..., Found], call: tuple[Any, ...]) -> Future[Found]:
        others = multiprocessing.active_children()
        try:
            with _undisturbed(), _one_core():
                return self._executor.submit(work, *call)
        except BrokenProcessPool as error:
            # it has died since its last call
            future: Future[Found] = Future()
            future.set_exception(error)
            return future
        finally:
            if self._process is None:
                new = [one for one in multiprocessing.active_children() if one not in others]
                self._process = new[0] if new else None

    def death(self) -> VeilstreamError:
        """Say how it has died."""
        self._executor.shutdown()
        code = (self._process and self._process.exitcode) or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return _unfinished(f"ended before it had a result ({how}), most often for want of memory")

    def end(self) -> None:
        if self._process is not None:
            # it has nothing to put in order, and one that is stopped takes no other signal
            self._process.kill()
        self._executor.shutdown()


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


def _end_with_parent() -> None:
    """Let this process end when its parent does."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
