"""Keep a runtime up: start again what dies, and end both when told to."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from infra.local.runtime import LocalRuntime
from infra.local.state import hold
from pipeline.errors import RuntimeSetupError

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
