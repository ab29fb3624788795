"""States that fold releases, and the estimates they yield.

- `exact`: integer sums without overflow; `private_state`, `private_sums`, `private_estimate`:
  studies with noise.
- `open_state`, `open_estimate`: studies without; the additive form.
- `forgetting`: the age of a release and its weight; `buckets`: states kept apart by age.
- `estimate`: the result type and class weights.
- `pooled`: the one reference solver, over rows that can all be read; `target`: what the estimate of
  a study aims at.
"""
