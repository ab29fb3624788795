"""A Redis that a test may harm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.local.processes import free_port
from infra.local.services import Redis
from pipeline.settings import Settings
from tests.stage import until_it_answers


@contextmanager
def redis_server(folder: Path) -> Iterator[Settings]:
    """Run a Redis and yield its address."""
    service, port = Redis(folder), free_port()
    with service.log.open("ab") as log:
        process = subprocess.Popen(service.command(port), stdin=subprocess.DEVNULL, stdout=log)
    try:
        until_it_answers(process, lambda: service.answers(port), service.log)
        yield Settings(redis=service.address(port))
    finally:
        process.kill()
        process.wait()
