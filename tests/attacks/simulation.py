"""What seeded noise is worth against whoever has the seed."""

from __future__ import annotations

import numpy as np

from pipeline.methods import task_of
from pipeline.records.encoder import Row
from pipeline.release.model import start_model
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.attacks.bounds import Scores
from tests.attacks.studies import DELTA, study_text
from tests.attacks.windows import Finding, finding


def measure_simulation(draws: int) -> Finding:
    """Attack releases of an insecure simulation with the seed of its study file.

    The adversary makes the release of both neighbours itself, and sees which of them came.
    """
    text = study_text("discrete-gaussian", "zero-out").replace(
        'mechanism = "discrete-gaussian"', 'mechanism = "insecure-simulation"\nseed = 1'
    )
    task = task_of(parse_study(text))
    record = [Row(np.ones(task.size - 1), 1.0, 0)]

    def released(rows: list[Row], seq: int) -> bytes:
        return release_of(task, rows, start_model(task.size), client="a", ledger="l", seq=seq)

    known = [released(record, seq) for seq in range(2 * draws)]
    sent = [released(record, seq) for seq in range(draws)]
    sent += [released([], seq) for seq in range(draws, 2 * draws)]
    same = np.array([made == seen for made, seen in zip(known, sent, strict=True)], dtype=float)
    return finding([Scores(same[:draws], same[draws:])], DELTA)
