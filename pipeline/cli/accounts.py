"""`veilstream privacy ledger --export` and `--import`: what a client has spent, as a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pipeline.cli.context import say
from pipeline.errors import ConfigError, LocalStoreError
from pipeline.messages.spends import read_spends, write_spends
from producers.client_id import check_id
from producers.client_store import ClientStore
from producers.heritage import check_file
from producers.report import account_of
from producers.run import clients_of, vault_path


def export_account(home: Path, client: str | None, path: Path) -> None:
    """Write the account of a client of a folder, which may be running.

    Raises ConfigError if there is no such client, or there are several and none is named;
    LocalStoreError if the database cannot be read, or the file not be written.
    """
    names = clients_of(home)
    if client is None and len(names) != 1:
        raise ConfigError(
            f"--export: this folder has {len(names)} clients and a file holds one: name it, as in "
            "veilstream privacy ledger CLIENT --export FILE"
        )
    name = client or names[0]
    if name not in names:
        raise ConfigError(f"no client {name!r} has run from this folder; see VEILSTREAM_FOLDER")
    text = msgspec.json.format(write_spends(account_of(vault_path(home, name))), indent=2)
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
            f"--import: {path} is no account of a client ({error}); give a file that `veilstream "
            "privacy ledger --export` wrote, unchanged"
        ) from None
    name = client or message.client
    database = vault_path(home, name)
    # before a database is made for it
    check_file(message, name)
    check_id(name, database, say)
    with ClientStore(database, name) as store:
        changed = store.heritage.take_file(message)
    say(f"client {name}: {changed} spends that this folder did not know are charged")
