-- A client's database. One transaction of a release touches streams, spends, ledger and outbox.
-- tables_sum: of all rows of the others, see producers.database.
CREATE TABLE IF NOT EXISTS identity (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  schema INTEGER NOT NULL,
  client TEXT NOT NULL,
  ledger TEXT NOT NULL,
  created_at REAL NOT NULL,
  tables_sum INTEGER NOT NULL DEFAULT 0
);
-- What the MAC of claims is made with.
CREATE TABLE IF NOT EXISTS secrets (
  secret BLOB NOT NULL
);
-- Runs that have claims of a study on the ledger topic. own: the newest ones of this database itself.
-- Else one of another copy; settled: its releases of that study count as lost here by now.
CREATE TABLE IF NOT EXISTS runs (
  number INTEGER PRIMARY KEY,
  run TEXT NOT NULL,
  study TEXT NOT NULL,
  own INTEGER NOT NULL,
  settled INTEGER NOT NULL DEFAULT 0
);
-- One row for each study: where its source continues, the next release's number, and where in the
-- releases topic its newest acknowledged release is. owed: slots of lost releases that are still to be
-- passed over before anything is released. tested: slots that the test of the source has used up.
-- waiting: how many releases are in the outbox. follows: the study behind whose records this one began,
-- and which is over since. held: record slots of all its releases.
CREATE TABLE IF NOT EXISTS streams (
  study TEXT PRIMARY KEY,
  revision TEXT NOT NULL,
  source TEXT NOT NULL,
  position BLOB,
  next_seq INTEGER NOT NULL,
  records INTEGER NOT NULL,
  rejected INTEGER NOT NULL,
  clipped INTEGER NOT NULL,
  sent_partition INTEGER,
  sent_offset INTEGER,
  owed INTEGER NOT NULL DEFAULT 0,
  tested INTEGER NOT NULL DEFAULT 0,
  waiting INTEGER NOT NULL DEFAULT 0,
  follows TEXT,
  held INTEGER NOT NULL DEFAULT 0
);
-- Where the noise of a study's releases stands that remembers those before: chain and number of the
-- last one, slots of the chain, where epochs of models began in it, and the last rows of noise.
-- SECRET: with the releases that were sent, rows tell the exact sums of the last windows.
CREATE TABLE IF NOT EXISTS noise (
  study TEXT PRIMARY KEY,
  chain INTEGER NOT NULL,
  number INTEGER NOT NULL,
  slots INTEGER NOT NULL,
  starts BLOB NOT NULL,
  remembered BLOB NOT NULL
);
-- Noised tests of a study's source before its first release, and the file that was last tested.
CREATE TABLE IF NOT EXISTS source_tests (
  study TEXT PRIMARY KEY,
  tries INTEGER NOT NULL,
  stamp TEXT NOT NULL
);
-- What all studies together may learn about one unit of a source; epsilon NULL: no limit, because
-- the source was opened to studies without privacy.
CREATE TABLE IF NOT EXISTS sources (
  source TEXT PRIMARY KEY,
  epsilon REAL,
  delta REAL,
  unit_records INTEGER NOT NULL,
  neighbours TEXT NOT NULL
);
-- The files that a source name stands for: one file has one budget.
CREATE TABLE IF NOT EXISTS locations (
  location TEXT PRIMARY KEY,
  source TEXT NOT NULL
);
-- Studies that have been charged. noise_per_record: every record has noise of its own, so that the
-- costs of a user's records compose.
CREATE TABLE IF NOT EXISTS charged (
  study TEXT PRIMARY KEY,
  source TEXT NOT NULL,
  mechanism TEXT NOT NULL,
  epsilon REAL,
  delta REAL,
  unit_records INTEGER,
  neighbours TEXT,
  slots INTEGER NOT NULL,
  noise_per_record INTEGER NOT NULL
);
-- What releases have cost one record, as privacy events. scope "record": one row of a study, for all
-- of its releases; "release": one for each.
CREATE TABLE IF NOT EXISTS spends (
  study TEXT NOT NULL,
  seq INTEGER NOT NULL,
  scope TEXT NOT NULL,
  event TEXT NOT NULL,
  PRIMARY KEY (study, seq)
) WITHOUT ROWID;
-- Studies whose releases carry the times of their records: the column that holds them, and the time
-- of the newest release in milliseconds since 1970; NULL before the first.
CREATE TABLE IF NOT EXISTS event_times (
  study TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  latest INTEGER
);
-- Every release, for ever; lost: it is known from the releases topic alone.
CREATE TABLE IF NOT EXISTS ledger (
  study TEXT NOT NULL,
  seq INTEGER NOT NULL,
  at TEXT NOT NULL,
  lost INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (study, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refusals (
  study TEXT NOT NULL,
  reason TEXT NOT NULL,
  at TEXT NOT NULL
);
-- Releases that Kafka has not acknowledged, in the bytes in which they will always be sent.
CREATE TABLE IF NOT EXISTS outbox (
  study TEXT NOT NULL,
  seq INTEGER NOT NULL,
  payload BLOB NOT NULL,
  headers BLOB NOT NULL,
  crc INTEGER NOT NULL,
  PRIMARY KEY (study, seq)
) WITHOUT ROWID;
-- How many slots of all releases have no place in the source: their windows closed before they were full.
CREATE TABLE IF NOT EXISTS empty_slots (
  study TEXT PRIMARY KEY,
  empty INTEGER NOT NULL
) WITHOUT ROWID;
-- Slots whose record could not be used: where and why, never what.
CREATE TABLE IF NOT EXISTS rejects (
  study TEXT NOT NULL,
  reason TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (study, reason)
) WITHOUT ROWID;
-- What this client has spent under other ledgers, or under a state of this one that was lost, as an
-- exported file or the ledger topic says; event: all releases together. counts = 0: the data owner says that the source holds other
-- records than the topic speaks of.
CREATE TABLE IF NOT EXISTS inherited (
  ledger TEXT NOT NULL,
  study TEXT NOT NULL,
  source TEXT NOT NULL,
  mechanism TEXT NOT NULL,
  epsilon REAL,
  delta REAL,
  unit_records INTEGER,
  neighbours TEXT,
  noise_per_record INTEGER NOT NULL,
  slots INTEGER NOT NULL,
  releases INTEGER NOT NULL,
  origin TEXT NOT NULL,
  counts INTEGER NOT NULL,
  event TEXT NOT NULL,
  PRIMARY KEY (ledger, study, source)
) WITHOUT ROWID;
-- Sources, by name or by hash, that were released elsewhere and hold other records than this one.
CREATE TABLE IF NOT EXISTS other_records (
  source TEXT NOT NULL,
  other TEXT NOT NULL,
  PRIMARY KEY (source, other)
) WITHOUT ROWID;
