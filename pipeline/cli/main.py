"""The command `veilstream`."""

from __future__ import annotations

import sys

import click

from pipeline.cli.lazy import Lazy, LazyGroup
from pipeline.errors import VeilstreamError

#: All commands, with what the list of them says.
COMMANDS = {
    "up": Lazy("local", "Start Kafka and Redis, and print their addresses when both answer."),
    "down": Lazy("local", "End Kafka and Redis; their data stays in the folder."),
    "status": Lazy(
        "local", "Show for each service whether it runs, where, and whether it answers."
    ),
    "logs": Lazy("local", "Print the last lines that a SERVICE wrote."),
    "study": Lazy("study", "Check a study file, plan one, or begin one."),
    "doctor": Lazy(
        "doctor", "Ask a study on simulated records whether its results can be trusted."
    ),
    "topics": Lazy(
        "topics",
        "Make the topics of STUDY, and write its revision for clients to compare theirs with.",
    ),
    "produce": Lazy(
        "produce", "Read records, send noised sums of them to STUDY, and count the privacy spent."
    ),
    "client": Lazy("client", "Look at a client's own database on this machine."),
    "privacy": Lazy("privacy", "Calibrate noise, and read what clients have spent."),
    "worker": Lazy(
        "worker", "Add up the releases of STUDY as they come, and publish estimates, until stopped."
    ),
    "watch": Lazy(
        "watch", "Follow the estimates of STUDY: a live table, or lines where there is no terminal."
    ),
    "fit": Lazy(
        "fit", "Estimate STUDY from a file, through the same functions as the live stream."
    ),
    "backtest": Lazy(
        "backtest",
        "Run past records through STUDY in one process, and score its predictions over time.",
    ),
    "predict": Lazy(
        "predict", "Predict the response of each record of a file with a model of STUDY."
    ),
    "state": Lazy(
        "state",
        "Look at the stored state, check it against the log, make it anew, or forget a client.",
    ),
    "replay": Lazy(
        "replay", "Replay the releases of STUDY: all, a range, or with other settings (what if)."
    ),
    "demo": Lazy(
        "demo", "Stream real data from many clients, kill the worker on the way, and verify."
    ),
}


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="veilstream")
def cli() -> None:
    """Private streaming estimation on Kafka.

    Clients noise their summaries before anything leaves; workers keep live estimates with
    intervals. A study file says what is estimated, under which privacy policy.
    """


def main() -> None:
    """Run the command line; errors become one sentence and their exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("veilstream: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except VeilstreamError as error:
        click.echo(f"veilstream: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # the reader of our output has gone, as in `veilstream watch | head`
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
