"""What decides whether an estimate of copies is shown: what records add to the sites' ridges.

A fit with a ridge goes the share k = l / (l + ridge) of the way from where the ridge draws it, l
being the information of a record. An estimate divides by that share, which is known from scatters
and has their noise, (1 - k) sqrt(2 / degrees).
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.methods.noisy_mle.copies_near import Fit
from pipeline.methods.noisy_mle.copies_ridge import Penalised
from pipeline.methods.noisy_mle.copies_sent import Sent
from pipeline.methods.noisy_mle.shown import Shown


def deciding(sent: Sent, fit: Fit, drawn: Penalised, limit: float) -> Shown:
    """Return the shares of the way in all directions of the information, which are all positive.

    limit: What no share is below where the estimate is shown.
    """
    copies, theta = sent.copies, fit.found.theta
    values, axes = np.linalg.eigh(fit.found.information)
    shares = values / (values + copies.ridge)
    degrees = max(float(fit.weights @ copies.degrees), 1.0)
    deviations = np.maximum((1 - shares) * math.sqrt(2 / degrees), 1e-300)
    mass = fit.weights * copies.records / float(fit.weights @ copies.records)
    return Shown(
        axes=axes,
        clear=np.maximum(shares - limit, 0.0) / deviations,
        limits=limit / deviations,
        gains=drawn.turn @ axes * (deviations / shares),
        way=theta if copies.centres is None else theta - mass @ copies.centres,
    )
