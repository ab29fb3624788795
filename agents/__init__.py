"""The worker: thin Faust shells around the pure reducer.

- `worker`: how it is run and how it stops. `app`: the Faust application, resuming from the stored
  watermark. `folding`: batches to state, dead letters and commits.
- `publishing`: the estimate step: merge partitions, estimate, publish. `announcing`: what is said
  to clients.
- `rebuild`, `replay`: the same state and estimates again, from the log.
"""
