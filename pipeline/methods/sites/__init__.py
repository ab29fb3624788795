"""What methods of sites share: weighed records, the state of each site, guards and the report.

`noisy_mle` and `noisy_copies` stand on it. A site releases whole windows, its sums are kept apart
from those of others, and sites that disagree with most weigh less.
"""
