"""Age-aware collection: which client reports when, with how much noise (Lin et al. 2024).

Where only the present value of a record is sensitive and records change, an old value needs less
noise than a fresh one. A scheduler gives each client a slot of the round; what is protected, and
against what, is in docs/methods/age-aware.md.

- `markov`: how records change, how much of a value is left after some slots, estimated cards, too.
- `card`: how a card is estimated under privacy.
- `schedule`: who reports when, with how much noise, and the loss that is expected.
- `client`: a round's release, and what several of them cost a value at any time.
- `estimate`, `method`: rounds at the worker, and what the rest knows of them. `plan`: what people
  are told.
"""
