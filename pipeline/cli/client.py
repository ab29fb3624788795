"""`veilstream client`: a client's own database, its key, and its admission to a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from agents.history import History, history_of
from infra.admissions import Roll, admit_new, announce_keys, read_roll, tell
from infra.keyring import client_path, enrolled, pin, pinned, read_study, set_aside
from infra.local import connected
from infra.topics import ensure_topics
from pipeline.cli.context import AS_JSON, STUDY, Group, live_task_of, put, say, study_keys
from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.admission import (
    Admission,
    Enrolment,
    Entry,
    read_enrolment,
    read_word,
    write_signed,
)
from pipeline.messages.topics import Topics
from pipeline.release.layout import identity
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.replay import Span
from pipeline.study.model import Study
from pipeline.words import listed
from producers.database import check_id, known_vault, shown, vault_path
from producers.membership import Membership, counted
from producers.report import report

#: What `client status` says of a client, by its standing.
STANDINGS = {
    "admitted": "admitted",
    "revoked": (
        "revoked: what it sends from then on does not count. What counted before goes on to count, "
        "until the operator takes it out (`veilstream state forget`)"
    ),
    "other key": (
        "NOT admitted under the key of this folder, but under another one: what it sends does not "
        "count"
    ),
    "lost": (
        "admitted, but the log does not say so: the releases topic was made anew, or emptied. What "
        "it sends does not count until the operator has run `veilstream study recover`"
    ),
    "unknown": "NOT admitted: what it sends does not count",
}


@click.group(cls=Group)
def client() -> None:
    """Look at a client's own database, make its key, admit it to a study or revoke it."""


@client.command()
@click.argument("name")
@AS_JSON
def show(name: str, as_json: bool) -> None:
    """Print what client NAME has read, set aside and released.

    The counts of records come from raw data: show them only to people who may see that data. What
    was spent is public: see `veilstream privacy ledger`.
    """
    found = report(known_vault(Settings.read().home, name))
    if as_json:
        put(found)
        return
    for study, facts in found.items():
        click.echo(f"{study}:")
        for key, value in facts.items():
            if not isinstance(value, dict):
                click.echo(f"  {key.replace('_', ' ')}: {'-' if value is None else value}")
                continue
            click.echo(f"  {key.replace('_', ' ')}:{'' if value else ' none'}")
            for kind, count in sorted(value.items(), key=lambda item: -item[1]):
                click.echo(f"    {count} x {kind}")
    say("`--json` has the same for programs")


@client.command()
@STUDY
@click.argument("name")
@AS_JSON
def status(study: Path, name: str, as_json: bool) -> None:
    """Print how many releases of client NAME count in STUDY, according to its log.

    Run it in the client's own folder; it needs only the client's rights. A release that was
    acknowledged but is not in the log was withheld by whoever runs Kafka, or is older than the log.
    """
    task, settings = live_task_of(study, "`veilstream client status`"), Settings.read()
    trusted = task.study.authenticated
    # one that is admitted has a key, and need not have run
    path = (vault_path if trusted else known_vault)(settings.home, name)
    settings = connected(settings)
    member = Membership(task.study, settings, name, say, looking=True) if trusted else None
    found = counted(task, settings, name, path, member)
    if as_json:
        put(found)
        return
    if trusted:
        click.echo(STANDINGS[found["standing"]])
    if not found["has_run"]:
        click.echo("it has not run from this folder yet")
    for key, value in found["releases"].items():
        click.echo(f"{key.replace('_', ' ')}: {value}")
    for reason, number in found["not_counted"].items():
        click.echo(f"not counted, {reason}: {number}")


@client.command()
@click.option("--client", required=True, help="Name of the client, as in `veilstream produce`.")
@click.option(
    "--stolen", is_flag=True,
    help="Make a new key. The old one stays, for what this client released under it.",
)  # fmt: skip
def enrol(client: str, stolen: bool) -> None:
    """Make the key of a client, if it has none, and print what the operator admits it by.

    The private part stays on this machine, in a file that only its owner can read. What is printed
    is public. Send it by a channel on which nobody can replace it.
    """
    settings = Settings.read()
    check_id(client)
    if stolen:
        set_aside(settings, client)
    pair = enrolled(settings, client)
    say(f"{client}: the private key is in {client_path(settings, client)}; keep a copy of it")
    click.echo(write_signed(Enrolment(client, pair.public.hex()), pair).decode())


@client.command()
@STUDY
@click.argument("enrolment", type=click.File("rb"), default="-")
def admit(study: Path, enrolment: BinaryIO) -> None:
    """Admit a client to STUDY: what `veilstream client enrol` printed is in a file, or piped in.

    Its releases count from here on. If it has a new key, its old key no longer counts.
    """
    try:
        given = read_enrolment(enrolment.read(10_000))
    except PayloadError as error:
        raise ConfigError(
            "this is not an enrolment, or it was cut or changed on its way: give all that "
            "`veilstream client enrol` printed"
        ) from error
    found, settings = _study(study, "`veilstream client admit`")
    check_id(given.client)
    before = admit_one(found, settings, given.client, bytes.fromhex(given.key))
    say(f"{given.client} is admitted to study {found.name!r}")
    if before:
        say(
            f"WARNING: {given.client} was admitted under another key before. If it has released "
            "for this study, only the database that did so can go on: with a new one its releases "
            "do not count, and it ends with exit code 44"
        )


@client.command()
@STUDY
@click.argument("name")
def revoke(study: Path, name: str) -> None:
    """Revoke client NAME: releases of it that reach STUDY from here on do not count.

    Those before it stay: `veilstream state forget` takes them out, too.
    """
    found, settings = _study(study, "`veilstream client revoke`")
    held = read_study(settings, found.name)
    # or clients would not believe a revocation under a key that no worker has said yet
    announce_keys(found, settings, held)
    standing = tell(found, settings, held, name, None)
    at = standing.entries[-1]
    say(
        f"{shown(name)} is revoked from {at.partition}/{at.offset} of the releases topic on "
        "(partition/offset); what came before goes on to count, and `veilstream state forget` "
        "takes it out"
    )


@client.command("list")
@STUDY
@AS_JSON
def roll(study: Path, as_json: bool) -> None:
    """Print the clients of STUDY, and since where in the releases topic each is admitted.

    This is what the operator has said: 1/17 is offset 17 of partition 1. `client status` says which
    releases of a client count, and whether the log has its admission.

    At the end of each line is the digest of the id. Estimates of many sites name a client by it.
    """
    task, settings = _task(study, "`veilstream client list`")
    found, read = task.study, read_roll(task.study, settings, say)
    if as_json:
        put(
            {
                name: msgspec.to_builtins(read.clients[name]) | {"digest": _digest(name)}
                for name in sorted(read.clients)
            }
        )
        return
    for name in sorted(read.clients):
        at = read.clients[name].entries[-1]
        is_so = "admitted" if at.key else "revoked"
        click.echo(
            f"{shown(name)}  {is_so} at {at.partition}/{at.offset}  {at.key[:16]}  "
            f"digest {_digest(name)}"
        )
    if read.refused:
        say(
            f"WARNING: {read.refused} records of {Topics.of(found).clients.name} are not signed by "
            f"this study: {read.cause}"
        )
    if read.keys is not None:
        last = read.keys.chain[-1]
        say(f"clients know the study's keys up to generation {last.generation}, {last.key[:16]}")
    _warn_of_lost(task, settings, read)


def _warn_of_lost(task: Task, settings: Settings, read: Roll) -> None:
    """Say it where the log has something else, or nothing, where it should admit clients."""
    oldest: dict[int, tuple[str, Entry]] = {}
    for name, said in read.clients.items():
        at = said.entries[-1]
        # all of a log are lost together, and those that were said first before any other
        if at.serial < oldest.get(at.partition, (name, at))[1].serial or at.partition not in oldest:
            oldest[at.partition] = name, at
    try:
        with history_of(task, settings) as history:
            extents, lost = history.extents(), list[str]()
            for number, (name, at) in oldest.items():
                extent = extents[number]
                # what retention has taken, nobody can tell
                if at.offset < extent.first:
                    continue
                # it is there, as a rule; what was said again from the log alone can be anywhere
                middle = min(at.offset, extent.after)
                spans = Span(middle, extent.after), Span(extent.first, middle)
                if not any(_says(history, number, s, name, at.serial, read) for s in spans):
                    lost.append(name)
    except ConfigError as error:
        say(f"WARNING: {error}")
        return
    if lost:
        say(
            "WARNING: the releases topic was made anew, and does not say this of "
            f"{listed([*map(shown, lost)], 'client')}, nor of any that was admitted before: "
            "nothing that they send counts until the operator has stopped the workers and run "
            "`veilstream study recover`"
        )


def _says(history: History, number: int, span: Span, client: str, serial: int, roll: Roll) -> bool:
    """Whether part of the log has this word about a client, under any key of the study."""
    keys = roll.keys
    publics = [bytes.fromhex(link.key) for link in keys.chain] if keys is not None else []
    history.seek({number: span})
    for record in history.records(number):
        value = record.value or b""
        # a word is JSON, and a release is not
        if record.key == client.encode() and value[:1] == b"{" and keys is not None:
            with suppress(PayloadError):
                word = read_word(value, keys.study, publics)
                if isinstance(word, Admission) and word.serial == serial:
                    return True
    return False


def admit_one(study: Study, settings: Settings, client: str, public: bytes) -> bool:
    """Admit one client, and return whether it had another key before.

    ConfigError if it is admitted under this one, or the study has no key.
    """
    held = read_study(settings, study.name)
    ensure_topics(settings, Topics.of(study).all())
    announce_keys(study, settings, held)
    standing = tell(study, settings, held, client, public)
    return any(entry.key not in ("", public.hex()) for entry in standing.entries)


def admit_here(
    study: Study, settings: Settings, clients: Iterable[str], say: Callable[[str], None] = say
) -> None:
    """Make the keys of a study and of clients on one machine, admit those clients, and say so.

    For the local runtime and demonstrations, where operator and clients are one: whoever has made
    the study's key need not be told to trust it.
    """
    held, publics = study_keys(study, settings, say), dict[str, bytes]()
    if pinned(settings, study.name) is None:
        pin(settings, study.name, held.newest.public)
    for client in clients:
        publics[client] = enrolled(settings, client).public
    ensure_topics(settings, Topics.of(study).all())
    announce_keys(study, settings, held)
    if new := admit_new(study, settings, held, publics):
        say(f"on this machine alone: enrolled and admitted {', '.join(map(shown, new))}")


def _digest(client: str) -> str:
    return identity(client.encode()).hex()


def _study(path: Path, doing: str) -> tuple[Study, Settings]:
    task, settings = _task(path, doing)
    return task.study, settings


def _task(path: Path, doing: str) -> tuple[Task, Settings]:
    task = live_task_of(path, doing)
    if not task.study.authenticated:
        raise ConfigError(
            'trust.releases: this study is "open", and admits nobody; a new study is authenticated '
            "with the table [trust] of `veilstream study init`"
        )
    return task, connected(Settings.read())
