"""`veilstream page`."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import click

from infra.local import connected
from infra.process import Waiting
from infra.requests import is_loopback
from pipeline.cli.context import FILE, STUDY, TIMEOUT, live_task_of, say
from pipeline.cli.watch import await_topics
from pipeline.errors import ConfigError
from pipeline.page.content import Watched
from pipeline.page.reading import Reading
from pipeline.page.server import PageServer
from pipeline.settings import Settings

#: Where a page listens unless told otherwise.
PORT = 8787
#: A token that somebody chooses must be as hard to guess as one of ours.
LEAST_TOKEN = 16


@click.command()
@STUDY
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True,
    help="Listen on this port; 0 for any that is free.",
)  # fmt: skip
@click.option(
    "--token-file", type=FILE,
    help=(
        "A file with the token that browsers must show. Without one, a token is drawn at each "
        "start, except on loopback."
    ),
)  # fmt: skip
@TIMEOUT
def page(study: Path, host: str, port: int, token_file: Path | None, timeout: float | None) -> None:
    """Show the live estimates of STUDY in a browser, until stopped.

    Estimates with intervals over time, clients, budget, recoveries. It only reads what is
    published, and needs no Redis and no private key.
    """
    token = _token(token_file) if token_file else ""
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    task = live_task_of(study, "`veilstream page`")
    settings = connected(Settings.read())
    await_topics(task.study, settings, Waiting(timeout=timeout))
    watched = Watched(task.study)
    reading = Reading(task.study, settings, watched)

    def tell(bound: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        say(f"{address(shown, bound, token)} (stop with Ctrl-C)")
        if not is_loopback(host):
            say(
                "WARNING: what is read here is not encrypted on its way: put a server with TLS in "
                "front, or use an SSH tunnel to a page on loopback"
            )

    reading.start()
    try:
        asyncio.run(_serve(PageServer(watched, token), host, port, tell))
    finally:
        reading.stop()


def address(host: str, port: int, token: str) -> str:
    """Return what a browser has to open."""
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "")


async def _serve(server: PageServer, host: str, port: int, tell: Callable[[int], None]) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    tell(await server.start(host, port))
    try:
        await stopped.wait()
    finally:
        await server.stop()


def _token(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: {path} cannot be read; name a text file") from error
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{{LEAST_TOKEN},}}", text):
        raise ConfigError(
            f"--token-file: the token must have at least {LEAST_TOKEN} letters, digits, - or _"
        )
    return text
