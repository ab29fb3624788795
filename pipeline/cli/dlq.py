"""`veilstream dlq`: look at the dead letters of a study, fold them after all, or set them aside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from infra.dead_letters import Done, Letter, Place, read_letters, settle
from infra.local import connected
from pipeline.cli.context import AS_JSON, STUDY, Group, live_task_of, put, say
from pipeline.errors import BrokerError, ConfigError
from pipeline.messages.envelope import rfc3339
from pipeline.messages.release import LONGEST_NAME
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.words import counted

Command = TypeVar("Command", bound=Callable[..., Any])


def _chosen(command: Command) -> Command:
    for option in (
        click.option("--at", "places", multiple=True, metavar="PARTITION/OFFSET",
                     help="Only the letter at this place, as `list --json` names it."),
        click.option("--client", "clients", multiple=True, help="Only letters under its key."),
        click.option("--reason", "reasons", multiple=True,
                     help="Only letters with this reason, such as not-admitted."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(cls=Group)
def dlq() -> None:
    """Look at dead letters, have them folded after all, or note that nothing needs to be done."""


@dlq.command("list")
@STUDY
@_chosen
@click.option("--closed", is_flag=True, help="Also letters that were replayed or dropped.")
@AS_JSON
def list_(study: Path, as_json: bool, **chosen: Any) -> None:
    """Count the dead letters of STUDY by reason and client; --json: one line for each letter."""
    _, _, found = _found(study, **chosen)
    if as_json:
        for letter in found:
            put(_facts(letter))
        return
    groups: dict[tuple[str, str, str], list[Letter]] = {}
    for letter in found:
        groups.setdefault((letter.reason, letter.client, letter.done), []).append(letter)
    for (reason, client, done), letters in sorted(groups.items()):
        last, state = rfc3339(letters[-1].at / 1000)[:19], f" ({done})" if done else ""
        click.echo(
            f"{reason}: {len(letters)} of {_short(client)!r}{state}, "
            f"the last {letters[-1].place} at {last}"
        )
        click.echo(f"  {letters[-1].detail}")
    if not found:
        say("no dead letters" + (" of these" if any(chosen.values()) else ""))


@dlq.command()
@STUDY
@click.argument("place")
def show(study: Path, place: str) -> None:
    """Print one dead letter of STUDY, named PARTITION/OFFSET, as JSON, with its bytes in hex."""
    _, _, found = _found(study, (place,), closed=True)
    for letter in found:
        headers = {
            name: (value or b"").decode("utf-8", "replace") for name, value in letter.headers
        }
        put({**_facts(letter), "headers": headers, "value": (letter.value or b"").hex()})
    if not found:
        raise ConfigError(f"no dead letter is of {place}; `veilstream dlq list --json` names all")


@dlq.command()
@STUDY
@_chosen
def replay(study: Path, **chosen: Any) -> None:
    """Send dead letters of STUDY to its releases topic again, for the worker to fold.

    Use it once the reason is removed: the client is admitted by now, or the worker has the newest
    keys or version. The bytes are those that came, but for the MAC of what was sent before a
    client was admitted again. A letter that still does not fit becomes a dead
    letter again. A release counts once, however often it is sent.
    """
    _settle(study, chosen, "replayed")


@dlq.command()
@STUDY
@_chosen
def drop(study: Path, **chosen: Any) -> None:
    """Note that nothing needs to be done about dead letters of STUDY: `list` leaves them out.

    The topic keeps them; `list --closed` shows them.
    """
    _settle(study, chosen, "dropped")


def _settle(path: Path, chosen: Mapping[str, Any], done: Done) -> None:
    if not any(chosen.values()):
        raise ConfigError(
            "say which dead letters: give --reason, --client or --at; `veilstream dlq "
            "list` shows them all"
        )
    study, settings, found = _found(path, **chosen)
    if not found:
        raise ConfigError(
            "no open dead letter is of these, and nothing was done; `veilstream dlq list` says "
            "which there are, with --closed also those that were replayed or dropped"
        )
    now, refused = settle(study, settings, found, done)
    if now:
        said = counted(len(now), "dead letter")
        say(f"{said} sent again, the last to {now[-1]}; what fails again is a new dead letter")
    elif not refused:
        say(f"{counted(len(found), 'dead letter')} dropped")
    if refused:
        raise BrokerError(
            f"Kafka does not take {counted(len(refused), 'dead letter')}, the first "
            f"{refused[0][0]} ({refused[0][1]}); all others are sent. The operator must let the "
            "releases topic take such records, or `veilstream dlq drop --at` them"
        )


def _found(
    path: Path, places: Sequence[str] = (), clients: Sequence[str] = (),
    reasons: Sequence[str] = (), closed: bool = False,
) -> tuple[Study, Settings, list[Letter]]:  # fmt: skip
    """Read the dead letters of these places, clients and reasons; of all where none is named.

    closed: Also those that were replayed or dropped.
    """
    named = _places(places)
    study = live_task_of(path, "`veilstream dlq`").study
    settings = connected(Settings.read())
    found = [
        letter
        for letter in read_letters(study, settings)
        if (closed or not letter.done)
        and (not named or letter.place in named)
        and (not clients or letter.client in clients)
        and (not reasons or letter.reason in reasons)
    ]
    return study, settings, found


def _places(texts: Sequence[str]) -> list[Place]:
    found = [re.fullmatch(r"(\d{1,9})/(\d{1,18})", text, flags=re.ASCII) for text in texts]
    if not all(found):
        raise ConfigError("a place must be PARTITION/OFFSET, such as 0/17")
    return [Place(int(one[1]), int(one[2])) for one in found if one]


def _short(client: str) -> str:
    """Return what a key claims, as far as an id can go: a stranger's key can have 8 MiB."""
    return client if len(client) <= LONGEST_NAME else client[:LONGEST_NAME] + "..."


def _facts(letter: Letter) -> dict[str, Any]:
    return {
        "place": str(letter.place), "reason": letter.reason, "detail": letter.detail,
        "client": letter.client, "set_aside_at": rfc3339(letter.at / 1000),
        "bytes": len(letter.value or b""), "done": letter.done or None,
    }  # fmt: skip
