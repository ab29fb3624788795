"""Servers on loopback answer nobody who has made another name point to this machine."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.folding import Meters
from agents.metrics import Health
from infra.local.processes import free_port
from infra.requests import ELSEWHERE
from producers.metrics import serving
from producers.store import ClientStore
from tests.builders import task_of

OWN = ("127.0.0.1", "localhost", "[::1]", "127.0.0.2")
OTHERS = ("example.com", "127.0.0.1.example.com", "198.51.100.7", "[bad", "192.168.1.4")


def asked(port: int, path: str, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{path}", headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def check(port: int, *paths: str) -> None:
    for path in paths:
        for host in OWN:
            status, text = asked(port, path, host)
            assert status in (200, 503), (path, host)
            assert text != ELSEWHERE
        for host in OTHERS:
            assert asked(port, path, host) == (403, ELSEWHERE), (path, host)


def test_a_worker_answers_no_other_name() -> None:
    folding: Any = SimpleNamespace(partitions={}, releases=0, meters=Meters())
    publishing: Any = SimpleNamespace(owner=False, message=None)
    progress: Any = SimpleNamespace(left={})
    health, port = Health(folding, publishing, progress), free_port()

    async def run() -> None:
        await health.start("127.0.0.1", port)
        await asyncio.to_thread(check, port, "metrics", "healthz")

    asyncio.run(run())


@pytest.mark.parametrize("path", ["metrics", ""])
def test_a_client_answers_no_other_name(tmp_path: Path, path: str) -> None:
    with ClientStore(tmp_path / "north.db", "north"):
        pass
    port = free_port()
    with serving(port, tmp_path / "north.db", task_of()):
        check(port, path)
        assert "veilstream_client_epsilon_spent" in asked(port, path, "localhost")[1]
