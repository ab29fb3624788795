"""The command `veilstream`."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from pipeline.errors import VeilstreamError

#: Command to the module that has it. A worker that restarts must not wait for what it does not use.
COMMANDS = {
    "up": "local",
    "down": "local",
    "status": "local",
    "logs": "local",
    "study": "study",
    "doctor": "doctor",
    "topics": "topics",
    "produce": "produce",
    "client": "client",
    "privacy": "privacy",
    "worker": "worker",
    "watch": "watch",
    "fit": "fit",
    "backtest": "backtest",
    "predict": "predict",
    "state": "state",
    "replay": "replay",
    "demo": "demo",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"pipeline.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
