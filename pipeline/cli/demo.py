"""`veilstream demo`: the whole system on real data, with a crash on the way."""

from __future__ import annotations

import shutil
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import click

from infra.local import LocalRuntime, program_paths
from infra.topics import ensure_topics
from pipeline.cli.context import Number, put, say
from pipeline.cli.demonstrations import DEMONSTRATIONS
from pipeline.cli.stage import Processes, Stage, about, signals_as_exit, tell
from pipeline.cli.state import verified
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import load_study


@click.command()
@click.option(
    "--study", type=click.Choice(list(DEMONSTRATIONS)), default="shuttle", show_default=True,
    help="Anomalies in a space shuttle's sensors, delays of a year of flights, sixteen airlines of "
    "which one lies, or the load of twelve blocks of flats as it is now.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the data folder and say where it is.")
@click.option("--rate", type=Number(min=1), help="Records per second of the largest client.")
def demo(study: str, keep: bool, rate: float | None) -> None:
    """Stream real data from many clients, kill the worker on the way, and verify.

    Starts its own Kafka, Redis, worker and clients, in its own folder, and ends them all. The last
    line on standard output is one JSON object.
    """
    folder = Path(tempfile.mkdtemp(prefix="veilstream-demo-"))
    try:
        with signals_as_exit():
            outcome = run(study, folder, rate)
    finally:
        if keep:
            say(f"data and logs: {folder}")
        else:
            shutil.rmtree(folder)
    put(outcome)


def run(name: str, folder: Path, rate: float | None) -> dict[str, object]:
    """Run a demonstration in `folder` and return its last line."""
    started = time.monotonic()
    settings = Settings.read()
    path = Path(str(files("pipeline.study") / "examples" / f"{name}.toml"))
    task = task_of(load_study(path))
    shown = DEMONSTRATIONS[name](task, folder)
    seconds = max(site.records for site in shown.sites) / rate if rate else shown.seconds
    for line in about(task):
        tell(line)
    say("starting Kafka and Redis ...")
    with LocalRuntime(folder / "runtime", program_paths(settings)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=str(folder))
        environment = {
            "VEILSTREAM_KAFKA": settings.kafka,
            "VEILSTREAM_REDIS": settings.redis,
            "VEILSTREAM_FOLDER": settings.folder,
        }
        ensure_topics(settings, [*Topics.of(task.study).all(), ledger_topic(task.study, settings)])
        processes = Processes(folder / "logs", environment)
        try:
            stage = Stage(task, settings, processes, str(path), shown.sites)
            stage.open(seconds, shown.ahead)
            final = stage.play(shown.see)
            say("all clients are done; folding the topic again from its start ...")
            same = verified(task, settings)
        finally:
            processes.end()
    return {
        "demo": task.study.name,
        "records": final.records,
        "clients": final.clients,
        "releases": final.releases,
        "epsilon": task.study.privacy.epsilon,
        "delta": task.study.privacy.delta,
        "unit": task.study.privacy.unit,
        **shown.close(final, same),
        "status": final.status,
        "first_intervals_at": stage.first_intervals,
        "recovery_seconds": stage.recovery and round(stage.recovery, 2),
        "state_verified": same,
        "seconds": round(time.monotonic() - started, 1),
    }
