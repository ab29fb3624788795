"""`veilstream study deploy`: manifests for workers in Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from infra.kubernetes import manifests
from pipeline.cli.context import STUDY, live_task_of, say
from pipeline.settings import Settings


@click.command()
@STUDY
@click.option("--image", required=True, help="The image of infra/Dockerfile, with its tag.")
@click.option(
    "--lag", type=click.IntRange(1), default=1000, show_default=True,
    help="Records that one worker may leave waiting before another one starts.",
)  # fmt: skip
def deploy(study: Path, image: str, lag: int) -> None:
    """Print what runs the workers of STUDY in Kubernetes, for `kubectl apply -f -`.

    A stateful set, whose pods' names are those of the workers, and a ScaledObject by which KEDA
    keeps as many as the lag asks for, at most one for each partition. Where Kafka is, and how one
    enters, is taken from the settings; what is secret stays in secrets, which are named.
    """
    task, settings = live_task_of(study, "`veilstream study deploy`"), Settings.read()
    made = manifests(task, study.read_text(), settings, image=image, lag=lag)
    click.echo(json.dumps(made, indent=1))
    name = made["items"][0]["metadata"]["name"]
    say(f"{name}-env: a secret with VEILSTREAM_REDIS and, for SASL, the user and password")
    if task.study.authenticated:
        say(f"{name}-key: a secret with the study's key file as study.key")
    if settings.kafka_ca:
        say(f"{name}-tls: a secret with ca.crt and, if there is one, tls.crt and tls.key")
