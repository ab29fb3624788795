"""Six figures on a real stream in the order of time: each record is predicted, then learnt.

`python -m benchmarks.papers.prequential [--data FOLDER]`, and part of `python -m
benchmarks.papers.dwd` where the folder of elec.csv.gz is known (PAPERS_DATA). Ours learn through
`StreamClassifier`, which changes with each window of 250 records, so the records of a window are
predicted together before any of them is learnt. Beside them: River's logistic regression behind its
scaler and its Hoeffding tree, which learn after every record, and the rule that repeats the last
label, which no classifier of the features alone can know about. Before the first model everything
is called negative. "forgetting" halves the weight of a record every 2,000 records; it is there
where the study file has that key. Time is the whole pass in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.papers.cells import Cell, show
from benchmarks.papers.six_figures import FIGURES, Dataset, electricity, rates
from pipeline.errors import ConfigError
from pipeline.learning import StreamClassifier
from pipeline.study import parse_study
from pipeline.types import Vector

RESULTS = Path(__file__).parent.parent / "results" / "prequential.json"
WINDOW, HALF_LIFE, EPSILONS = 250, 2_000, (1.0, 4.0)
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
ridge = 0.001
{forgetting}
[privacy]
{privacy}
[window]
records = {window}
[stream]
publish = {{ releases = 1 }}
"""
FORGETTING = f'forgetting = {{ half_life = {HALF_LIFE}, of = "records" }}'
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
    RESULTS.write_text(
        json.dumps({"window": WINDOW, "seeds": SEEDS, "rows": rows}, indent=1) + "\n"
    )


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
    kinds = {"": ""}
    if knows_forgetting(data):
        kinds[", forgetting"] = FORGETTING
    found: dict[str, list[Pass]] = {}
    for loss in ("gdwd", "logistic"):
        for note, line in kinds.items():
            found[f"{loss}{note}"] = [ours(data, loss, line, None, 0)]
            for epsilon in EPSILONS:
                found[f"{loss}{note}, epsilon {epsilon:g}"] = [
                    ours(data, loss, line, epsilon, seed) for seed in range(SEEDS)
                ]
    found["River logistic regression"] = [lambda: river_pass(data, "logistic")]
    found["River Hoeffding tree"] = [lambda: river_pass(data, "tree")]
    found["the last label again"] = [lambda: np.append(-1.0, data.responses[:-1])]
    return found


def ours(data: Dataset, loss: str, forgetting: str, epsilon: float | None, seed: int) -> Pass:
    """Return a pass of our classifier; its noise has the deviations of a real study's."""
    text = study(data, loss, forgetting, epsilon, seed)

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


def study(data: Dataset, loss: str, forgetting: str, epsilon: float | None, seed: int) -> str:
    """Return the text of the study file."""
    names = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(data.features.shape[1]))
    private = 'mechanism = "none"'
    if epsilon is not None:
        private = (
            f'mechanism = "insecure-simulation"\nepsilon = {epsilon}\ndelta = 1e-6\nseed = {seed}'
        )
    return STUDY.format(
        features=names, loss=loss, forgetting=forgetting, privacy=private, window=WINDOW
    )


def knows_forgetting(data: Dataset) -> bool:
    """Whether a study file may say how fast to forget."""
    try:
        parse_study(study(data, "gdwd", FORGETTING, None, 0))
    except ConfigError:
        return False
    return True


def river_pass(data: Dataset, kind: str) -> Vector:
    """Predict and learn record by record with River."""
    from river import compose, linear_model, preprocessing, tree  # noqa: PLC0415 - heavy

    model = (
        compose.Pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
        if kind == "logistic"
        else tree.HoeffdingTreeClassifier()
    )
    scores = np.zeros(len(data.responses))
    for i, (row, response) in enumerate(zip(data.features.tolist(), data.responses, strict=True)):
        record = dict(enumerate(row))
        scores[i] = 1.0 if model.predict_one(record) else -1.0
        model.learn_one(record, bool(response > 0))
    return scores


if __name__ == "__main__":
    main()
