"""Messages a second from an MQTT broker to rows of the source: ten features, QoS 1.

`python -m benchmarks.mqtt_source [--records N] [--ahead M]`. Runs mosquitto where it is installed,
else amqtt, and another process that publishes. Each message is stored durably before it is
acknowledged, and mosquitto sends M ahead (500; by itself it sends 20, and more waits for the answer
than for the source). Prints a line of JSON: messages per second of this process's processor time,
and of the clock.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.local.processes import HOST
from pipeline.settings import Settings
from producers.sources import open_source
from tests.broker import KINDS, PASSWORD, USER, broker

TOPIC, UNDER_WAY = "plant/1", 1000


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--ahead", type=int, default=500, help="messages that wait for an answer")
    parser.add_argument("--publish", type=int, help="publish to this port instead")
    chosen = parser.parse_args()
    if chosen.publish:
        publish(chosen.publish, chosen.records)
        return
    with (
        tempfile.TemporaryDirectory() as name,
        broker(Path(name), KINDS[-1], users=True, ahead=chosen.ahead) as port,
    ):
        source = open_source(
            f"mqtt://{HOST}:{port}/plant/+", None, folder=Path(name, "input"),
            settings=Settings(mqtt_username=USER, mqtt_password=PASSWORD),
        )  # fmt: skip
        begun, used, came = time.monotonic(), time.process_time(), 0
        command = [sys.executable, "-m", "benchmarks.mqtt_source", "--publish", str(port)]
        with subprocess.Popen([*command, "--records", str(chosen.records)]) as publishing:
            while came < chosen.records:
                slots = source.read(4096, 0.2)
                came += len(slots)
                if slots:
                    source.forget(slots[-1].position)
            used, lasted = time.process_time() - used, time.monotonic() - begun
            publishing.wait()
        source.close()
    print(json.dumps({
        "broker": KINDS[-1], "ahead": chosen.ahead, "messages": came,
        "per_second_of_processor_time": round(came / used), "per_second": round(came / lasted),
    }))  # fmt: skip


def publish(port: int, count: int) -> None:
    """Publish so many messages, and wait until the broker has acknowledged all.

    The packets are made once, as a client in Python is slower than what is measured.
    """
    text = json.dumps({f"x{at}": 0.1234 * at for at in range(10)} | {"y": "1"}).encode()
    # a minute of keep-alive: with none, amqtt answers no message
    hello = _word(b"MQTT") + b"\x04\xc2\x00\x3c" + _word(b"bench") + _word(USER.encode())
    with socket.create_connection((HOST, port)) as broker:
        answers = broker.makefile("rb")
        broker.sendall(_packet(0x10, hello + _word(PASSWORD.encode())))
        if answers.read(4)[3]:
            raise SystemExit("the broker does not take the publisher in")
        for first in range(0, count, UNDER_WAY):
            numbers = range(1, min(UNDER_WAY, count - first) + 1)
            name = _word(TOPIC.encode())
            packets = (_packet(0x32, name + at.to_bytes(2, "big") + text) for at in numbers)
            broker.sendall(b"".join(packets))
            answers.read(4 * len(numbers))
        broker.sendall(_packet(0xE0, b""))


def _word(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _packet(kind: int, body: bytes) -> bytes:
    low, high = len(body) & 127, len(body) >> 7
    return bytes([kind, low | 128, high] if high else [kind, low]) + body


if __name__ == "__main__":
    main()
