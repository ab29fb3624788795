"""What the estimates of all methods share.

- `estimate`: the result type and class weights.
- `pooled`: the one reference solver, over rows that can all be read; `target`: what the estimate of
  a study aims at.
- `forgetting`: the age of a release and its weight; `buckets`: states kept apart by age.
"""
