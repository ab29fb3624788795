"""What runs at a client: its stream in, private releases out.

- `start`: how the parts are joined. `sources/`: where records come from. `client`: windows to
  releases. `sender`: the outbox to Kafka. `models`: the newest model.
- `database`, `store`: ledger, outbox and source position in one transaction. `budget`: what may be
  spent. `rollback`, `prior_spend`, `source_registry`: nothing is spent twice.
"""
