"""The command `veilstream`, whose commands are imported when one of them is asked for.

Most of a command's start is imports. The list of commands is written from a table, so that `--help`
imports none of them, and a worker that restarts does not wait for what it does not use.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from infra import process as saying
from pipeline.errors import LocalStoreError, VeilstreamError
from pipeline.settings import Settings

#: What they read.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Commands whose matrices are small: threads that share one wait for each other most of the time,
#: and on a busy machine nearly all of it.
SMALL = ("study", "fit", "doctor")


def for_command(name: str) -> None:
    """Let a command of `SMALL` that is about to be loaded compute on one core.

    Whoever has set a number keeps it.
    """
    if name in SMALL and not any(each in os.environ for each in THREADS):
        os.environ.update(dict.fromkeys(THREADS, "1"))


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for.

    table: The commands in the order in which they are listed, each with a sentence of its help.
    """

    def __init__(self, *args: Any, table: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of this name."""
        if cmd_name not in self.table:
            return None
        for_command(cmd_name)
        module = ELSEWHERE.get(cmd_name, cmd_name)
        command: click.Command = getattr(import_module(f"pipeline.cli.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with whole sentences, and import none."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))


#: Commands that share a module; any other has one of its own name.
ELSEWHERE = dict.fromkeys(("up", "down", "status", "logs", "play"), "local") | {
    "schedule": "design", "page": "watch",
}  # fmt: skip
#: All commands, with what the list of them says.
COMMANDS = {
    "up": "Start Kafka and Redis, and print their addresses when both answer.",
    "down": "End Kafka and Redis; their data stays in the folder.",
    "status": "Show for each service whether it runs, where, and whether it answers.",
    "logs": "Print the last lines that a SERVICE wrote.",
    "study": "Check a study file, plan, begin or change one, or make its keys.",
    "doctor": "Ask whether a study can run here, and whether its results can be trusted.",
    "schedule": "Show what each client of STUDY releases in a round and why, or make a model card.",
    "topics": "Make the topics of STUDY, and write its revision for clients to compare theirs "
    "with.",
    "produce": "Read records, send noised sums of them to STUDY, and count the privacy spent.",
    "client": "Look at a client's own database, make its key, admit it to a study or revoke it.",
    "privacy": "Read what clients have spent, write it to a file, and charge such a file.",
    "worker": "Add up the releases of STUDY as they come, and publish estimates, until stopped.",
    "watch": "Follow the estimates of STUDY: a live table, or lines where there is no terminal.",
    "page": "Show the live estimates of STUDY in a browser, until stopped.",
    "fit": "Estimate STUDY from a file, through the same functions as the live stream.",
    "backtest": "Run past records through STUDY in one process, and score its predictions over "
    "time.",
    "predict": "Predict the response of each record of a file with a model of STUDY.",
    "state": "Look at the stored state, check it against the log, make it anew, or forget a "
    "client.",
    "replay": "Replay the releases of STUDY: all, a range, or with other settings (what if).",
    "dlq": "Look at dead letters, have them folded after all, or note that nothing needs to be "
    "done.",
    "play": "Run a COMMAND as a trial, with a Kafka, a Redis, keys and a ledger of its own.",
    "demo": "Stream real data from many clients, kill the worker on the way, and verify.",
}


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="veilstream")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="What is said on standard error: lines, or a JSON object for each.",
)  # fmt: skip
def cli(log_format: str) -> None:
    """Private streaming estimation on Kafka.

    Clients noise their summaries before anything leaves; workers keep live estimates with
    intervals. A study file says what is estimated, under which privacy policy.
    """
    saying.use(log_format)
    # a misspelt variable is a fault whether this command would have read it or not
    Settings.read()


def main() -> None:
    """Run the command line; errors become one sentence and their exit code."""
    # by default the collector looks dozens of times through all that imports make
    gc.set_threshold(50_000, 20, 20)
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        _end(130, "interrupted")
    except click.ClickException as error:
        if not saying.is_json():
            error.show()
        _end(error.exit_code, error.format_message() if saying.is_json() else "")
    except VeilstreamError as error:
        _end(error.exit_code, str(error))
    except BrokenPipeError:
        # the reader of our output has gone, as in `veilstream watch | head`
        _end(0)
    except OSError as error:
        # files that we open name themselves, and turn their faults into ours
        if error.filename is not None or error.errno not in FULL:
            raise
        full = f"standard output cannot be written ({error.strerror}): check the disk, then run"
        _end(LocalStoreError.exit_code, f"{full} the command again")
    sys.exit(code if isinstance(code, int) else 0)


#: What the system says of an output that takes nothing any more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _end(code: int, why: str = "") -> NoReturn:
    """Say why, and end with a code, whether or not what was printed can still be written."""
    if why:
        saying.say(f"veilstream: {why}", "error", exit_code=code)
    try:
        sys.stdout.flush()
    except OSError:
        # else Python tries it again as it ends, and ends with a code of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
