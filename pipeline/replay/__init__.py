"""A log folded again, from anywhere to anywhere: the pure parts of `veilstream replay`.

- `ranges`: where a replay begins and ends, what the log has lost of that, and when an estimate is
  due, in the time of the log or in releases.
- `run`: records of several partitions in one order in, estimates out.
- `what_if`: which settings may differ from the live ones.
- `comparing`: two estimates, number by number.
"""
