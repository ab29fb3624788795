"""Processes that share the cores of this machine, and end with this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from pipeline.errors import VeilstreamError

#: What numerical libraries read when they are loaded.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def one_core_each(jobs: int | None) -> Iterator[Executor]:
    """Give processes that compute on one core each; by default as many as there are cores.

    If the caller ends with an error or an interrupt, they are ended at once.

    VeilstreamError if one of them was ended from outside.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    others = set(multiprocessing.active_children())
    # processes are started afresh, and read this
    os.environ.update(dict.fromkeys(THREADS, "1"))
    pool = ProcessPoolExecutor(
        jobs or os.cpu_count() or 1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_follow,
    )
    try:
        yield pool
        pool.shutdown()
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise VeilstreamError(
                "a process that computed a part was ended from outside, perhaps for want of "
                "memory; the operator must free some, or give fewer --jobs"
            ) from error
        raise
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _follow() -> None:
    """Leave interrupts of the terminal to the parent, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
