"""Noise and sensitivities; the maths of the guarantee.

- `mechanism`: how a study divides its budget; lattice and noise scale of one released vector.
- `samplers`, `laws`, `randomness`: integer noise from a cryptographic generator.
- `memory`: noise that remembers earlier releases. `sensitivity`: how far one record moves a sum.
- `events`, `accounting`: what releases cost together. `guarantee`: what goes with every estimate.
"""
