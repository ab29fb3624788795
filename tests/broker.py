"""A real MQTT broker in a process of its own, which for amqtt is forked (`tests/forks.py`).

Where mosquitto is installed, tests run on it as well, and speak MQTT 5 to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.local.processes import HOST, free_port
from tests.forks import FORKS
from tests.stage import Process, until_it_answers

#: Whom a broker with users lets in.
USER, PASSWORD = "reader", "right-password"
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
#: Brokers that are here.
KINDS = ["amqtt", *(["mosquitto"] if MOSQUITTO else [])]


@contextmanager
def broker(
    folder: Path, kind: str = "amqtt", *, users: bool = False, certificate: Path | None = None,
    port: int | None = None, ahead: int = 20,
) -> Iterator[int]:  # fmt: skip
    """Run a broker and yield its port; it ends by SIGKILL.

    Parameters
    ----------
    users
        Whether it lets in only `USER`.
    certificate
        A PEM file: then it speaks TLS.
    port
        Where it listens; by default a free one.
    ahead
        Messages that mosquitto sends before the first is acknowledged; 20 is its own number.
    """
    port = port or free_port()
    process: Process
    with (folder / "broker.log").open("ab") as log:
        if kind == "amqtt":
            config = json.dumps(_amqtt(folder, port, users, certificate))
            if FORKS.usable:
                process = FORKS.start([config], os.environ, log, module="tests.broker")
            else:
                command = [sys.executable, "-m", "tests.broker", config]
                process = subprocess.Popen(command, stdout=log, stderr=log)
        else:
            command = _mosquitto(folder, port, users, certificate)
            with (folder / "mosquitto.conf").open("a") as settings:
                settings.write(f"max_inflight_messages {ahead}\n")
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until_it_answers(process, lambda: _answers(port), folder / "broker.log")
        yield port
    finally:
        process.kill()
        process.wait()


def _amqtt(folder: Path, port: int, users: bool, certificate: Path | None) -> dict[str, Any]:
    listener: dict[str, Any] = {"type": "tcp", "bind": f"{HOST}:{port}"}
    if certificate is not None:
        listener |= {"ssl": True, "certfile": str(certificate), "keyfile": str(certificate)}
    rooms = "amqtt.plugins.authentication"
    plugins: dict[str, Any] = {f"{rooms}.AnonymousAuthPlugin": {"allow_anonymous": not users}}
    if users:
        from pwdlib.hashers.argon2 import Argon2Hasher  # noqa: PLC0415

        # a guess may be cheap here: each connection would cost a fifth of a second of the processor
        hasher = Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1)
        (folder / "users").write_text(f"{USER}:{hasher.hash(PASSWORD)}\n")
        plugins = {f"{rooms}.FileAuthPlugin": {"password_file": str(folder / "users")}}
    return {"listeners": {"default": listener}, "plugins": plugins}


def _mosquitto(folder: Path, port: int, users: bool, certificate: Path | None) -> list[str]:
    lines = ["user root", "persistence false", f"listener {port} {HOST}"]
    lines += [f"allow_anonymous {str(not users).lower()}", "max_queued_messages 0"]
    if users:
        made = folder / "users"
        subprocess.run(["mosquitto_passwd", "-c", "-b", made, USER, PASSWORD], check=True)
        lines.append(f"password_file {made}")
    if certificate is not None:
        lines += [f"certfile {certificate}", f"keyfile {certificate}"]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    return [str(MOSQUITTO), "-c", str(folder / "mosquitto.conf")]


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


async def _run(config: dict[str, Any]) -> None:
    from amqtt.broker import Broker  # noqa: PLC0415

    await Broker(config).start()
    await asyncio.Event().wait()


def main() -> None:
    """Run amqtt with the settings that are the only argument."""
    asyncio.run(_run(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
