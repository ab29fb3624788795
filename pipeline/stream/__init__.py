"""From records to estimates without Kafka: pure, the heart of the system.

- `release`: a client's half, from a window to a payload. `fold`: the worker's half, from a batch of
  the log to a partition's state; bad records come back as dead letters.
- `partition`: the state of a partition, its counters and checksums.
- `merge`: the states of all partitions to one estimate and the next model.
- `in_process`: both halves in one process. `replay`: a log folded again, from anywhere to anywhere.
"""
