"""`veilstream replay`: the releases folded again, as they were or as if."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from agents.history import Interrupted
from agents.replay import Checked, Job, Outcome, Write, check, is_regular, run_replay, written
from infra.local import connected
from infra.process import Stopping
from pipeline.cli.context import ACCEPT_LOSS, AS_JSON, FILE, STUDY, Number, live_task_of, put, say
from pipeline.cli.progress import Bar, Screen, put_line
from pipeline.errors import ConfigError, NumericError
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.settings import Settings, extra
from pipeline.stream.replay import (
    altered,
    check_order,
    parse_bound,
    parse_change,
    parse_forgetting,
    parse_rhythm,
)
from pipeline.words import counted

NOTHING_SPENT = (
    "privacy spent: 0. The clients noised these releases before they sent them; whatever is "
    "computed from them again costs no record anything, and no ledger was opened"
)
NOTHING_KEPT = "privacy spent: 0. This study keeps no privacy that could be spent"


@click.command()
@STUDY
@click.option(
    "--from", "start", default="beginning", show_default=True,
    help="Where to begin: a time (RFC 3339, or -2h for two hours ago), or an offset of each "
    "partition, such as 0:1200,1:900.",
)  # fmt: skip
@click.option(
    "--to", "stop", default="end", show_default=True,
    help="Where to stop, written as for --from; the record at that time or offset is left out.",
)  # fmt: skip
@click.option(
    "--every", default="1000", show_default=True,
    help=(
        "Print an estimate after this many releases, or after this much time of the log, such as "
        "10s."
    ),
)  # fmt: skip
@click.option(
    "--speed", type=Number(min=0), default=0.0, show_default=True,
    help="How fast: 1 is the pace at which the releases came, 10 ten times that, 0 no pause.",
)  # fmt: skip
@click.option(
    "--forgetting", help="What if old records faded: a half-life such as '50000 records', or none."
)
@click.option("--level", help="What if: another confidence level, such as 0.9.")
@click.option("--interval", help="What if: another interval of ldp-sgd, such as plug-in.")
@click.option("--ridge", help="What if: another penalty, such as 0.01.")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE",
    help="What if: another value of a study key, such as estimator.level=0.9. May be repeated.",
)  # fmt: skip
@AS_JSON
@click.option("--out", type=FILE, help="A .jsonl or .parquet file.")
@click.option(
    "--check", "checking", is_flag=True,
    help="Compare every published estimate with the log, bit by bit, and do nothing else.",
)  # fmt: skip
@ACCEPT_LOSS
@click.option(
    "--accept-other-revisions", "accept_others", is_flag=True,
    help="Skip releases that were made under another revision of the study.",
)  # fmt: skip
def replay(
    study: Path, start: str, stop: str, every: str, speed: float, forgetting: str | None,
    level: str | None, interval: str | None, ridge: str | None, changes: tuple[str, ...],
    as_json: bool, out: Path | None, checking: bool, accept_loss: bool, accept_others: bool,
) -> None:  # fmt: skip
    """Replay the releases of STUDY: all, a range, or with other settings (what if).

    Estimates come at the rhythm of the log. Nothing in the live study is touched, and no privacy is
    spent. With --check, each published estimate is compared with a replay to its log positions; the
    command exits with 40 if one differs.
    """
    live = live_task_of(study, "`veilstream replay`")
    shorthands = (("level", level), ("ridge", ridge), ("path.interval", interval))
    texts = [*changes, *(f"estimator.{k}={v}" for k, v in shorthands if v is not None)]
    pairs = [parse_change(text) for text in texts]
    if forgetting is not None:
        pairs.append(("estimator.forgetting", parse_forgetting(forgetting)))
    wanted = dict(pairs)
    if len(wanted) < len(pairs):
        raise click.UsageError("a key is set twice: name each once, by its own option or --set")
    if as_json and out is not None:
        raise click.UsageError("--json and --out are two ways out: give one of them")
    if checking:
        whole = start == "beginning" and stop == "end"
        if wanted or out or accept_others or speed or not whole:
            raise click.UsageError("--check compares everything that was published: give it no "
                                   "range, no speed, no what-if and no output")  # fmt: skip
        _check(live, as_json=as_json, accept_loss=accept_loss)
        return
    task = task_of(altered(live.study, wanted))
    now, partitions = time.time(), live.study.stream.partitions
    first = parse_bound(start, "--from", now=now, partitions=partitions)
    last = parse_bound(stop, "--to", now=now, partitions=partitions)
    check_order(first, last)
    rhythm = parse_rhythm(every)
    if out is not None:
        _check_out(out)
    settings = connected(Settings.read())
    job = Job(first, last, rhythm, speed, accept_loss, accept_others)
    stopping = Stopping()
    with Bar("releases") as bar:
        screen = Screen(task.study, bar)

        def output_of() -> AbstractContextManager[Write]:
            return written(out) if out else nullcontext(put_line if as_json else screen.show)

        outcome = run_replay(
            task, live, settings, job, output_of, stopped=lambda: stopping.asked, report=bar.report
        )
    if outcome.interrupted:
        say("stopped: start the replay again")
        sys.exit(130)
    if not (as_json or out) and outcome.last is not None:
        screen.end(outcome.last)
    _say_summary(task, outcome)


def _check_out(out: Path) -> None:
    suffix = out.suffix.lower()
    if suffix == ".parquet":
        extra("pyarrow.parquet", "--out as Parquet")
        if not is_regular(out):
            raise ConfigError("--out: Parquet needs a regular file; name one, or write JSON lines")
    elif suffix not in (".jsonl", ".ndjson") and is_regular(out):
        raise ConfigError("--out: the file must end in .jsonl, .ndjson or .parquet")


def _say_summary(task: Task, outcome: Outcome) -> None:
    heads = [state.head for state in outcome.replay.partitions.values()]
    total = outcome.replay.total
    rate = total / outcome.seconds if outcome.seconds else 0.0
    say(
        f"replayed {total} offsets in {outcome.seconds:.1f} s ({rate:.0f}/s): "
        f"{counted(outcome.estimates, 'estimate')}"
    )
    for count, words in (
        (sum(head.duplicates for head in heads), "repeats dropped"),
        (sum(head.dead_letters for head in heads), "dead letters passed over"),
        (sum(head.erased for head in heads), "releases of erased clients passed over"),
    ):
        if count:
            say(f"{count} {words}")
    say(NOTHING_SPENT if task.study.private else NOTHING_KEPT)


def _check(task: Task, *, as_json: bool, accept_loss: bool) -> None:
    settings, stopping = connected(Settings.read()), Stopping()
    with Bar("published estimates") as bar:
        try:
            found = check(
                task, settings,
                accept_loss=accept_loss, stopped=lambda: stopping.asked, report=bar.report,
            )  # fmt: skip
        except Interrupted:
            sys.exit(130)
    if as_json:
        put(_as_json(task, found))
    elif found.compared:
        click.echo(
            f"{found.compared} published estimates compared with a replay to their log positions: "
            + (f"{found.different} differ" if found.different else "equal, bit by bit")
        )
    for reason, count in sorted(found.apart.items()):
        say(f"{count} not compared: {reason}")
    if found.impossible:
        say(
            f"{len(found.impossible)} refer to log positions that do not exist, at offsets "
            f"{_some(found.impossible)} of the topic of estimates: somebody else wrote them, or "
            "the releases topic was made anew"
        )
    if found.first is not None and found.message is not None:
        say(
            f"first difference, at state version {found.message.state_version} of "
            f"{found.message.published_at}: {found.first.field} is {found.first.live} live and "
            f"{found.first.replayed} replayed; offsets that differ: {_some(found.differing)}"
        )
    say(NOTHING_SPENT if task.study.private else NOTHING_KEPT)
    if not found.sound:
        sys.exit(40)
    if not found.compared:
        raise NumericError("there is no published estimate that could be compared")


def _some(offsets: list[int]) -> str:
    """Name some offsets, the first ones of many."""
    more = f" and {len(offsets) - 10} more" if len(offsets) > 10 else ""
    return ", ".join(map(str, offsets[:10])) + more


def _as_json(task: Task, found: Checked) -> dict[str, Any]:
    first = None
    if found.first is not None and found.message is not None:
        first = {
            "field": found.first.field,
            "live": json.loads(found.first.live),
            "replayed": json.loads(found.first.replayed),
            "state_version": found.message.state_version,
            "watermark": {p.partition: p.next_offset for p in found.message.watermark},
        }
    return {
        "study": task.study.name,
        "equal": found.sound and found.compared > 0,
        "compared": found.compared,
        "different": found.different,
        "not_compared": dict(sorted(found.apart.items())),
        "first_difference": first,
        "offsets_different": found.differing,
        "offsets_impossible": found.impossible,
        "privacy_spent": 0,
    }
