"""From payloads to state, pure: the heart of the system.

- `fold`: a batch of log records into a partition's state; bad ones come back as dead letters.
- `numbering`: which releases of a batch are new. `head`: counters, and what has come of a client.
- `admissions`: who may release. `partition`: the state of a partition and its stored form.
  `checksums`: of what is stored.
- `merging`: the states of all partitions to one estimate and the next model, and when the first
  one may go out.
"""
