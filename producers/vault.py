"""The client's database: privacy ledger, outbox and source position, in one file.

A release is one transaction: the budget is checked and spent, the noised bytes are stored, the
source position moves on. Whatever happens before it, nothing was released; whatever happens after
it, the same bytes are sent. The file is locked by the process that has it open.
"""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from pipeline.errors import AlreadyRunning, BudgetExceeded, ConfigError, LocalStoreError
from pipeline.local.plan import Plan
from pipeline.messages.envelope import Headers, rfc3339
from pipeline.privacy import gdp

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a study stands at this client."""

    position: bytes | None
    next_seq: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A stored release on its way."""

    seq: int
    payload: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Tally:
    """What a window held, for the client's own eyes; none of it leaves this database."""

    records: int
    rejected: Mapping[str, int]
    clipped: int


class Vault:
    """The database of one client.

    Parameters
    ----------
    path
        The file; it is made if it does not exist.
    client
        The client id; a file belongs to one client for ever.

    Raises
    ------
    AlreadyRunning
        If another process has it open.
    ConfigError
        If the file belongs to another client or was written by a newer version.
    LocalStoreError
        If it cannot be read or written.
    """

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path.with_suffix(".lock"), client)
        try:
            with _faults():
                self._db = sqlite3.connect(path, isolation_level=None)
        except BaseException:
            self._lock.close()
            raise
        try:
            path.chmod(0o600)
            with _faults():
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.executescript((files("producers") / "schema.sql").read_text())
            self.ledger = self._identify()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Vault:
        """Return the vault."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()
        self._lock.close()

    def open_stream(self, plan: Plan, source: str, limit: tuple[float, float] | None) -> Stream:
        """Return where a study stands, registering it and its source on first sight.

        Parameters
        ----------
        source
            Stable name of the data source: all studies that read it share its budget.
        limit
            The (epsilon, delta) that all studies together may spend on one record of the source;
            None keeps what was set before, or takes the study's own. The epsilon can be raised,
            never lowered below what is spent; the delta stays what it was at first.

        Raises
        ------
        ConfigError
            If the study was begun under another revision or on another source, or the limit is
            below what is spent.
        """
        privacy = plan.study.privacy
        with self._transaction():
            row = self._db.execute(
                "SELECT revision, source, position, next_seq FROM streams WHERE study = ?",
                (plan.study.name,),
            ).fetchone()
            if row is None:
                self._db.execute(
                    "INSERT INTO streams VALUES (?, ?, ?, NULL, 0, 0, 0, 0)",
                    (plan.study.name, plan.revision, source),
                )
                row = (plan.revision, source, None, 0)
            if row[0] != plan.revision:
                raise ConfigError(
                    f"this client began study {plan.study.name!r} under revision {row[0]}, the "
                    f"file is revision {plan.revision}: restore the file, or give the study a new "
                    "name (its releases then count against the same source)"
                )
            if row[1] != source:
                raise ConfigError(
                    f"this client began study {plan.study.name!r} on source {row[1]!r}, not "
                    f"{source!r}: name the same source with --source-name, or use another client"
                )
            wanted = limit or (privacy.epsilon, privacy.delta)
            self._db.execute(
                "INSERT INTO sources VALUES (?, ?, ?) ON CONFLICT (source) DO NOTHING",
                (source, *wanted),
            )
            bare = "SELECT 1 FROM ledger WHERE source = ? AND mu IS NULL"
            if plan.study.private:
                # a study without privacy that never released anything lifts no limit
                self._db.execute(
                    "UPDATE sources SET epsilon = ?, delta = ? WHERE source = ? "
                    "AND epsilon IS NULL AND NOT EXISTS (SELECT 1 FROM ledger "
                    "WHERE source = ? AND mu IS NULL)",
                    (*wanted, source, source),
                )
            if limit is not None:
                if self._db.execute(bare, (source,)).fetchone():
                    raise ConfigError(
                        f"--epsilon-limit: a study without privacy has released source {source!r}; "
                        "no limit holds for it any more"
                    )
                # the delta that the source was opened with stays: a looser one is no higher limit
                self._db.execute(
                    "UPDATE sources SET epsilon = ? WHERE source = ? AND epsilon IS NOT NULL",
                    (limit[0], source),
                )
                self._check_limit(source)
        return Stream(row[2], row[3])

    def release(
        self, plan: Plan, source: str, *, seq: int, payload: bytes, headers: Headers,
        position: bytes, tally: Tally, now: float,
    ) -> None:  # fmt: skip
        """Spend, store and move on: one durable transaction, or nothing.

        Raises
        ------
        BudgetExceeded
            If the source has no budget left for this study; nothing is spent and the position
            stays. The refusal itself is noted.
        LocalStoreError
            If the disk is full or fails; nothing is spent and the position stays.
        """
        study, policy, at = plan.study.name, plan.guarantee, rfc3339(now)
        try:
            with self._transaction():
                self._check_budget(plan, source)
                self._db.execute(
                    "INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (study, seq, source, policy.mechanism, policy.mu, policy.epsilon,
                     policy.delta, plan.slots, at),
                )  # fmt: skip
                self._db.execute(
                    "INSERT INTO outbox VALUES (?, ?, ?, ?)",
                    (study, seq, payload, msgspec.msgpack.encode(headers)),
                )
                self._db.execute(
                    "UPDATE streams SET position = ?, next_seq = ?, records = records + ?, "
                    "rejected = rejected + ?, clipped = clipped + ? WHERE study = ?",
                    (position, seq + 1, tally.records, sum(tally.rejected.values()),
                     tally.clipped, study),
                )  # fmt: skip
                for reason, count in tally.rejected.items():
                    self._db.execute(
                        "INSERT INTO rejects VALUES (?, ?, ?) ON CONFLICT (study, reason) "
                        "DO UPDATE SET count = count + excluded.count",
                        (study, reason, count),
                    )
        except BudgetExceeded as error:
            with self._transaction():
                self._db.execute("INSERT INTO refusals VALUES (?, ?, ?)", (study, str(error), at))
            raise

    def unsent(self, study: str, after: int, limit: int) -> list[Outgoing]:
        """Return stored releases with a number above `after`, in order."""
        with _faults():
            rows = self._db.execute(
                "SELECT seq, payload, headers FROM outbox WHERE study = ? AND seq > ? "
                "ORDER BY seq LIMIT ?",
                (study, after, limit),
            ).fetchall()
        return [
            Outgoing(seq, payload, msgspec.msgpack.decode(headers, type=Headers))
            for seq, payload, headers in rows
        ]

    def waiting(self, study: str) -> int:
        """Return how many releases Kafka has not acknowledged."""
        with _faults():
            query = "SELECT count(*) FROM outbox WHERE study = ?"
            return int(self._db.execute(query, (study,)).fetchone()[0])

    def sent(self, study: str, numbers: list[int]) -> None:
        """Drop the bytes of acknowledged releases; their ledger rows stay."""
        with self._transaction():
            self._db.executemany(
                "DELETE FROM outbox WHERE study = ? AND seq = ?", [(study, n) for n in numbers]
            )

    def _check_budget(self, plan: Plan, source: str) -> None:
        """Refuse a release that the source's limit does not allow.

        Records of one study enter one release each, so a study costs its mu once, however long it
        runs; studies on the same source compose.
        """
        limit = self._db.execute(
            "SELECT epsilon, delta FROM sources WHERE source = ?", (source,)
        ).fetchone()
        spent = self._db.execute(
            "SELECT max(mu), count(*) - count(mu) FROM ledger WHERE source = ? AND study <> ? "
            "GROUP BY study",
            (source, plan.study.name),
        ).fetchall()
        if not plan.study.private:
            if limit[0] is not None:
                raise BudgetExceeded(
                    f"source {source!r} has a privacy limit; a study without privacy cannot read it"
                )
            return
        if limit[0] is None or any(bare for _, bare in spent):
            # the source was opened to a study without privacy: no limit holds any more
            return
        mu = gdp.compose([*(mu for mu, _ in spent), plan.guarantee.mu or 0.0])
        epsilon = gdp.epsilon_of(mu, limit[1])
        # calibration pays a hair for the sampler; a limit equal to the budget must allow it
        if epsilon > limit[0] * (1 + 1e-6):
            raise BudgetExceeded(
                f"source {source!r}: {len(spent)} other studies and this one would reach epsilon "
                f"{epsilon:.4g} at delta {limit[1]:g}, the limit is {limit[0]:g}; raise it with "
                "--epsilon-limit if the data owner agrees, or stop this study"
            )

    def _check_limit(self, source: str) -> None:
        """Refuse a limit below what has been spent on the source."""
        epsilon, delta = self._db.execute(
            "SELECT epsilon, delta FROM sources WHERE source = ?", (source,)
        ).fetchone()
        spent = self._db.execute(
            "SELECT max(mu) FROM ledger WHERE source = ? AND mu IS NOT NULL GROUP BY study",
            (source,),
        ).fetchall()
        if epsilon is None or not spent:
            return
        reached = gdp.epsilon_of(gdp.compose(mu for (mu,) in spent), delta)
        if reached > epsilon * (1 + 1e-6):
            raise ConfigError(
                f"--epsilon-limit: {epsilon:g} is below the {reached:.4g} (at delta {delta:g}) "
                f"that studies have spent on source {source!r}"
            )

    def _identify(self) -> str:
        """Return the ledger's id, making one for a new file.

        The lock file remembers it: a database that was emptied or removed must not pass for that
        of a new client, which would release every record again.
        """
        self._lock.seek(0)
        remembered = self._lock.read().decode(errors="replace")
        with self._transaction():
            row = self._db.execute("SELECT schema, client, ledger FROM identity").fetchone()
            if row is None and remembered:
                raise LocalStoreError(
                    f"the client database has lost ledger {remembered}: put the file back, or give "
                    "this producer a new --client; a fresh ledger would release records again"
                )
            if row is None:
                row = (SCHEMA, self.client, secrets.token_hex(8))
                self._db.execute("INSERT INTO identity VALUES (1, ?, ?, ?, datetime('now'))", row)
        if row[0] != SCHEMA:
            raise ConfigError(
                f"the client database has schema {row[0]}, this version writes {SCHEMA}; use the "
                "version that wrote it"
            )
        if row[1] != self.client:
            raise ConfigError(
                f"the client database belongs to client {row[1]!r}, not {self.client!r}; a ledger "
                "belongs to one client for ever"
            )
        if not remembered:
            self._lock.write(row[2].encode())
            self._lock.flush()
        return str(row[2])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _lock(path: Path, client: str) -> IO[bytes]:
    try:
        handle = path.open("a+b")
    except OSError as error:
        raise LocalStoreError(
            f"cannot write beside the client database: {error.strerror}"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise AlreadyRunning(
            f"another producer runs as client {client!r} from this folder; stop it, or give this "
            "one another --client"
        ) from None
    return handle


@contextmanager
def _faults() -> Iterator[None]:
    """Turn the database's faults into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise LocalStoreError(
            f"the client database cannot be used ({error}); nothing was spent and nothing is "
            "lost: free some disk space or repair the file, then start again"
        ) from error
