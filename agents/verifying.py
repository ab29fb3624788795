"""A worker that verifies itself: `state verify --every` beside it, in a process of low priority.

The process that publishes runs it. A difference ends the worker, and is noted with the state, so
that no other one goes on with it; faults that pass are said and tried again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents.meters import Meters
from pipeline.errors import StateError

#: Seconds between two looks at whether this worker publishes, and after a fault.
LOOK_SECONDS, AGAIN_SECONDS = 1.0, 60.0


class Verifying:
    """Runs the verification of a study while this worker publishes.

    study: The study file.
    every: Seconds between two comparisons.
    owner: Whether this worker publishes.
    say: Told of faults.
    """

    def __init__(
        self,
        study: Path,
        every: float,
        owner: Callable[[], bool],
        say: Callable[[str], None],
        meters: Meters,
    ) -> None:
        self._owner, self._say, self._meters = owner, say, meters
        self._folder, self._file, self._every = Path.cwd(), study.absolute(), every
        #: Seconds since 1970 of the last comparison that found no difference; None before it.
        self.verified_at: float | None = None
        #: How far each partition was the same then, and from where on.
        self.ranges: dict[int, tuple[int, int]] = {}

    async def run(self) -> None:
        """Verify while this worker publishes, until cancelled.

        Raises StateError if what is stored is not what the log folds to.
        """
        while True:
            if not self._owner():
                await asyncio.sleep(LOOK_SECONDS)
                continue
            code = await self._watch()
            if code == StateError.exit_code:
                raise StateError(
                    "the verification beside this worker has found that the stored state differs "
                    "from what the log folds to, or cannot be used; see its message above. "
                    "Nothing more is published: stop all workers and run `veilstream state "
                    "rebuild`"
                )
            if self._owner():
                self._say(f"verification ended with {code}; again in {AGAIN_SECONDS:.0f} s")
                await asyncio.sleep(AGAIN_SECONDS)

    async def _watch(self) -> int:
        """Run the process until it ends or this worker does not publish any more."""
        words = ["state", "verify", str(self._file), "--every", f"{self._every:g}s", "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pipeline.cli.main", *words, "--parent", str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, cwd=self._folder,
        )  # fmt: skip
        leaving = asyncio.create_task(self._ends_with_ownership(process))
        try:
            while process.stdout and (line := await process.stdout.readline()):
                self._take(json.loads(line))
            return await process.wait()
        finally:
            leaving.cancel()
            _end(process)

    def _take(self, told: dict[str, Any]) -> None:
        self._meters.verified(told["verified"])
        if told["verified"]:
            self.verified_at = time.time()
            self.ranges = {
                row["partition"]: (row["since"], row["next_offset"]) for row in told["partitions"]
            }

    async def _ends_with_ownership(self, process: asyncio.subprocess.Process) -> None:
        while self._owner():
            await asyncio.sleep(LOOK_SECONDS)
        _end(process)

    def facts(self, now: float) -> dict[str, Any]:
        """Return what `/healthz` says of it."""
        return {
            "every_seconds": self._every,
            "age_seconds": None if self.verified_at is None else round(now - self.verified_at, 3),
            "partitions": {
                str(n): {"since": since, "next_offset": end}
                for n, (since, end) in sorted(self.ranges.items())
            },
        }


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
