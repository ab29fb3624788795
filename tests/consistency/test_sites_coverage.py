"""Whether intervals of many sites hold the truth wherever they are given, on seeds of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.sites_coverage import LEAST, MOST, Cell, row_of, stream

#: No settings were tuned on these.
SEEDS = range(7000, 7060)
CELLS = (
    Cell("logistic", 1500, 6, 8.0),
    Cell("logistic", 3000, 6, 8.0),
    Cell("logistic", 3000, 6, 2.0, intercept=0.0),
    Cell("logistic", 3000, 6, 8.0, uneven=True),
    Cell("logistic", 6000, 6, 8.0),
    Cell("linear", 3000, 6, 2.0, release="score"),
    Cell("linear", 3000, 6, 8.0, release="sufficient"),
    Cell("logistic", 20000, 8, 8.0, intercept=1.0, rare=0.01),
)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.label)
def test_intervals_hold_the_truth_wherever_they_are_given(cell: Cell) -> None:
    cell = replace(cell, rounds=5)
    told = [stream(cell, seed) for seed in SEEDS]
    rows = [row_of(cell, number, [one[number] for one in told]) for number in range(cell.rounds)]
    assert rows[-1]["ready"] == 1.0
    # what a rare level says comes a round later, and so does what small windows say
    assert rows[3 if cell.rare or cell.records < 3000 else 2]["ready"] > 0.9
    for row in rows:
        if row["coverage"] is not None:
            # some rows of each of these cells: four errors, and that of hardly any interval missed
            error = 4 * max(row["error"], 0.01)
            assert LEAST - error <= row["coverage"] <= MOST + error, row
