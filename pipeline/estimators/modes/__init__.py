"""The published methods of online federated DWD, as plain functions and classes on arrays.

Baselines and reproductions: no client of this project releases anything through them. What each
keeps private, or does not, is a sentence in its result. Source of all: dwd.

Without noise: `pooled` and `majorised` (OffNP: exact, and by the stopping rule of its package),
`federated` (OffWP), `online` (OnWP), `additive` (the same estimate from sums of any order).
With noise: `trusted_noise`, `trusted` (OnWDP: an aggregator that is trusted), `message_noise`,
`private_online` (every message noised, by each client alone or by all together).
By a study's `estimator.kind`: `selected` (`fit_mode`), with `task`, `methods`, `claims`, `spread`
and `separation`.
Shared: `objective`, `ridge`, `class_balance`, `result`.
"""

from __future__ import annotations

from pipeline.estimators.modes.additive import AdditiveSums
from pipeline.estimators.modes.class_balance import ClassBalance
from pipeline.estimators.modes.federated import federated_fit, undamped_iterates
from pipeline.estimators.modes.majorised import majorised_fit
from pipeline.estimators.modes.message_noise import MessageNoise
from pipeline.estimators.modes.objective import PenalisedLoss, Records, Sums, sums_at
from pipeline.estimators.modes.online import OnlineFit
from pipeline.estimators.modes.pooled import pooled_fit
from pipeline.estimators.modes.private_online import PrivateOnlineFit
from pipeline.estimators.modes.result import Fit
from pipeline.estimators.modes.ridge import Ridge
from pipeline.estimators.modes.trusted import TrustedOnlineFit
from pipeline.estimators.modes.trusted_noise import GaussianNoise, GivenNoise, LaplaceNoise

__all__ = [
    "AdditiveSums",
    "ClassBalance",
    "Fit",
    "GaussianNoise",
    "GivenNoise",
    "LaplaceNoise",
    "MessageNoise",
    "OnlineFit",
    "PenalisedLoss",
    "PrivateOnlineFit",
    "Records",
    "Ridge",
    "Sums",
    "TrustedOnlineFit",
    "federated_fit",
    "majorised_fit",
    "pooled_fit",
    "sums_at",
    "undamped_iterates",
]
