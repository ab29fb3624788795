"""The published methods of online federated DWD: baselines and reproductions, for files alone.

No client of this project releases anything through them; what each keeps private, or does not, is a
sentence of its own. Source of all: dwd.

- `fits`: OffNP (exact, and by the stopping rule of its package) and OffWP. `online`: OnWP, OnWDP,
  and messages with noise of their own. `noise`: their noise, and what it is worth.
- `method`, `spec`: what the rest of the program sees, and the keys of a study.
"""

from __future__ import annotations

from pipeline.methods.published import noise as noises
from pipeline.methods.published import online as runs
from pipeline.methods.published.method import Published
from pipeline.methods.published.spec import (
    Distributed,
    Gaussian,
    Laplace,
    Offline,
    Online,
    Spec,
    Undamped,
)

_ONE_PLACE = "all raw records in one place"
_ROUNDS = "several rounds over the same records"
_AGGREGATOR = "a trusted aggregator that sees raw sums"
_RAW = "class counts and record counts: as they are, with the raw records"
_SENT = "class counts and record counts: sent as they are"
_NOISED = "simulated noise, or none"

POOLED = Published(
    "pooled", "OffNP", "penalised fit to all records in one place, converged", _ONE_PLACE,
    Offline, runs.pooled, lambda task, clients: noises.POOLED, _RAW, weighted=True,
)  # fmt: skip
POOLED_MM = Published(
    "pooled-mm", "OffNP by kerndwd",
    "the same by majorisation-minimisation, stopped as kerndwd does; its lambda is ridge / 2",
    _ONE_PLACE, Spec, runs.pooled_mm, lambda task, clients: noises.POOLED, _RAW,
)  # fmt: skip
FEDERATED = Published(
    "federated-newton", "OffWP", "damped Newton steps on sums of all clients", _ROUNDS,
    Offline, runs.federated, lambda task, clients: noises.FEDERATED, _SENT, weighted=True,
)  # fmt: skip
UNDAMPED = Published(
    "federated-newton-undamped", "OffWP as published",
    "literal Newton steps of eq. (16) from zero; a reproduction", _ROUNDS,
    Undamped, runs.undamped, lambda task, clients: noises.FEDERATED, _SENT,
)  # fmt: skip
ONLINE = Published(
    "online-newton", "OnWP", "one Newton step for each batch, eq. (37)",
    "batches with a window of every client, all at the same point",
    Online, runs.online, lambda task, clients: noises.FEDERATED, _SENT,
    start=runs.online_start, weighted=True,
)  # fmt: skip
LAPLACE = Published(
    "online-newton-laplace", "OnWDP, Laplace",
    "OnWP with an aggregator's Laplace noise, Algorithm 2; a reproduction", _AGGREGATOR,
    Laplace, runs.trusted, noises.of_trusted(Laplace), _NOISED, start=runs.trusted_start,
)  # fmt: skip
GAUSSIAN = Published(
    "online-newton-gaussian", "OnWDP, Gaussian",
    "OnWP with an aggregator's Gaussian noise, Algorithm 2; a reproduction", _AGGREGATOR,
    Gaussian, runs.trusted, noises.of_trusted(Gaussian), _NOISED, start=runs.trusted_start,
)  # fmt: skip
DISTRIBUTED = Published(
    "online-newton-distributed", "",
    "OnWP with a share of the noise from each client, as under secure aggregation",
    "secure aggregation, which this program does not have",
    Distributed, runs.distributed, noises.of_distributed, _NOISED,
    start=runs.distributed_start, weighted=True, wide=True,
)  # fmt: skip
