"""What the estimates of all methods share.

- `estimate`: the result type and class weights.
- `objective`: the penalised loss over rows that can all be read; `pooled`: the one reference solver
  of it; `target`: what the estimate of a study aims at.
- `forgetting`: the age of a release and its weight; `buckets`: states kept apart by age.
"""
