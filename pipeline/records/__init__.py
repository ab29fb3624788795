"""Records of a client as numbers, and as windows of them.

- `values`: one field of a record. `features`: the columns that fields become.
- `encoder`: records, one by one or consecutive ones together. `columns`: tables.
- `blocks`: records that leave together, and passes over many rows.
"""
