"""Draw figures of paper ldp-sgd with our numbers.

`python -m benchmarks.papers.ldp_sgd_figures [--full] [--draw]`

1: where clipped and weighted gradients lead (`ldp_sgd_clipping.py`); 2: one path with its
intervals; 3: coverage at levels from 50 to 99.9 %; 4 and 5: two studies of the flights out of New
York City (`ldp_sgd_streams.py`). Quick mode has 20 replications in figure 1 and 200 in figure 3,
full mode 100 and 1000. Writes `docs/methods/figures/sgd*.png` and `results/ldp_sgd_figures.json`,
with --draw from the numbers that are there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers import ldp_sgd_drawing
from benchmarks.papers.ldp_sgd_clipping import errors, limits
from benchmarks.papers.ldp_sgd_methods import (
    Method,
    batches,
    intervals,
    mean_of,
    online,
    scaling,
    without,
)
from benchmarks.papers.ldp_sgd_models import LINEAR
from benchmarks.papers.ldp_sgd_runs import replications
from benchmarks.papers.ldp_sgd_streams import flights, walked
from benchmarks.papers.ldp_sgd_walk import Chunk, Setting

RESULTS = Path(__file__).parent.parent / "results" / "ldp_sgd_figures.json"
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
CLIPPING_ENDS = (2500, 5000, 10_000, 20_000, 40_000, 80_000, 160_000)
COVERAGE_ENDS = (40_000, 200_000)
METHODS: dict[str, Method] = {
    "random scaling": scaling, "PPI-0": without, "batch means": batches,
    "online batch means": online,
}  # fmt: skip
#: Ends at which the one path's intervals are drawn, and every how many records its iterate is.
PATH_ENDS = tuple(
    int(round(end, -2)) for end in np.geomspace(1500, 200_000, 45)
)  # fmt: skip
EVERY = 100
Numbers = dict[str, Any]


def main() -> None:
    """Compute and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="five times the replications")
    parser.add_argument("--draw", action="store_true", help="draw the numbers that are there")
    options = parser.parse_args()
    if not options.draw:
        begun = time.monotonic()
        RESULTS.write_text(json.dumps(computed(full=options.full)) + "\n", encoding="utf-8")
        print(f"{time.monotonic() - begun:.0f} s")
    ldp_sgd_drawing.draw(json.loads(RESULTS.read_text(encoding="utf-8")))


def computed(*, full: bool) -> Numbers:
    """Return the numbers of all figures."""
    runs = 100 if full else 20
    return {
        "clipping": {
            "limits": limits(),
            "errors": errors(CLIPPING_ENDS, runs, seed=31),
            "records": CLIPPING_ENDS,
            "runs": runs,
        },
        "path": one_path(),
        "coverage": coverage(1000 if full else 200),
        **{name: walked(stream) for name, stream in flights().items()},
    }


def one_path() -> Numbers:
    """Return one path at mu = 1: its iterate, and its average with both intervals."""
    kept: list[Chunk] = []
    found = replications(Setting(1.0), PATH_ENDS, 1, seed=32, kept=kept)
    path = np.concatenate([chunk.path[:, 0] for chunk in kept])
    rng = np.random.default_rng(0)
    curves: Numbers = {"means": [mean_of(run).tolist() for [run] in found.values()]}
    for name in ("random scaling", "PPI-0"):
        half = [METHODS[name](run, rng)[1](0.95).tolist() for [run] in found.values()]
        curves[name] = half
    return {
        "records": list(found),
        "truth": LINEAR.truth.tolist(),
        "iterates": np.round(path[EVERY - 1 :: EVERY], 4).tolist(),
        "every": EVERY,
        **curves,
    }


def coverage(count: int) -> Numbers:
    """Return coverage and its Monte Carlo error, in percent, by size and method at every level."""
    found = replications(Setting(1.0), COVERAGE_ENDS, count, seed=33)
    curves: Numbers = {}
    for end, runs in found.items():
        for name, method in METHODS.items():
            shares = [intervals(method, runs, level)[0] for level in LEVELS]
            curves.setdefault(str(end), {})[name] = {
                "mean": [float(share.mean()) for share in shares],
                "error": [float(share.std(ddof=1)) / count**0.5 for share in shares],
            }
            print(f"n = {end:7,d}  {name:20}", *(
                f"{100 * level:g}: {share.mean():.1f}"
                for level, share in zip(LEVELS, shares, strict=True)
            ), sep="  ")  # fmt: skip
    return {"levels": LEVELS, "runs": count, "curves": curves}


if __name__ == "__main__":
    main()
