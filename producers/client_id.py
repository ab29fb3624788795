"""Whether a client may have its id, and where its database is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from pipeline.errors import ConfigError
from pipeline.study.client_ids import LONGEST, RULE, is_plain


def check_id(client: str, database: Path, say: Callable[[str], None]) -> None:
    """Refuse the id of a new client that is not plain; one that has a database goes on.

    Its ledger belongs to the id for ever, so that another id would release its records again.

    database: Where the client's database is, or would be.
    say: Told of an id that no new client may have.

    Raises ConfigError, saying what an id is.
    """
    if is_plain(client):
        return
    if not 1 <= len(client) <= LONGEST or not database.exists():
        raise ConfigError(f"--client: {RULE}; the operator must give this client such an id")
    say(
        f"WARNING: --client: {RULE}. This client is older than the rule, and its ledger belongs to "
        "its id for ever: it goes on under it. Give new clients plain ids"
    )


def shown(client: str) -> str:
    """Return an id as lines for people may hold it: nothing in it that a terminal would obey."""
    return client if is_plain(client) else ascii(client)


def vault_path(folder: Path, client: str) -> Path:
    """Return where a client's database is."""
    return folder / "clients" / f"{quote(client, safe='')}.db"


def known_vault(folder: Path, client: str) -> Path:
    """Return where a client's database is; ConfigError if there is none."""
    path = vault_path(folder, client)
    if not path.exists():
        raise ConfigError(f"no client {client!r} has run from this folder; see VEILSTREAM_FOLDER")
    return path


def clients_of(folder: Path) -> list[str]:
    """Return the ids of all clients that have a database in a folder."""
    return sorted(unquote(path.stem) for path in (folder / "clients").glob("*.db"))
