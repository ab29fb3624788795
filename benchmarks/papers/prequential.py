"""Six figures on a real stream in the order of time: each record is predicted, then learnt.

`python -m benchmarks.papers.prequential [--data FOLDER]`, and part of `python -m
benchmarks.papers.dwd` where the folder of elec.csv.gz is known (PAPERS_DATA). Ours learn through
`StreamClassifier`, which changes with each window, so the 250 records of a window are predicted
together before any of them is learnt. Beside them River's logistic regression behind its scaler and
its Hoeffding tree, which learn after every record, and once more with the labels of 250 records at
a time; and the rule that repeats the last label, which no classifier of the features alone can know
about. Before the first model everything is called negative. A half-life is given in records. Time
is the whole pass in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.papers.cells import Cell, show
from benchmarks.papers.six_figures import FIGURES, Dataset, electricity, rates
from pipeline.learning import StreamClassifier
from pipeline.types import Vector

RESULTS = Path(__file__).parent.parent / "results" / "prequential.json"
#: Penalties of studies without noise, with the half-lives that are tried beside none. The features
#: of this stream use a few hundredths of their ranges, and a larger ridge holds them back.
SETTINGS: dict[str, tuple[int | None, ...]] = {"1e-3": (None, 2_000), "1e-5": (None, 2_000, 5_000)}
#: Noised studies have windows of this many records, and these budgets.
WINDOW, NOISED_HALF_LIVES, EPSILONS = 250, (None, 2_000), (1.0, 4.0)
#: Noise of the same study differs from run to run; without noise a run repeats itself.
SEEDS = 5
STUDY = """
[study]
name = "elec"
[data]
response = {{ name = "y", positive = "1", negative = "-1" }}
[data.features]
{features}
[estimator]
loss = "{loss}"
ridge = {ridge}
{forgetting}
[privacy]
{privacy}
[window]
records = {window}
[stream]
publish = {{ releases = 1 }}
"""
#: A pass over the stream: scores of the records, positive for the positive class.
Pass = Callable[[], Vector]


def main() -> None:
    """Print the table of elec.csv.gz and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PAPERS_DATA"))
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER (or PAPERS_DATA) must name the folder of elec.csv.gz")
    cells = table(electricity(Path(options.data)))
    print(show(cells, title="elec in the order of time: mean (sd) over seeds of the noise"))
    rows = [{"method": c.row, "figure": c.column, "value": c.ours, "sd": c.sd} for c in cells]
    RESULTS.write_text(json.dumps({"seeds": SEEDS, "rows": rows}, indent=1) + "\n")


def table(data: Dataset) -> list[Cell]:
    """Return the six figures of every method."""
    cells = []
    for name, passes in methods(data).items():
        runs = []
        for once in passes:
            begun = time.perf_counter()
            scores = once()
            seconds = time.perf_counter() - begun
            runs.append((*rates(scores, data.responses), seconds))
        for place, column in enumerate(FIGURES):
            values = [run[place] for run in runs]
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            cells.append(
                Cell(
                    table=f"{data.name} in time", row=name, column=column, paper=None,
                    ours=float(np.mean(values)), sd=sd, mc_error=sd / len(values) ** 0.5,
                )
            )  # fmt: skip
    return cells


def methods(data: Dataset) -> dict[str, list[Pass]]:
    """Return the passes of every method by its name, one for each seed."""
    found: dict[str, list[Pass]] = {}
    for loss in ("gdwd", "logistic"):
        for ridge, half_lives in SETTINGS.items():
            for half_life in half_lives:
                name = f"{loss}, ridge {ridge}{_note(half_life)}"
                found[name] = [ours(data, loss, half_life, None, ridge=ridge)]
        for half_life in NOISED_HALF_LIVES:
            for epsilon in EPSILONS:
                found[f"{loss}, epsilon {epsilon:g}{_note(half_life)}"] = [
                    ours(data, loss, half_life, epsilon, seed=seed) for seed in range(SEEDS)
                ]
    for window in (1, WINDOW):
        late = "" if window == 1 else f", labels of {window} at a time"
        for name, kind in (("logistic regression", "logistic"), ("Hoeffding tree", "tree")):
            found[f"River {name}{late}"] = [partial(river_pass, data, kind, window)]
    found["the last label again"] = [lambda: np.append(-1.0, data.responses[:-1])]
    return found


def _note(half_life: int | None) -> str:
    return "" if half_life is None else f", half-life {half_life}"


def ours(
    data: Dataset,
    loss: str,
    half_life: int | None,
    epsilon: float | None,
    *,
    seed: int = 0,
    ridge: str = "1e-3",
) -> Pass:
    """Return a pass of our classifier; its noise has the deviations of a real study's."""
    names = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(data.features.shape[1]))
    private, forgetting = 'mechanism = "none"', ""
    if epsilon is not None:
        private = (
            f'mechanism = "insecure-simulation"\nepsilon = {epsilon}\ndelta = 1e-6\nseed = {seed}'
        )
    if half_life is not None:
        forgetting = f'forgetting = {{ half_life = {half_life}, of = "records" }}'
    text = STUDY.format(
        features=names, loss=loss, ridge=ridge, forgetting=forgetting, privacy=private,
        window=WINDOW,
    )  # fmt: skip

    def run() -> Vector:
        learner = StreamClassifier(text)
        scores = np.zeros(len(data.responses))
        for start in range(0, len(scores), WINDOW):
            part = slice(start, start + WINDOW)
            if start:
                scores[part] = learner.decision_function(data.features[part])
            learner.partial_fit(data.features[part], data.responses[part].astype(int))
        return scores

    return run


def river_pass(data: Dataset, kind: str, window: int) -> Vector:
    """Predict record by record with River, and learn the labels of a window at its end."""
    from river import compose, linear_model, preprocessing, tree  # noqa: PLC0415 - heavy

    model = (
        compose.Pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
        if kind == "logistic"
        else tree.HoeffdingTreeClassifier()
    )
    records = [dict(enumerate(row)) for row in data.features.tolist()]
    scores = np.zeros(len(records))
    for start in range(0, len(records), window):
        part = range(start, min(start + window, len(records)))
        for i in part:
            scores[i] = 1.0 if model.predict_one(records[i]) else -1.0
        for i in part:
            model.learn_one(records[i], bool(data.responses[i] > 0))
    return scores


if __name__ == "__main__":
    main()
