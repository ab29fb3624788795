"""`veilstream worker`."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from infra.local import connected, is_local
from pipeline.cli.context import STUDY, live_task_of, seconds_of, study_keys
from pipeline.errors import ConfigError
from pipeline.settings import Settings


def _every(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    key, _, text = given.partition("=")
    if key != "every":
        raise ConfigError("--verify: it must be every= and a time, such as every=1h")
    return seconds_of(text, "--verify every")


@click.command()
@STUDY
@click.option(
    "--instance", default=lambda: f"{socket.gethostname()}-0", show_default="HOST-0",
    help="Name of this worker: unique, and the same after a restart.",
)  # fmt: skip
@click.option("--health-port", type=click.IntRange(1, 65535), help="Serve /healthz and /metrics.")
@click.option("--health-host", default="127.0.0.1", show_default=True, help="On this address.")
@click.option(
    "--verify",
    metavar="every=1h",
    callback=_every,
    help=(
        "Also fold the log a second time, at low priority, and compare every so often, such as "
        "every=1h."
    ),
)
def worker(
    study: Path, instance: str, health_port: int | None, health_host: str, verify: float | None
) -> None:
    """Add up the releases of STUDY as they come, and publish estimates, until stopped.

    Run it under a supervisor. Whenever Kafka or Redis fails it exits, with a code that says why;
    after a restart it continues where the stored state ends. Give each worker of a study its own
    --instance.
    """
    from agents.worker import run_worker  # noqa: PLC0415  Faust takes a second to import

    task = live_task_of(study, "a worker")
    settings = connected(Settings.read(), redis=True)
    if task.study.authenticated and is_local(settings):
        # the local runtime, whose operator makes no keys by hand
        study_keys(task.study, settings)
    run_worker(
        task,
        settings,
        instance=instance,
        folder=settings.home / "workers" / instance,
        health=(health_host, health_port) if health_port else None,
        verify=(study, verify) if verify else None,
    )
