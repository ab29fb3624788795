"""What runs at a client: its stream in, private releases out.

- `sources/`: CSV, JSON lines, standard input, demo data.
- `store`: the client's database: ledger, outbox and source position in one transaction.
- `client`: windows to releases. `sender`: the outbox to Kafka. `models`: the newest model.
- `run`: how they are joined.
"""
