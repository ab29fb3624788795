"""Records of a client as numbers, and as windows of them.

- `values`, `response`, `classes`: one field of a record.
- `encode`: one record, or consecutive ones together.
- `columns`, `batches`: tables and batches of them.
- `windows`: records that leave together. `blocks`: passes over many rows.
"""
