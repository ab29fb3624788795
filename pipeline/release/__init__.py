"""What leaves a client, pure: from a window to a sealed answer.

- `task`: what clients and workers of a study share; `bounds`: its declared ranges and norms.
- `model`: the point at which a window is asked. `rows`: records within their bounds.
- `query`: exact sums and the noise that they need. `privatise`: the only doors out.
- `usable`: whether a source has records that a study can use.
"""
