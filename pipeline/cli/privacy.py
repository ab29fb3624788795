"""`veilstream privacy`: what clients have spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.cli.context import AS_JSON, FILE, Group, put, say
from pipeline.errors import ConfigError, LocalStoreError
from pipeline.messages.spend import read_spends, write_spends
from pipeline.settings import Settings
from pipeline.words import counted
from producers.database import check_id, clients_of, known_vault, vault_path
from producers.prior_spend import check_file
from producers.report import account_of
from producers.report import ledger as read_ledger
from producers.store import ClientStore

#: How a study pays, by whether each record enters one release.
PAID = {
    True: "charged once, with the first release: however many follow, a record costs no more",
    False: "the most that all releases together may cost: each is charged as it is made",
}


@click.group(cls=Group)
def privacy() -> None:
    """Read what clients have spent, write it to a file, and charge such a file."""


@privacy.command()
@click.argument("client", required=False)
@click.option(
    "--export", "export_to", type=FILE, metavar="FILE",
    help="Write the account of one client to this file, as JSON.",
)  # fmt: skip
@click.option(
    "--import", "import_from", type=FILE, metavar="FILE",
    help="After a folder was lost: charge what this export says and the folder does not know.",
)  # fmt: skip
@AS_JSON
def ledger(
    client: str | None, export_to: Path | None, import_from: Path | None, as_json: bool
) -> None:
    """Print what studies have spent on each source of CLIENT, or of all clients of this folder."""
    home = Settings.read().home
    if export_to is not None and import_from is not None:
        raise ConfigError("--export, --import: give one of them")
    if import_from is not None:
        import_account(home, client, import_from)
    elif export_to is not None:
        export_account(home, client, export_to)
    else:
        _print(home, client, as_json=as_json)


def _print(home: Path, client: str | None, *, as_json: bool) -> None:
    if client is not None:
        known_vault(home, client)
    names = clients_of(home) if client is None else [client]
    found = {}
    for name in names:
        try:
            found[name] = read_ledger(vault_path(home, name))
        except (ConfigError, LocalStoreError) as error:
            # one client's file, damaged or of another version, must not hide the others' accounts
            if client is not None:
                raise
            say(f"client {name}: {error}")
    if as_json:
        put(found)
        return
    if not found:
        say("no client has run from this folder; see VEILSTREAM_FOLDER")
    for name, sources in found.items():
        for source, facts in sources.items():
            click.echo("\n".join(_lines(name, source, facts)))


def _lines(client: str, source: str, facts: dict[str, Any]) -> Iterator[str]:
    """Say one source's account in words."""
    yield f"client {client}, source {source}: {facts['protects']}"
    limit, spent = facts["limit"], facts["spent"]
    if limit is None or spent is None:
        yield "  limit: none holds"
    else:
        yield (
            f"  spent epsilon {_number(spent['epsilon'])} of {limit['epsilon']:g} at delta "
            f"{limit['delta']:g}; {_remains(spent['epsilon'], limit['epsilon'])}"
        )
    for study in facts["studies"]:
        lost = f", {study['releases_lost']} of them lost" if study["releases_lost"] else ""
        budget = "" if study["mu"] is None else (
            f" epsilon {study['epsilon']:g}, delta {study['delta']:g}, {study['neighbours']}, "
            f"{PAID[study['scope'] == 'record']}"
        )  # fmt: skip
        yield (
            f"  study {study['study']}: {study['mechanism']}{budget}; {study['releases']} "
            f"releases{lost}, {_second(study['first'])} to {_second(study['last'])}"
        )
    for spend in facts["elsewhere"]:
        counts = "" if spend["counts"] else ", which the data owner says were other records"
        yield (
            f"  elsewhere, ledger {spend['ledger']}, study {spend['study']}: {spend['mechanism']}; "
            f"{counted(spend['releases'], 'release')}{counts}"
        )
    for refusal in facts["refusals"]:
        yield f"  refused {refusal['study']} at {_second(refusal['at'])}: {refusal['reason']}"
    for warning in facts["warnings"]:
        yield f"  WARNING: {warning}"


def _second(moment: str | None) -> str:
    """Return an RFC 3339 time in UTC to the second."""
    return "" if moment is None else f"{moment[:19]}Z"


def _remains(spent: float | None, limit: float) -> str:
    """Say what is left of a limit; what rounding leaves over is nothing."""
    if spent is None or spent > limit * (1 + 1e-9):
        return "that is more than is allowed"
    left = limit - spent
    return f"{left:.6g} remains" if left > 1e-9 * limit else "nothing remains"


def _number(value: float | None) -> str:
    return "without end" if value is None else f"{value:.6g}"


def export_account(home: Path, client: str | None, path: Path) -> None:
    """Write the account of a client of a folder, which may be running.

    Raises ConfigError if there is no such client, or there are several and none is named;
    LocalStoreError if the database cannot be read, or the file not be written.
    """
    names = clients_of(home)
    if client is None and len(names) != 1:
        raise ConfigError(
            f"--export: this folder has "
            f"{counted(len(names), 'client')} and a file holds one: name it, as in "
            "veilstream privacy ledger CLIENT --export FILE"
        )
    name = client or names[0]
    text = msgspec.json.format(write_spends(account_of(known_vault(home, name))), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise LocalStoreError(f"--export: {path} cannot be written ({error.strerror})") from None
    say(f"wrote {path}")


def import_account(home: Path, client: str | None, path: Path) -> None:
    """Charge what a file says, making the client's database if there is none.

    Raises ConfigError if the file cannot be read, is no account, or is of another client;
    AlreadyRunning if the client's producer runs.
    """
    try:
        message = read_spends(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--import: {path} cannot be read ({error.strerror})") from None
    except ConfigError as error:
        raise ConfigError(f"--import: {path}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--import: {path} is not an account of a client ({error}); give a file that "
            "`veilstream privacy ledger --export` wrote, unchanged"
        ) from None
    name = client or message.client
    database = vault_path(home, name)
    # before a database is made for it
    check_file(message, name)
    check_id(name)
    with ClientStore(database, name) as store:
        changed = store.heritage.take_file(message)
    say(f"client {name}: {counted(changed, 'spend')} that this folder did not know: charged now")
