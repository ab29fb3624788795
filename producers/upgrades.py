"""A client's database of an older version to one of this, in the transaction that holds it all.

What studies have cost stays the same number, whatever it is kept as.
"""

from __future__ import annotations

import sqlite3

from pipeline.privacy.accounting import event_of
from pipeline.privacy.events import encode

SCHEMA = 8
#: What a file of an older schema lacks, by that schema; each step leads to the next one.
STEPS = {
    # its studies counted as if all records shared noise, which costs a group more
    2: ("ALTER TABLE spends ADD COLUMN apart INTEGER NOT NULL DEFAULT 0",),
    3: (
        "ALTER TABLE streams ADD COLUMN owed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE streams ADD COLUMN tested INTEGER NOT NULL DEFAULT 0",
    ),
    # costs become events: what a study had paid with its first release stands there as one
    4: (
        "DROP VIEW IF EXISTS charges",
        "ALTER TABLE spends RENAME TO charged",
        "ALTER TABLE charged RENAME COLUMN apart TO noise_per_record",
        """CREATE TABLE spends (study TEXT NOT NULL, seq INTEGER NOT NULL, scope TEXT NOT NULL,
        event TEXT NOT NULL, PRIMARY KEY (study, seq)) WITHOUT ROWID""",
        "INSERT INTO spends SELECT study, 0, 'record', event_of(mu, pure) FROM charged",
        "ALTER TABLE charged DROP COLUMN mu",
        "ALTER TABLE charged DROP COLUMN pure",
    ),
    # parts of two states are told apart
    5: (
        "ALTER TABLE streams ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0",
        """UPDATE streams SET waiting =
        (SELECT count(*) FROM outbox WHERE outbox.study = streams.study)""",
        "ALTER TABLE identity ADD COLUMN tables_sum INTEGER NOT NULL DEFAULT 0",
    ),
    # a version that does not know of it would go on with a study that another one follows
    6: ("ALTER TABLE streams ADD COLUMN follows TEXT",),
    # windows may differ in size; so far all had those that were charged
    7: (
        "ALTER TABLE streams ADD COLUMN held INTEGER NOT NULL DEFAULT 0",
        """UPDATE streams SET held = next_seq * coalesce(
        (SELECT slots FROM charged WHERE charged.study = streams.study), 0)""",
        # records of studies without privacy whose clients sent their sums again
        "DROP TABLE IF EXISTS kept",
    ),
}
#: The same for what was inherited, which a file that was never given any may lack.
INHERITED = (
    "ALTER TABLE inherited RENAME COLUMN apart TO noise_per_record",
    "ALTER TABLE inherited ADD COLUMN event TEXT NOT NULL DEFAULT ''",
    "UPDATE inherited SET event = event_of(mu, pure)",
    "ALTER TABLE inherited DROP COLUMN mu",
    "ALTER TABLE inherited DROP COLUMN pure",
)


def upgrade(database: sqlite3.Connection, schema: int) -> None:
    """Bring a file from an older schema to this one; its caller holds the transaction."""
    database.create_function(
        "event_of", 2, lambda mu, pure: encode(event_of(mu, pure)), deterministic=True
    )
    for step in range(schema, SCHEMA):
        for statement in STEPS[step]:
            database.execute(statement)
    inherited = "SELECT 1 FROM sqlite_master WHERE name = 'inherited'"
    if schema < 5 and database.execute(inherited).fetchone():
        for statement in INHERITED:
            database.execute(statement)
    database.execute("UPDATE identity SET schema = ?", (SCHEMA,))
