"""Ask a server over a plain socket whether it takes requests.

A client library would do, but each brings its own retries and time limits; a start that polls every
few milliseconds wants one question and one answer.
"""

from __future__ import annotations

import socket
import struct

from infra.local.ports import HOST

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
