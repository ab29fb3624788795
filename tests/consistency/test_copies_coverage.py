"""Intervals of noisy copies hold the truth as often as they say, in mid-stream and at the end."""

from __future__ import annotations

import pytest

from benchmarks.sites_copies import EQUAL, UNEQUAL, cells


@pytest.mark.slow
@pytest.mark.parametrize("windows", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("loss", "bound", "due"),
    [
        ("logistic", 1.0, True),
        ("linear", 1.0, True),
        ("linear", 0.4, False),
        ("linear", 0.3, False),
    ],
    ids=["logistic", "linear", "linear-near-its-bound", "linear-beyond-its-bound"],
)
def test_intervals_hold_the_truth(
    loss: str, bound: float, windows: tuple[int, ...], *, due: bool
) -> None:
    for cell in cells(loss, windows, 200, bound):
        assert cell.holds, cell
        if cell.moment == "end":
            assert (cell.ready > 0.9) == due, cell
            # errors are no longer than they need to be
            assert not due or cell.spread > 0.85, cell
