-- A client's database. One transaction of a release touches streams, ledger and outbox.
CREATE TABLE IF NOT EXISTS identity (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  schema INTEGER NOT NULL,
  client TEXT NOT NULL,
  ledger TEXT NOT NULL,
  created_at TEXT NOT NULL
);
-- One row for each study: where its source continues, and the next release's number.
CREATE TABLE IF NOT EXISTS streams (
  study TEXT PRIMARY KEY,
  revision TEXT NOT NULL,
  source TEXT NOT NULL,
  position BLOB,
  next_seq INTEGER NOT NULL,
  records INTEGER NOT NULL,
  rejected INTEGER NOT NULL,
  clipped INTEGER NOT NULL
);
-- What one study may learn and has learnt about the records of one source; mu NULL: no privacy.
CREATE TABLE IF NOT EXISTS sources (
  source TEXT PRIMARY KEY,
  epsilon REAL,
  delta REAL
);
-- Every release, for ever.
CREATE TABLE IF NOT EXISTS ledger (
  study TEXT NOT NULL,
  seq INTEGER NOT NULL,
  source TEXT NOT NULL,
  mechanism TEXT NOT NULL,
  mu REAL,
  epsilon REAL,
  delta REAL,
  slots INTEGER NOT NULL,
  at TEXT NOT NULL,
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
  PRIMARY KEY (study, seq)
) WITHOUT ROWID;
-- Slots whose record could not be used: where and why, never what.
CREATE TABLE IF NOT EXISTS rejects (
  study TEXT NOT NULL,
  reason TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (study, reason)
) WITHOUT ROWID;
