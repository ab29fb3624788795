"""The server that tests fork processes from: whoever else ends, those who ask are answered."""

from __future__ import annotations

import json
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from tests import forks


def main() -> None:
    """Be the process that is forked: there is nothing to do."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield where a server listens, which has imported nothing."""
    monkeypatch.setattr(forks, "MODULES", ())
    monkeypatch.setattr(forks, "_draw", lambda: None)
    name = f"\0forks-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen()
        pid = os.fork()
        if not pid:
            with suppress(BaseException):
                forks.serve(listener)
            os._exit(0)
    yield name
    os.waitpid(pid, 0)


def ask(server: socket.socket) -> None:
    """Ask for a process that does nothing."""
    request = json.dumps([__name__, [], dict(os.environ), os.getcwd()]).encode()
    with open(os.devnull, "r+b") as null:
        socket.send_fds(server, [request], [null.fileno()] * 4)


def test_others_are_answered_after_one_was_killed_before_its_answer(address: str) -> None:
    other = forks._connected(address)
    assert other is not None
    with other:
        for _ in range(3):
            killed = forks._connected(address)
            assert killed is not None
            ask(killed)
            killed.close()
            # the answer to the other one comes behind the one that nobody takes
            for _ in range(2):
                ask(other)
                assert int(other.recv(16)) > 0


def test_who_comes_as_the_server_ends_is_told_to_come_again(tmp_path: Path) -> None:
    """The system lets it in all the same."""
    name = tmp_path / "forks"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(name))
    listener.listen()
    ends = Timer(0.1, listener.close)
    ends.start()
    assert forks._connected(name) is None
    ends.join()
    assert forks._connected(name) is None


def test_who_starts_a_server_asks_it_even_if_its_address_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by one that found the former server gone, and is slow to say so."""
    servers: list[int] = []

    def started(listener: socket.socket) -> Any:
        (tmp_path / "forks").unlink()
        servers.append(os.fork())
        if not servers[-1]:
            with suppress(BaseException):
                forks.serve(listener)
            os._exit(0)
        return None

    monkeypatch.setattr(forks, "MODULES", ())
    monkeypatch.setattr(forks, "_draw", lambda: None)
    monkeypatch.setattr(forks, "_started", started)
    monkeypatch.setattr(forks.atexit, "register", lambda _: None)
    monkeypatch.setenv(forks.ROOM, str(tmp_path))
    try:
        forks.Forks()._serve().close()
        assert len(servers) == 1
        os.waitpid(servers.pop(), 0)
    finally:
        for left in servers:
            os.kill(left, signal.SIGKILL)
