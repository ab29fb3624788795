"""Noise and sensitivities; the maths of the guarantee.

- `gdp`: mu-GDP, its exact (epsilon, delta) form and composition.
- `sensitivity`: how far one record moves each sum.
- `channel`: lattice and noise scale of one released vector.
- `discrete_gaussian`, `randomness`: integer noise from a cryptographic generator.
- `policy`: the statement that goes with every estimate.
"""
