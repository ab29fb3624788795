"""`veilstream client`: its own database, its key, and who admits it."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.admission import admit, enrol, revoke, roll
from pipeline.cli.context import AS_JSON, put
from pipeline.errors import ConfigError
from pipeline.settings import Settings
from producers.report import report
from producers.run import vault_path


@click.group()
def client() -> None:
    """Look at a client's own database, make its key, admit it to a study or revoke it."""


for command in (enrol, admit, revoke, roll):
    client.add_command(command)


@client.command()
@click.argument("name")
@AS_JSON
def show(name: str, as_json: bool) -> None:
    """Print what client NAME has read, set aside and released.

    The counts of records come from raw data: they are for whoever may see that data. What was
    spent is public: see `veilstream privacy ledger`.
    """
    path: Path = vault_path(Settings.read().home, name)
    if not path.exists():
        raise ConfigError(f"no client {name!r} has run from this folder; see VEILSTREAM_FOLDER")
    found = report(path)
    if as_json:
        put(found)
        return
    for study, facts in found.items():
        click.echo(f"{study}:")
        for key, value in facts.items():
            click.echo(f"  {key}: {value}")
