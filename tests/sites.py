"""Studies and streams for tests of many sites."""

from __future__ import annotations

import hashlib

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of as make_task
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.records.encoder import Arrays
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests import builders

TRUTH = {
    "logistic": np.array([0.2, 0.5, -0.4, 0.3]),
    "linear": np.array([0.1, 0.3, -0.25, 0.2]),
}
SPREAD = 0.15


def study_text(method: str = "", *, kind: str = "noisy-mle", **settings: object) -> str:
    """Return a study of sites; `method` is its table's text, the rest as in `builders`."""
    text = builders.study_text(**settings)  # type: ignore[arg-type]
    table = f"method = {{ {method} }}\n" if method else ""
    return text.replace("[estimator]\n", f'[estimator]\nkind = "{kind}"\n{table}')


def task_of(text: str) -> SiteTask:
    """Return the task of a study text."""
    task = make_task(parse_study(text))
    assert isinstance(task, SiteTask)
    return task


def name_of(site: int) -> str:
    """Return what estimates call a site of `run`."""
    return hashlib.blake2b(f"site-{site}".encode(), digest_size=16).hexdigest()


def window(
    loss: str, records: int, rng: np.random.Generator, *, lie: bool = False, spread: float = SPREAD
) -> Arrays:
    """Return a window of three uniform features; a lie has the opposite responses."""
    truth = TRUTH[loss]
    features = rng.uniform(-1, 1, (records, 3))
    predictor = truth[0] + features @ truth[1:]
    if loss == "logistic":
        responses = np.where(rng.random(records) < 1 / (1 + np.exp(-predictor)), 1.0, -1.0)
    else:
        responses = np.clip(predictor + spread * rng.standard_normal(records), -1, 1)
    return Arrays(features, -responses if lie else responses)


def run(
    loss: str, *, seed: int, sites: int = 8, windows: int = 4, records: int = 400,
    liars: int = 0, method: str = "", **settings: object,
) -> Estimate:  # fmt: skip
    """Return the estimate of a stream: each site sends a window, then a model, and so on.

    The first `liars` sites lie. Noise and records follow from the seed.
    """
    given: dict[str, object] = {
        "p": 3, "loss": loss, "records": records, "releases": sites, "ridge": 1e-3,
        "mechanism": "insecure-simulation", "norm_bound": "typical", "seed": seed,
    }  # fmt: skip
    stream = OfflineRun(make_task(parse_study(study_text(method, **(given | settings)))))
    rng = np.random.default_rng(seed)
    for _ in range(windows):
        for site in range(sites):
            stream.add(f"site-{site}", window(loss, records, rng, lie=site < liars))
    return stream.publish()


def truth_in(estimate: Estimate, truth: Vector) -> Vector:
    """Return which intervals hold the truth, shape (d,)."""
    ends = estimate.intervals(0.95)
    assert ends is not None
    return (ends[0] <= truth) & (truth <= ends[1])
