"""Age-aware collection: which client reports when, with how much noise (Lin et al. 2024).

Where only the present value of a record is sensitive and records change, an old value needs less
noise than a fresh one. A scheduler gives each client a slot of the round; what is protected, and
against what, is in docs/methods/age-aware.md.

- `chains`: how records change: Markov chains and their moments.
- `mixing`: how much of a value is left after some slots.
- `estimated`, `card`: the same of a card that is estimated, under privacy, and how that is done.
- `guarantee`: noise at collection and protection of the present, one from the other.
- `nested`: what several releases of one client say together about its value at any time.
- `objective`: the expected loss of a schedule; `plan`: the best one.
"""
