"""Time the worker's part of many sites: an EM round, a fold beside renewable's, an estimate.

`python -m benchmarks.sites`: processor time of one core. Folds are measured in turn with
renewable's, 60 of each beside five states that are made anew, and the ratio is the median of pairs:
other programs slow both down. Writes results/sites.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.papers.noisy_infembler import draw, sent, start
from pipeline.messages.release import Decoder, seal
from pipeline.methods import server_of, task_of
from pipeline.methods.noisy_copies.infembler import step
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from pipeline.release.privatise import privatise
from pipeline.release.task import form_of
from pipeline.study_file.load import parse_study

RESULTS = Path(__file__).parent / "results" / "sites.json"
SITES, SIZE, TIMES = 1000, 8, 9
PAIRS, STATES = 60, 5
STUDY = """\
[study]
name = "timing"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
{features}
[estimator]
kind = "{kind}"
loss = "logistic"
ridge = 0.01
[privacy]
mechanism = "insecure-simulation"
epsilon = 4.0
delta = 1e-5
seed = 1
[window]
records = 200
"""


def main() -> None:
    """Measure and print."""
    # one thread, so that processor time is time
    threadpool_limits(1)
    found = {
        f"em_round_{SITES}_sites_p{size}_ms": em_round(size, SITES) for size in (SIZE, 4 * SIZE)
    }
    found |= folds()
    found[f"estimate_{SITES}_sites_ms"] = fastest(stream("noisy-mle").estimate)
    copies = stream("noisy-copies", windows=SITES)
    found[f"fold_{SITES}_releases_copies_ms"] = fastest(copies.fold)
    found[f"estimate_{SITES}_sites_of_copies_ms"] = fastest(copies.estimate)
    for name, value in found.items():
        print(f"{name:40}{value:8.2f}")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def em_round(size: int, sites: int) -> float:
    """Return milliseconds of one round of INFEMBLER over so many sites."""
    rng, information = np.random.default_rng(1), 100.0 * np.eye(size)
    drawn = [draw(rng.normal(0, 0.1, size), information, 40, 2.0, rng) for _ in range(sites)]
    many = np.ones(sites)
    means, scatters = (np.array(part) for part in zip(*drawn, strict=True))
    copies = sent(100 * many, 40 * many, 2 * many, means, scatters)
    at = start(copies, None)
    return fastest(lambda: step(copies, at))


def folds() -> dict[str, float]:
    """Return milliseconds of folds of both kinds, and their ratio."""
    kinds, taken = ("noisy-mle", "renewable"), []
    for _ in range(STATES):
        pair = [stream(kind).fold for kind in kinds]
        taken += [[milliseconds(fold) for fold in pair] for _ in range(PAIRS)]
    found = {
        f"fold_{SITES}_releases_{kind}_ms": float(value)
        for kind, value in zip(kinds, np.median(taken, axis=0), strict=True)
    }
    ratios = np.array(taken)[:, 0] / np.array(taken)[:, 1]
    return found | {"fold_ratio": float(np.median(ratios))}


@dataclass(frozen=True)
class Stream:
    """Folding one release of each site into a state that knows them, and estimating."""

    fold: Callable[[], object]
    estimate: Callable[[], object]


def stream(kind: str, *, windows: int = 1) -> Stream:
    """Return a stream of one release of each site, of so many different windows."""
    features = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(SIZE))
    task = task_of(parse_study(STUDY.format(kind=kind, features=features)))
    server, rng = server_of(task), np.random.default_rng(1)
    model, made = round_model(1, np.zeros(task.size), (1.0, 1.0)), []
    for number in range(windows):
        window = Arrays(rng.uniform(-1, 1, (200, SIZE)), np.where(rng.random(200) < 0.5, 1.0, -1.0))
        answer = privatise(task, task.query(window, model), SeededStream(1, "timing", number))
        made.append(seal(task, answer, client="c", ledger="l", seq=0))
    assert not Decoder(task).read(made[:1], [b"c"]).faults
    rows = np.repeat(np.frombuffer(b"".join(made), form_of(task).dtype), SITES // windows)
    rows["client"] = rng.integers(0, 2**62, (SITES, 2))
    state = server.empty()
    server.fold(state, rows)
    return Stream(lambda: server.fold(state, rows), lambda: server.estimate([(1.0, state)], [0]))


def fastest(run: Callable[[], object]) -> float:
    """Return the least processor time of some runs, in milliseconds."""
    return min(milliseconds(run) for _ in range(TIMES))


def milliseconds(run: Callable[[], object]) -> float:
    """Return the processor time of a run."""
    began = time.process_time()
    run()
    return 1e3 * (time.process_time() - began)


if __name__ == "__main__":
    main()
