"""What the file of a new study of this kind says under [estimator]."""

from __future__ import annotations

LINES = """\
kind = "noisy-mle"            # each client is a site, which releases whole windows at once
loss = "logistic"             # or "linear", of a number: see [data]
# What a site sends. "auto" chooses by public numbers, and `study check` says what and why:
# "score", noised sums at the newest model, or "sufficient" (linear), noised sums that need none.
# "copies" are noisy copies of a site's own fit, for large windows (docs/methods/noisy-mle.md).
# sites: about how many there are, public. largest_share: the most that one may weigh, of all.
method = { release = "auto", sites = 10, largest_share = 0.5 }
# ridge: a number, part of what is estimated: slopes are drawn to 0 by it
norm_bound = "typical"        # longer records than 99 % of usual ones weigh less; or a number
# noise_scale = 2             # of linear: the residuals' standard deviation; "copies" need it
level = 0.95
# Let old releases fade, by half after so many records of all sites (or "seconds"):
# forgetting = { half_life = 50000, of = "records" }
"""
