"""What a worker that folds nothing waits for, once a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agents.folding import Folding
from infra.waiting import AGAIN, Waiting


async def tell_of_waits(folding: Folding, say: Callable[[str], None]) -> None:
    """Say what is waited for until cancelled."""
    waits, before = Waiting(first=AGAIN), folding.releases
    while True:
        await asyncio.sleep(1.0)
        if folding.releases != before:
            before = folding.releases
            waits.hint("")
        elif line := waits.hint("releases" if folding.partitions else "partitions to fold"):
            say(line)
