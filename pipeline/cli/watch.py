"""`veilstream watch`, which says as well when intervals come at the rate of records so far.

That is a consumer's own arithmetic: estimates themselves are a function of the log alone.
"""

from __future__ import annotations

import sys
from collections import deque
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from infra.addresses import connected
from pipeline.cli.context import SAVE_MODEL, STUDY, live_task_of, save_model, say
from pipeline.cli.progress import estimate_line
from pipeline.library.feed import PATIENCE_SECONDS, Feed, newest_estimate
from pipeline.library.table import table
from pipeline.messages.estimate import EstimateMessage
from pipeline.settings import Settings

#: The rate is that over so many estimates.
LOOK_BACK = 20


class Pace:
    """The rate of record slots over the last estimates that were seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=LOOK_BACK)

    def told(self, message: EstimateMessage) -> str:
        """Take the next estimate; return in words when all intervals come, or nothing."""
        now = datetime.fromisoformat(message.published_at).timestamp()
        self._seen.append((now, message.records))
        missing = message.progress.missing_records if message.progress else None
        (since, before), elapsed = self._seen[0], now - self._seen[0][0]
        if not missing or elapsed <= 0 or message.records <= before:
            return ""
        seconds = missing * (now - since) / (message.records - before)
        for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
            if seconds >= 2 * length or unit == "second":
                break
        return f"all intervals in about {seconds / length:,.0f} {unit}s at the present rate"


@click.command()
@STUDY
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each estimate.")
@click.option(
    "--from", "start", type=click.Choice(["latest", "beginning"]), default="latest",
    show_default=True, help="Where to start.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many estimates.")
@SAVE_MODEL
def watch(
    study: Path, as_json: bool, start: str, count: int | None, save_model_to: Path | None
) -> None:
    """Follow the estimates of STUDY: a live table, or lines where there is no terminal.

    With --save-model: write the newest estimate to a file, and end.
    """
    if save_model_to is not None and (as_json or count or start != "latest"):
        raise click.UsageError("--save-model ends at once: without --json, --from and --count")
    task = live_task_of(study, "`veilstream watch`")
    settings = connected(Settings.read())
    if save_model_to is not None:
        save_model(task, newest_estimate(task.study, settings), save_model_to)
        return
    feed = Feed(task.study, settings, beginning=start == "beginning")
    console = Console()
    drawn = console.is_terminal and not as_json
    live = Live(console=console, auto_refresh=False) if drawn else None
    seen, pace = 0, Pace()
    if live is None:
        feed.say = say
    try:
        if live:
            live.start()
        if not feed.ready(PATIENCE_SECONDS):
            say(
                "no estimate yet, waiting: it takes a `veilstream worker` and a "
                "`veilstream produce` of this study"
            )
        for message, raw in feed:
            when = "; ".join(filter(None, [pace.told(message), feed.warning]))
            if as_json:
                sys.stdout.write(raw.decode() + "\n")
                sys.stdout.flush()
            elif live:
                live.update(Group(table(message, task.study), Text(when)), refresh=True)
            else:
                click.echo("; ".join(filter(None, [estimate_line(message), when])))
            seen += 1
            if count is not None and seen >= count:
                return
    finally:
        if live:
            live.stop()
        feed.close()
