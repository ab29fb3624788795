"""On how many cores numerical libraries compute: they read that when they are loaded."""

from __future__ import annotations

import os

#: What they read.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Commands whose matrices are small: threads that share one wait for each other most of the time,
#: and on a busy machine nearly all of it.
SMALL = ("study", "fit", "doctor")


def for_command(name: str) -> None:
    """Let a command of `SMALL` that is about to be loaded compute on one core.

    Whoever has set a number keeps it.
    """
    if name in SMALL and not any(each in os.environ for each in THREADS):
        os.environ.update(dict.fromkeys(THREADS, "1"))
