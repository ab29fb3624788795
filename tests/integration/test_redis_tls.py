"""Redis over TLS, as an address says it.

The redis-server that comes with the local runtime is built without TLS: here a door in front of it
has a certificate, as where stunnel or a provider's gateway stands before a Redis.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from infra.local.processes import HOST
from pipeline.errors import ConfigError, StoreError
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from state import RedisStore
from state.connection import redis_client
from tests.builders import folded, sample_log, study_text
from tests.secured import Authority

TASK = task_of(parse_study(study_text(p=1, records=8, name="tls")))


@pytest.fixture
def door(redis_url: str, tmp_path: Path) -> Iterator[int]:
    """Yield the port of a door with TLS to the tests' Redis."""
    authority = Authority("throwaway")
    authority.write(tmp_path / "ca.pem")
    Authority("stranger").write(tmp_path / "other.pem")
    authority.issue(tmp_path / "server.pem", HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    inside = int(redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    with socket.create_server((HOST, 0)) as listening:
        threading.Thread(target=serve, args=(listening, context, inside), daemon=True).start()
        yield listening.getsockname()[1]


def serve(listening: socket.socket, context: ssl.SSLContext, inside: int) -> None:
    with suppress(OSError):
        while True:
            outer, _ = listening.accept()
            threading.Thread(target=admit, args=(outer, context, inside), daemon=True).start()


def admit(outer: socket.socket, context: ssl.SSLContext, inside: int) -> None:
    """Pass on what one visitor and Redis say: a question at a time, and its answer."""
    with (
        suppress(OSError),
        context.wrap_socket(outer, server_side=True) as encrypted,
        socket.create_connection((HOST, inside)) as plain,
    ):
        threading.Thread(target=pour, args=(plain, encrypted), daemon=True).start()
        pour(encrypted, plain)


def pour(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)


def store_at(port: int, authority: Path | None, scheme: str = "rediss") -> RedisStore:
    named = "" if authority is None else f"?ssl_ca_certs={authority}"
    return RedisStore(redis_client(Settings(redis=f"{scheme}://{HOST}:{port}/0{named}")), TASK)


def test_a_state_is_stored_and_loaded_over_tls(door: int, tmp_path: Path) -> None:
    store = store_at(door, tmp_path / "ca.pem")
    state = folded(TASK, sample_log(TASK, releases=4, clients=2))
    store.replace(0, state)
    assert store.load(0).fields(everything=True) == state.fields(everything=True)


@pytest.mark.parametrize("authority", ["other.pem", None], ids=["another", "none"])
def test_a_redis_of_another_authority_is_not_trusted(
    door: int, tmp_path: Path, authority: str | None
) -> None:
    with pytest.raises(ConfigError, match="ssl_ca_certs"):
        store_at(door, None if authority is None else tmp_path / authority).load(0)


def test_a_redis_behind_tls_tells_nothing_in_clear(door: int) -> None:
    with pytest.raises(StoreError, match="VEILSTREAM_REDIS"):
        store_at(door, None, "redis").load(0)
