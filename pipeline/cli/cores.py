"""Processes that share the cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

#: What numerical libraries read when they are loaded.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def one_core_each(jobs: int | None) -> Iterator[Executor]:
    """Give processes that compute on one core each; by default as many as there are cores."""
    before = {name: os.environ.get(name) for name in THREADS}
    # processes are started afresh, and read this
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
            yield pool
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
