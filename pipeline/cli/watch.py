"""`veilstream watch` and `veilstream page`: the live estimates of a study."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from infra.local import connected
from infra.process import AGAIN, Waiting
from infra.requests import is_loopback
from pipeline.api.feed import Feed, lacks_topics, newest_message, of_another_revision
from pipeline.api.table import Forecast, on_screen
from pipeline.cli.context import FILE, SAVE_MODEL, STUDY, TIMEOUT, live_task_of, save_model, say
from pipeline.cli.progress import estimate_line
from pipeline.errors import ConfigError
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import method_of
from pipeline.page.content import Watched
from pipeline.page.server import PageServer, Reading
from pipeline.settings import Settings
from pipeline.study.model import Study


@click.command()
@STUDY
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each estimate.")
@click.option(
    "--from", "start", type=click.Choice(["latest", "beginning"]), default="latest",
    show_default=True, help="Where to start.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many estimates.")
@TIMEOUT
@SAVE_MODEL
def watch(
    *, study: Path, as_json: bool, start: str, count: int | None, timeout: float | None,
    save_model_to: Path | None,
) -> None:  # fmt: skip
    """Follow the estimates of STUDY: a live table, or lines where there is no terminal.

    With --save-model: write the newest estimate to a file, and end.
    """
    if save_model_to is not None and (as_json or count or timeout or start != "latest"):
        raise click.UsageError(
            "--save-model ends at once: without --json, --from, --count and --timeout"
        )
    task = live_task_of(study, "`veilstream watch`")
    settings = connected(Settings.read())
    if save_model_to is not None:
        save_model(task, newest_message(task.study, settings), save_model_to)
        return
    waits = Waiting(first=AGAIN, timeout=timeout)
    await_topics(task.study, settings, waits)
    feed = Feed(task.study, settings, beginning=start == "beginning", waits=waits)
    shown = _Shown(task.study, feed, as_json=as_json, whole=start == "beginning")
    try:
        # what is there already is as old as it says
        for message, raw in feed.until_now():
            shown.show(message, raw, live=False)
            if shown.count == count:
                return
        if not shown.count:
            ends = "" if timeout else "; Ctrl-C ends the wait, and --timeout SECONDS limits it"
            say(
                "no estimate yet, waiting: it takes a `veilstream worker` and a "
                f"`veilstream produce` of this study{ends}"
            )
        for message, raw in feed:
            shown.show(message, raw, live=True)
            if shown.count == count:
                return
    finally:
        shown.end()
        feed.close()


class _Shown:
    """Estimates on standard output: a table that is drawn anew at a terminal, else lines.

    whole: The past is shown, too: those lines say nothing of what comes.
    """

    def __init__(self, study: Study, feed: Feed, *, as_json: bool, whole: bool) -> None:
        self._study, self._feed, self._as_json, self._whole = study, feed, as_json, whole
        console = Console()
        drawn = console.is_terminal and not as_json
        self._live = Live(console=console, auto_refresh=False) if drawn else None
        self._forecast, self.count = Forecast(), 0
        self._newest: EstimateMessage | None = None
        self._silent, self._other, self._told = False, "", ""
        feed.say = self._silence
        if self._live:
            self._live.start()

    def show(self, message: EstimateMessage, raw: bytes, *, live: bool) -> None:
        """Show the next one."""
        self._newest, self.count, self._silent = message, self.count + 1, False
        if (live or not self._whole) and not self._other:
            self._other = of_another_revision(self._study, message)
            if self._other and not self._live:
                say(f"WARNING: {self._other}")
        self._forecast.take(message, live=live)
        if self._as_json:
            sys.stdout.write(raw.decode() + "\n")
            sys.stdout.flush()
        elif self._live:
            self._draw()
        else:
            when = self._when() if live or not self._whole else ""
            own = method_of(self._study).report.lines(self._study, message.details)
            click.echo("; ".join(filter(None, [estimate_line(message), *own, when])))

    def end(self) -> None:
        """Leave the last one on the screen."""
        if self._live:
            self._live.stop()

    def _silence(self, line: str) -> None:
        told = self._forecast.told()
        if self._live:
            if told != self._told:
                self._draw()
        # a log needs one line of a wait, however long it is
        elif not self._silent and (line or (told and self._forecast.stopped)):
            self._silent = True
            say("; ".join(filter(None, [line, told])))

    def _draw(self) -> None:
        if self._live and self._newest:
            self._told = self._forecast.told()
            other = f"WARNING: {self._other}" if self._other else ""
            words = "; ".join(filter(None, [other, self._when()]))
            console = self._live.console
            shown = on_screen(self._newest, self._study, console, words)
            self._live.update(shown, refresh=True)

    def _when(self) -> str:
        return "; ".join(filter(None, [self._forecast.told(), self._feed.warning]))


def await_topics(study: Study, settings: Settings, waits: Waiting) -> None:
    """Wait for the topics of a study that nobody has begun, and say so once.

    Raises WaitTimeout where `waits` has one.
    """
    told = False
    while lacking := lacks_topics(study, settings):
        if not told:
            say(f"{lacking}; waiting")
        told = True
        waits.hint("an estimate")
        time.sleep(1.0)


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
