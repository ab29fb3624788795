"""Messages a second from an MQTT broker to rows of the source: ten features, QoS 1.

`python -m benchmarks.mqtt_source [--records N]`. Runs mosquitto where it is installed, else amqtt,
and another process that publishes. Counts processor time of this process alone, which stores each
message durably before it acknowledges it. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paho.mqtt.client as mqtt

from infra.local.ports import HOST
from pipeline.settings import Settings
from producers.sources import open_source
from tests.broker import KINDS, PASSWORD, USER, broker

TOPIC, UNDER_WAY = "plant/1", 1000


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--publish", type=int, help="publish to this port instead")
    chosen = parser.parse_args()
    if chosen.publish:
        publish(chosen.publish, chosen.records)
        return
    with tempfile.TemporaryDirectory() as name, broker(Path(name), KINDS[-1], users=True) as port:
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
        "broker": KINDS[-1], "messages": came,
        "per_second_of_processor_time": round(came / used), "per_second": round(came / lasted),
    }))  # fmt: skip


def publish(port: int, count: int) -> None:
    """Publish so many messages, and wait until the broker has acknowledged all."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.username_pw_set(USER, PASSWORD)
    client.max_inflight_messages_set(UNDER_WAY)
    client.connect(HOST, port)
    client.loop_start()
    text = json.dumps({f"x{at}": 0.1234 * at for at in range(10)} | {"y": "1"}).encode()
    sent = [client.publish(TOPIC, text, 1) for _ in range(count)]
    for one in sent:
        one.wait_for_publish(120)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
