"""`veilstream study keys`: a study's key file, by which it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from infra.keyring import StudyPairs, made_study, pin, pinned, study_path, write_study
from pipeline.cli.context import STUDY, say, task_of
from pipeline.errors import ConfigError
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.trust.crypto import LAST_GENERATION, Pair


@click.command()
@STUDY
@click.option("--rotate", is_flag=True, help="Add a new key, which signs from now on.")
@click.option(
    "--stolen", is_flag=True,
    help="Add a new key, and stop believing anything under older keys. Stop all workers first.",
)  # fmt: skip
def keys(study: Path, rotate: bool, stolen: bool) -> None:
    """Make the key of STUDY, if it has none, and print its public part, for trust.key.

    The private file belongs to workers and to nobody else. Without it the log can never be folded
    again: keep a copy of it apart from Kafka and Redis.
    """
    found, settings = task_of(study).study, Settings.read()
    if not found.authenticated:
        raise ConfigError(
            'trust.releases: this study is "open" and has no use for keys; see the table [trust] '
            "of `veilstream study init`"
        )
    held = study_keys(found, settings)
    if rotate or stolen:
        held = _rotated(found, settings, held, stolen=stolen)
    click.echo(held.newest.public.hex())


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


def _rotated(study: Study, settings: Settings, held: StudyPairs, *, stolen: bool) -> StudyPairs:
    # `study check` must start without a client library
    from infra.admissions import announce_keys, refuse_old, retire  # noqa: PLC0415
    from infra.local import connected  # noqa: PLC0415
    from infra.topics import ensure_topics  # noqa: PLC0415

    number = held.newest.generation + 1
    if number > LAST_GENERATION:
        raise ConfigError(
            f"the key of study {study.name!r} cannot be changed again, because it was "
            f"changed {LAST_GENERATION:,} times, as often as a study allows; the operator "
            "must begin a study with a new name"
        )
    if stolen:
        # before anything is written: without Kafka the old key would go on to count
        settings = connected(settings)
        ensure_topics(settings, Topics.of(study).all())
        refuse_old(study, settings, held)
    pairs = [*held.pairs, Pair.drawn(number)]
    after = replace(held, pairs=pairs)
    if stolen:
        after = StudyPairs(pairs, number, {**held.retired, number: {}})
    path = write_study(settings, study.name, after)
    if not stolen:
        say(
            f"{path} has a key of generation {number}: copy it to every worker before any other "
            "command, then start one of them again, which tells the clients. Older keys stay "
            "good, and trust.key in study files may stay: the new key follows from it. It is done "
            f"when `veilstream client list` says that clients know generation {number}"
        )
        return after
    # of what the thief may say of newer keys, nothing is believed here
    pin(settings, study.name, after.newest.public)
    at = retire(study, settings, after)
    after = replace(after, retired={**held.retired, number: at})
    write_study(settings, study.name, after)
    announce_keys(study, settings, after)
    say(
        f"nothing counts any more under keys older than generation {number}. Put the new public "
        "key into the study file as trust.key wherever a client or a reader runs; copy "
        f"{path} to every worker; run `veilstream study recover` before the first worker starts"
    )
    return after
