"""The command `veilstream`."""

from __future__ import annotations

import sys

import click

from pipeline.cli import demo, fit, local, produce, state, study, watch, worker
from pipeline.errors import VeilstreamError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="veilstream")
def cli() -> None:
    """Private streaming estimation on Kafka.

    Clients noise their summaries before anything leaves; workers keep live estimates with
    intervals. A study file says what is estimated, under which privacy policy.
    """


for command in (
    *local.COMMANDS,
    study.study,
    produce.produce,
    worker.worker,
    watch.watch,
    fit.fit,
    state.state,
    demo.demo,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; errors become one sentence and their exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except VeilstreamError as error:
        click.echo(f"veilstream: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader of our output has gone, as in `veilstream watch | head`
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
