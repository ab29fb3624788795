"""How far a long command is, for people at a terminal, and its estimates beside that."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from infra.process import AGAIN
from pipeline.api.table import interval, line, table, value
from pipeline.cli.context import say
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.study.model import Study
from pipeline.words import counted


class Bar:
    """A bar on standard error with rate and time left; without a terminal, a line a minute."""

    def __init__(self, what: str) -> None:
        self.console = Console(stderr=True)
        self._what, self._due = what, time.monotonic() + AGAIN
        self._progress = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=None, rate="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, done: int, total: int) -> None:
        """Move it."""
        if not self.console.is_terminal:
            if time.monotonic() >= self._due:
                self._due = time.monotonic() + AGAIN
                say(f"{done} of {total} {self._what}")
            return
        speed = self._progress.tasks[0].speed
        rate = "" if speed is None else f"{speed:,.0f}/s"
        self._progress.update(self._task, completed=done, total=total, rate=rate)


class Speed:
    """Says on standard error how many records were read, at most once a second."""

    def __init__(self) -> None:
        self._doing, self._records, self._begun, self._last = "", 0, 0.0, 0.0

    def __call__(self, doing: str, records: int, share: float | None = None) -> None:
        """Tell of records that were read, and of how large a share of all they are, if known."""
        now = time.monotonic()
        if doing != self._doing or records <= self._records:
            self._doing, self._begun, self._last = doing, now, now
        self._records = records
        if now - self._last < 1:
            return
        self._last, taken = now, now - self._begun
        line = f"{doing}: {counted(records, 'record')}, {records / taken:.0f} a second"
        if share:
            line += f", {taken * (1 - share) / share:.0f} s left"
        say(line)


class Screen:
    """Estimates as lines, and the last one as a table at a terminal."""

    def __init__(self, study: Study, bar: Bar) -> None:
        self._study, self._bar = study, bar
        self._terminal = Console().is_terminal

    def show(self, message: EstimateMessage) -> None:
        """Print the line of an estimate; above the bar, where both are on one terminal."""
        if self._terminal and self._bar.console.is_terminal:
            self._bar.console.print(estimate_line(message), highlight=False, soft_wrap=True)
        else:
            click.echo(estimate_line(message))

    def end(self, message: EstimateMessage) -> None:
        """Print the table of the last estimate, if somebody looks."""
        if self._terminal:
            Console().print(table(message, self._study))


def estimate_line(message: EstimateMessage) -> str:
    """Return an estimate as one line: time, state, coefficients with their intervals."""
    values = " ".join(
        f"{row.name}={value(message, row.value, 3)}"
        + ("" if row.interval is None else f" {interval(message, row.interval)}")
        for row in message.coefficients
    )
    return f"{message.published_at} {line(message)}; {values}"


def put_line(message: EstimateMessage) -> None:
    """Print an estimate as a line of JSON."""
    sys.stdout.write(write_estimate(message).decode() + "\n")
    sys.stdout.flush()
