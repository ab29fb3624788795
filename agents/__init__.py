"""The worker: thin Faust shells around the pure reducer.

- `transport`: Faust fed whole fetch batches, resuming from the stored watermark.
- `folding`: batches to state, dead letters and commits.
- `publishing`: the estimate step: merge partitions, estimate, publish.
- `app`: the Faust application. `worker`: how it is run and how it stops.
"""
