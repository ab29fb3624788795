"""What leaves a client, pure: from a window to a sealed answer.

- `task`: what clients and workers of a study share: bounds, budget, queries.
- `model`: the point at which a window is asked. `policy`: when windows leave, and models are due.
- `query`: exact sums and the noise that they need. `privatise`: the only doors out.
- `layout`: the numbers of a release, and its bytes.
- `budget`: what releases cost. `quality`: whether a source has records that a study can use.
"""
