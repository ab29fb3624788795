"""What the estimates of all methods share.

- `estimate`: the result type and class weights.
- `reference_fit`: the penalised loss over rows that can all be read, its one solver, and what the
  estimate of a study aims at.
- `forgetting`: the age of a release and its weight. `integer_sums`: sums that no order changes.
- `population`: records drawn from public numbers.
"""
