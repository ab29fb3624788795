"""What studies release whose windows have one size and whose noise is independent, bit by bit.

`independent.json` was recorded by the program at commit 46ca6a46, which knew nothing else: with
shares as it had them, the same study must keep its revision, its layout, its noise and its bytes.
Studies of gdwd are not among them: their records have another curvature since then.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pipeline.methods import task_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.release.model import Model
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.builders import SeededStream, study_text
from tests.golden.cases import windows_of

FILE = Path(__file__).parent / "independent.json"
SPLIT = "gradient = 0.665, curvature = 0.285, counts = 0.05"
#: Written by who wants what there was before: the old program knows no such keys.
BEFORE: dict[str, object] = {"growth": 0, "noise_memory": 0}
STUDIES = {
    "logistic": {"loss": "logistic", "maximum": 3.0},
    "logistic-replace-one": {"loss": "logistic", "neighbours": "replace-one", "norm_bound": 1.2},
    "logistic-laplace": {"loss": "logistic", "mechanism": "discrete-laplace"},
    "logistic-simulated": {"loss": "logistic", "mechanism": "insecure-simulation"},
    "logistic-forgets": {"loss": "logistic", "forgetting": 'half_life = 2000, of = "records"'},
    "logistic-other-shares": {
        "loss": "logistic", "split": "gradient = 0.7, curvature = 0.25, counts = 0.1",
    },
    "linear": {"loss": "linear", "neighbours": "replace-one"},
    "linear-known": {"loss": "linear", "noise_scale": 0.5, "residual_bound": 0.6},
    "poisson-user": {"loss": "poisson", "most": 10.0, "user_records": 2},
}  # fmt: skip


def text_of(name: str, keys: dict[str, object]) -> str:
    """Return the text of a study, with more keys than the old program read."""
    settings: dict[str, object] = {"p": 2, "records": 60, "split": SPLIT, **STUDIES[name], **keys}
    return study_text(**settings)  # type: ignore[arg-type]


def made(text: str) -> dict[str, object]:
    """Return what a study's releases are: one at the public start, and one at a later model."""
    task = task_of(parse_study(text))
    assert isinstance(task, RenewableTask)
    later = Model(5, np.array([300, -700, 1100]), (1200, 1500), 2500)
    rows = [window for _, window in windows_of(task, 1)]
    # a simulation has a seed of its own
    noise = SeededStream(12) if task.study.private else None
    deviations = [
        part.standard_deviation.hex()
        for channels in (task.initial_channels, task.update_channels)
        for part in (channels.gradient, channels.curvature, channels.off_diagonal, channels.counts)
        if part is not None
    ]
    return {
        "revision": task.revision,
        "layout": task.layout.text,
        "bounds": [[f.largest for f in task.layout.at(version)] for version in (0, 1)],
        "deviations": deviations,
        "mu": task.budget.per_record.hex(),
        "releases": [
            release_of(task, window, model, noise, client="a", ledger="l", seq=seq).hex()
            for seq, (window, model) in enumerate(
                zip(rows, (task.first_model, later), strict=False)
            )
        ],
    }


if __name__ == "__main__":
    # with a program that has none of the keys of BEFORE
    found = {name: made(text_of(name, {})) for name in STUDIES}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
