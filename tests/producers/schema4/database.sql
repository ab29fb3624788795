BEGIN TRANSACTION;
CREATE TABLE event_times (
  study TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  latest INTEGER
);
CREATE TABLE identity (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  schema INTEGER NOT NULL,
  client TEXT NOT NULL,
  ledger TEXT NOT NULL,
  created_at REAL NOT NULL
);
INSERT INTO "identity" VALUES(1,4,'site','24b5df75af1f1038',1.79533774221293330195e+09);
CREATE TABLE inherited (
  ledger TEXT NOT NULL,
  study TEXT NOT NULL,
  source TEXT NOT NULL,
  mechanism TEXT NOT NULL,
  epsilon REAL,
  delta REAL,
  unit_records INTEGER,
  neighbours TEXT,
  mu REAL,
  pure REAL,
  apart INTEGER NOT NULL,
  slots INTEGER NOT NULL,
  releases INTEGER NOT NULL,
  origin TEXT NOT NULL,
  counts INTEGER NOT NULL,
  PRIMARY KEY (ledger, study, source)
) WITHOUT ROWID;
INSERT INTO "inherited" VALUES('923b8c828bfe0afe','excused','csv:b.csv','discrete-laplace',0.7,NULL,1,'zero-out',8.69829092584214369487e-01,0.7,0,20,1,'topic',0);
INSERT INTO "inherited" VALUES('caa1753de2bb9c91','gaussian-elsewhere','csv:a.csv','discrete-gaussian',0.3,1.0e-05,1,'zero-out',8.89834528738046581786e-02,NULL,0,20,1,'file',1);
INSERT INTO "inherited" VALUES('caa1753de2bb9c91','gradients-elsewhere','csv:a.csv','discrete-gaussian',1.5,1.0e-06,4,'replace-one',1.7217287296668234986e-01,NULL,1,20,1,'file',1);
INSERT INTO "inherited" VALUES('caa1753de2bb9c91','laplace-elsewhere','csv:a.csv','discrete-laplace',0.2,NULL,1,'zero-out',2.50483905068871359755e-01,0.2,0,20,1,'file',1);
INSERT INTO "inherited" VALUES('caa1753de2bb9c91','told','csv:b.csv','discrete-laplace',0.4,NULL,1,'zero-out',4.9990345489044096805e-01,0.4,0,20,1,'file',1);
CREATE TABLE ledger (
  study TEXT NOT NULL,
  seq INTEGER NOT NULL,
  at TEXT NOT NULL,
  lost INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (study, seq)
) WITHOUT ROWID;
INSERT INTO "ledger" VALUES('absent',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('gradients',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('laplace',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('levels',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('levels',1,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('lost',0,'2001-09-09T01:46:40.000000Z',1);
INSERT INTO "ledger" VALUES('lost',1,'2001-09-09T01:46:40.000000Z',1);
INSERT INTO "ledger" VALUES('lost',2,'2001-09-09T01:46:40.000000Z',1);
INSERT INTO "ledger" VALUES('one',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('one',1,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('open',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('users',0,'2001-09-09T01:46:40.000000Z',0);
INSERT INTO "ledger" VALUES('zero-out',0,'2001-09-09T01:46:40.000000Z',0);
CREATE TABLE locations (
  location TEXT PRIMARY KEY,
  source TEXT NOT NULL
);
CREATE TABLE other_records (
  source TEXT NOT NULL,
  other TEXT NOT NULL,
  PRIMARY KEY (source, other)
) WITHOUT ROWID;
CREATE TABLE outbox (
  study TEXT NOT NULL,
  seq INTEGER NOT NULL,
  payload BLOB NOT NULL,
  headers BLOB NOT NULL,
  crc INTEGER NOT NULL,
  PRIMARY KEY (study, seq)
) WITHOUT ROWID;
INSERT INTO "outbox" VALUES('absent',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('gradients',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('laplace',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('levels',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('levels',1,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('one',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('one',1,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('open',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('users',0,X'6279746573',X'90',1583352381);
INSERT INTO "outbox" VALUES('zero-out',0,X'6279746573',X'90',1583352381);
CREATE TABLE refusals (
  study TEXT NOT NULL,
  reason TEXT NOT NULL,
  at TEXT NOT NULL
);
INSERT INTO "refusals" VALUES('too-much','source ''csv:a.csv'': 5 other studies and this one would reach epsilon 19.64 at delta 1e-05 for one record (zero-out), the limit is 12; raise it with --epsilon-limit if the data owner agrees, or stop this study','2001-09-09T01:46:40.000000Z');
CREATE TABLE rejects (
  study TEXT NOT NULL,
  reason TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (study, reason)
) WITHOUT ROWID;
INSERT INTO "rejects" VALUES('absent','a reason',2);
INSERT INTO "rejects" VALUES('gradients','a reason',2);
INSERT INTO "rejects" VALUES('laplace','a reason',2);
INSERT INTO "rejects" VALUES('levels','a reason',4);
INSERT INTO "rejects" VALUES('one','a reason',4);
INSERT INTO "rejects" VALUES('open','a reason',2);
INSERT INTO "rejects" VALUES('users','a reason',2);
INSERT INTO "rejects" VALUES('zero-out','a reason',2);
CREATE TABLE source_tests (
  study TEXT PRIMARY KEY,
  tries INTEGER NOT NULL,
  stamp TEXT NOT NULL
);
CREATE TABLE sources (
  source TEXT PRIMARY KEY,
  epsilon REAL,
  delta REAL,
  unit_records INTEGER NOT NULL,
  neighbours TEXT NOT NULL
);
INSERT INTO "sources" VALUES('csv:a.csv',12.0,1.0e-05,1,'zero-out');
INSERT INTO "sources" VALUES('csv:b.csv',3.0,0.0,1,'replace-one');
INSERT INTO "sources" VALUES('csv:p.csv',4.0,1.0e-06,1,'replace-one');
INSERT INTO "sources" VALUES('csv:c.csv',NULL,0.0,1,'zero-out');
CREATE TABLE spends (
  study TEXT PRIMARY KEY,
  source TEXT NOT NULL,
  mechanism TEXT NOT NULL,
  epsilon REAL,
  delta REAL,
  unit_records INTEGER,
  neighbours TEXT,
  mu REAL,
  pure REAL,
  slots INTEGER NOT NULL,
  apart INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "spends" VALUES('one','csv:a.csv','discrete-gaussian',1.0,1.0e-05,1,'zero-out',2.68051123211287822822e-01,NULL,20,0);
INSERT INTO "spends" VALUES('users','csv:a.csv','discrete-gaussian',2.0,1.0e-05,5,'zero-out',1.00310337833925372619e-01,NULL,20,0);
INSERT INTO "spends" VALUES('absent','csv:a.csv','discrete-laplace',0.5,NULL,1,'replace-one',6.23892592098508225184e-01,0.5,20,0);
INSERT INTO "spends" VALUES('gradients','csv:a.csv','discrete-gaussian',2.0,1.0e-06,9,'replace-one',1.49444913465059364687e-01,NULL,20,1);
INSERT INTO "spends" VALUES('laplace','csv:b.csv','discrete-laplace',1.0,NULL,1,'replace-one',1.23203538534490109057e+00,1.0,20,0);
INSERT INTO "spends" VALUES('zero-out','csv:b.csv','discrete-laplace',0.25,NULL,1,'zero-out',3.12979499481629674928e-01,0.25,20,0);
INSERT INTO "spends" VALUES('levels','csv:p.csv','discrete-gaussian',2.0,1.0e-06,1,'replace-one',4.48334740395191944095e-01,NULL,20,1);
INSERT INTO "spends" VALUES('open','csv:c.csv','none',NULL,NULL,NULL,NULL,NULL,NULL,20,0);
INSERT INTO "spends" VALUES('lost','csv:a.csv','discrete-gaussian',1.0,1.0e-05,1,'zero-out',2.68051123211287822822e-01,NULL,20,0);
CREATE TABLE streams (
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
  tested INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "streams" VALUES('one','88c273287becd13e','csv:a.csv',X'7031',2,40,4,2,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('users','0e4e70c5d1ad7c80','csv:a.csv',X'7030',1,20,2,1,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('absent','5fae9398c6a5bb79','csv:a.csv',X'7030',1,20,2,1,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('gradients','c1310440efdfaf76','csv:a.csv',X'7030',1,20,2,1,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('laplace','8a1b6831a036d1a5','csv:b.csv',X'7030',1,20,2,1,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('zero-out','db573437c479ba97','csv:b.csv',X'7030',1,20,2,1,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('levels','25ce1b976da4cf1b','csv:p.csv',X'7031',2,40,4,2,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('open','428df22a5c81394d','csv:c.csv',X'7030',1,20,2,1,NULL,NULL,0,0);
INSERT INTO "streams" VALUES('lost','88c273287becd13e','csv:a.csv',NULL,3,0,0,0,NULL,NULL,60,0);
INSERT INTO "streams" VALUES('too-much','85d43120b0bf92a8','csv:a.csv',NULL,0,0,0,0,NULL,NULL,0,0);
CREATE VIEW charges AS
  SELECT study, source, mu, pure, apart, neighbours, 1 AS own FROM spends
  UNION ALL
  SELECT study, source, mu, pure, apart, neighbours, inherited.ledger = identity.ledger
  FROM inherited, identity WHERE counts = 1 AND NOT (inherited.ledger = identity.ledger AND EXISTS (
    SELECT 1 FROM spends WHERE spends.study = inherited.study AND spends.source = inherited.source
    AND spends.mu >= inherited.mu));
COMMIT;
