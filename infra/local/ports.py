"""Loopback ports: one that is free, a clear word about one that is not, and who answers on it.

A client library would do for asking, but each brings its own retries and time limits; a start that
polls every few milliseconds wants one question and one answer.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Container

from pipeline.errors import ConfigError, RuntimeSetupError

HOST = "127.0.0.1"

# Below the ports that Linux (32768 up) and macOS (49152 up) hand to outgoing connections. A client
# that retries a loopback port of that range while its server is down can connect to itself, and
# then the server never gets its port back.
PORTS = range(20_000, 32_768)


def free_port(avoid: Container[int] = ()) -> int:
    """Choose a loopback port that nobody listens on.

    avoid: Ports that are promised to somebody who does not listen yet.
    """
    # Random, so that two runtimes that start at once do not both take the first free one.
    for port in random.sample(PORTS, k=1000):
        if port not in avoid and is_free(port):
            return port
    raise RuntimeSetupError(f"no free port on {HOST} between {PORTS.start} and {PORTS.stop - 1}")


def is_free(port: int) -> bool:
    """Say whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As the servers do: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(service: str, port: int) -> None:
    """Refuse a port that another process holds.

    Raises ConfigError: the number is no port; RuntimeSetupError: somebody listens on it.
    """
    if not 1024 <= port <= 65_535:
        raise ConfigError(f"{service} port {port} is not between 1024 and 65535")
    if not is_free(port):
        raise RuntimeSetupError(
            f"{service} cannot listen on {HOST}:{port}: another process holds that port; "
            f"end that process, or choose another port with --{service}-port"
        )


PROBE_SECONDS = 2.0


def kafka_answers(port: int) -> bool:
    """Ask for the cluster's metadata: yes, when it lists a broker that takes requests.

    A broker that is still starting accepts connections before it is listed, and would then refuse
    to create topics.
    """
    client = b"veilstream"
    no_topics = 0
    # Metadata (3), version 1, correlation id 1.
    request = struct.pack(f">hhih{len(client)}si", 3, 1, 1, len(client), client, no_topics)
    answer = _ask(port, struct.pack(">i", len(request)) + request, answer_bytes=12)
    if answer is None:
        return False
    _size, correlation, brokers = struct.unpack(">iii", answer)
    return bool(correlation == 1 and brokers > 0)


def redis_answers(port: int) -> bool:
    """Send a PING: no, while it still loads its append-only file."""
    return _ask(port, b"PING\r\n", answer_bytes=7) == b"+PONG\r\n"


def _ask(port: int, request: bytes, *, answer_bytes: int) -> bytes | None:
    try:
        with socket.create_connection((HOST, port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                answer = stream.read(answer_bytes)
    except OSError:
        return None
    return answer if len(answer) == answer_bytes else None
