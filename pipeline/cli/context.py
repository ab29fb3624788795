"""What commands share: the study argument, options, output, and what is said while they compute."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec.structs import replace

from infra import process as saying
from infra.keyring import StudyPairs, made_study, pinned, study_path
from infra.process import AGAIN, FIRST
from pipeline.errors import ConfigError
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.results import FitMessage
from pipeline.methods import guarantee_of, require_live
from pipeline.methods import task_of as make_task
from pipeline.prediction.estimators import rule_of
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study.data import OF_TRIALS
from pipeline.study.model import Study
from pipeline.study_file.load import load_study
from pipeline.words import SECONDS, counted

if TYPE_CHECKING:
    from rich.console import RenderableType


Command = TypeVar("Command", bound=Callable[..., Any])

#: Says something to people.
say = saying.say
#: Characters of a line where there is no terminal: more than any table has.
WIDE = 1000
FILE = click.Path(dir_okay=False, path_type=Path)
STUDY = click.argument("study", type=FILE)


class Number(click.FloatRange):
    """A number in a range, and finite: NaN lies in every one, and would be no limit."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return it; click's error if it is none."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


class Renamed(click.Option):
    """An option whose names behind the first are those that it once had: taken, and not shown."""

    def __init__(self, names: Sequence[str], **given: Any) -> None:
        super().__init__(names, **given)
        self.opts, self._earlier = self.opts[:1], self.opts[1:]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know all names; see click."""
        shown, self.opts = self.opts, [*self.opts, *self._earlier]
        super().add_to_parser(parser, ctx)
        self.opts = shown


#: Where records come from.
SOURCE = ("--source", "--input", "source")
READ = click.option(
    *SOURCE, cls=Renamed, required=True, help="A .csv, .jsonl, .ndjson or .parquet file, or -."
)
FORMAT = click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True,
    help="What standard input holds.",
)  # fmt: skip
CLIENT_COLUMN = click.option(
    "--client-column", help="Column that says whose record it is; default: one client."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")

#: What a column of times may hold, as `pipeline.records.values.time_of` reads it.
TIMES = "RFC 3339 with a zone (2026-03-01T08:00:00Z), or seconds or milliseconds since 1970"
TIMEOUT = click.option(
    "--timeout", metavar="SECONDS", type=Number(min=0, min_open=True),
    help="End with exit code 26 after so many seconds of one wait.  [default: wait for ever]",
)  # fmt: skip
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
    return _said(make_task(_load(path)))


def live_task_of(path: Path, doing: str, level: str | None = None) -> Task:
    """Load a study file for a live stream, as `task_of`.

    doing: Who asks, such as "a worker".
    level: As `Task` takes it.

    Raises ConfigError if its kind of estimator runs in `veilstream fit` alone, or it has no such
    level.
    """
    study = _load(path)
    require_live(study, doing)
    return _said(make_task(study, level))


def _load(path: Path) -> Study:
    """Load a study file; in a trial under a name that says so, with a key of its own."""
    study = load_study(path)
    if not Settings.read().trial:
        return study
    heading = replace(study.study, name=f"{study.name[:57]}{OF_TRIALS}")
    trust = study.trust and replace(study.trust, key=None)
    return replace(study, study=heading, trust=trust)


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
    return float(int(found[1]) * SECONDS[found[2]])


def save_model(task: Task, message: EstimateMessage | FitMessage, path: Path) -> None:
    """Write an estimate as a model file, and say so.

    Raises ConfigError if it belongs to another study or revision, or the file cannot be written;
    NumericError if nothing has been folded yet.
    """
    rule_of(task, message).save(path)
    say(f"wrote {path}")


def study_keys(study: Study, settings: Settings, say: Callable[[str], None] = say) -> StudyPairs:
    """Return the keys of a study, made if it has none, and say so."""
    path = study_path(settings, study.name)
    if not path.exists():
        if pinned(settings, study.name) is not None:
            raise ConfigError(
                f"study {study.name!r} has a key that this folder has pinned, and no file {path}: "
                "the operator must copy the key file here from where it was made, or name it in "
                "VEILSTREAM_STUDY_KEY; only if it is lost for good, remove the .pinned file "
                "beside it and make a new one (docs/admission.md)"
            )
        say(f"making the key of study {study.name!r}: {path}; keep a copy of it apart")
    return made_study(settings, study.name)


def show(*drawn: RenderableType) -> None:
    """Print tables whole: a terminal folds their cells, a file has lines as long as they are."""
    from rich.console import Console  # noqa: PLC0415  an import takes a tenth of a second

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for one in drawn:
        for table in (one, *getattr(one, "renderables", ())):
            for column in getattr(table, "columns", ()):
                column.overflow = "fold"
        console.print(one)


def put(data: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")
    sys.stdout.flush()


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
