"""What a command that only computes says of itself, where it takes more than some seconds.

How far a long command is, for people at a terminal, and its estimates beside that.

What commands share: the study argument, options that several have, output.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from infra import saying
from infra.waiting import AGAIN, FIRST
from pipeline.api.text import interval, line, table, value
from pipeline.errors import ConfigError
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.results import FitMessage
from pipeline.methods import require_live
from pipeline.methods import task_of as make_task
from pipeline.methods.offline import guarantee_of
from pipeline.prediction.estimators import rule_of
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study_file.load import load_study
from pipeline.words import counted

if TYPE_CHECKING:
    from rich.console import RenderableType


#: What takes long in all that a study file means, whatever its data.
_WHY = (
    "The time grows steeply with the number of coefficients, because every noised curvature has a "
    "row and a column for each. Ctrl-C stops it; nothing is changed"
)


class Work:
    """How far a computation for a study is.

    size: Number of coefficients.
    what: What is computed, such as "a plan".
    """

    def __init__(self, what: str, size: int) -> None:
        self._what, self._size, self._begun = what, size, time.monotonic()
        self._done = self._total = 0

    def report(self, done: int, total: int) -> None:
        """Take in that `done` of `total` parts, about equally long ones, are computed."""
        self._done, self._total = done, total

    def said(self) -> str:
        """Return the line that says how far it is, and about how long the rest takes."""
        taken = time.monotonic() - self._begun
        line = f"computing {self._what} with {counted(self._size, 'coefficient')} for {taken:.0f} s"
        if self._done:
            left = taken * (self._total - self._done) / self._done
            line += f": {self._done} of {self._total} designs, about {max(left, 1):.0f} s left"
        return f"{line}. {_WHY}"


@contextmanager
def while_computing(said: Callable[[], str], first: float = FIRST) -> Iterator[None]:
    """Say on standard error that a computation goes on: after `first` seconds, then each minute."""
    ended = threading.Event()

    def tell() -> None:
        wait = first
        while not ended.wait(wait):
            say(said())
            wait = AGAIN

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


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


Command = TypeVar("Command", bound=Callable[..., Any])

#: Says something to people.
say = saying.say
#: Characters of a line where there is no terminal: more than any table has.
WIDE = 1000
FILE = click.Path(dir_okay=False, path_type=Path)
STUDY = click.argument("study", type=FILE)
INPUT = click.option(
    "--input", "source", required=True, help="A .csv, .jsonl, .ndjson or .parquet file, or -."
)
FORMAT = click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True,
    help="What standard input holds.",
)  # fmt: skip
CLIENT_COLUMN = click.option(
    "--client-column", help="Column that says whose record it is; default: one client."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")

ACCEPT_LOSS = click.option(
    "--accept-loss", is_flag=True, help="Begin with what is left of the log, if its start is gone."
)

SAVE_MODEL = click.option(
    "--save-model", "save_model_to", type=FILE,
    help="Write the estimate as a model file, for `veilstream predict --model`.",
)  # fmt: skip


def confirmed(question: str) -> Callable[[Command], Command]:
    """Have a command ask before it begins, unless it is called with --yes."""

    def ask(context: click.Context, _: click.Parameter, yes: bool) -> None:
        # a shell that completes words runs nothing
        if not (yes or context.resilient_parsing):
            agree(question)

    return click.option("--yes", is_flag=True, expose_value=False, callback=ask, help="Do not ask.")


def agree(question: str) -> None:
    """Ask, and end the command unless the answer is yes."""
    try:
        agreed = click.confirm(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(
            "nobody answered, and nothing was done: where there is no terminal to ask at, "
            "--yes says that you are sure"
        ) from None
    if not agreed:
        raise click.Abort


class Group(click.Group):
    """A group that lists its commands with whole sentences, over as many lines as they take."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them; see click."""
        rows = [
            (name, self.commands[name].get_short_help_str(1000)) for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def task_of(path: Path) -> Task:
    """Load a study file and say loudly if it keeps no privacy."""
    return _said(make_task(load_study(path)))


def live_task_of(path: Path, doing: str, level: str | None = None) -> Task:
    """Load a study file for a live stream, as `task_of`.

    doing: Who asks, such as "a worker".
    level: As `Task` takes it.

    Raises ConfigError if its kind of estimator runs in `veilstream fit` alone, or it has no such
    level.
    """
    study = load_study(path)
    require_live(study, doing)
    return _said(make_task(study, level))


def _said(task: Task) -> Task:
    if not task.study.private:
        say(
            f'WARNING: study {task.study.name!r} has mechanism = "{task.study.privacy.mechanism}": '
            f"nobody's data is protected ({guarantee_of(task).guarantee})"
        )
    return task


def seconds_of(text: str, option: str) -> float:
    """Return a time that was given as 30s, 10m, 1h or 1d; ConfigError if it is none."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text, flags=re.ASCII)
    if found is None or not int(found[1]):
        raise ConfigError(f"{option}: it must be a time, such as 30s, 10m, 1h or 1d")
    return float(int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]])


def save_model(task: Task, message: EstimateMessage | FitMessage, path: Path) -> None:
    """Write an estimate as a model file, and say so.

    Raises ConfigError if it belongs to another study or revision, or the file cannot be written;
    NumericError if nothing has been folded yet.
    """
    rule_of(task, message).save(path)
    say(f"wrote {path}")


def show(*drawn: RenderableType) -> None:
    """Print tables whole: a terminal folds their cells, a file has lines as long as they are."""
    from rich.console import Console  # noqa: PLC0415  an import takes a tenth of a second

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for one in drawn:
        for part in (one, *getattr(one, "renderables", ())):
            for column in getattr(part, "columns", ()):
                column.overflow = "fold"
        console.print(one)


def put(data: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")
    sys.stdout.flush()
