"""What the table of intervals says of all its rows together."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.intervals import overall, share_of


def test_one_draw_has_no_error() -> None:
    nothing, half = np.full(2, np.nan), np.array([1.0, 0.0])
    assert share_of([nothing, nothing]) is None
    assert share_of([nothing, half]) == (0.5, None)
    assert share_of([np.ones(2), half]) == (0.75, 0.25)


def row(stream: str, share: float, error: float | None, draws: int = 100) -> dict[str, object]:
    covered = (share, error)
    return {
        "stream": stream, "setting": "gdwd 1, epsilon 1", "draws": draws, "coefficients": 5,
        "given": 1.0, "middle_given": 1.0, "over_floor": 1.6,
        "covered": covered, "population": covered,
        "middle_covered": covered, "middle_population": covered,
    }  # fmt: skip


def test_rows_of_a_data_set_count_as_one_and_one_draw_as_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        row("a", 0.9, 0.01), row("a, typical", 1.0, 0.0, 300), row("b", 0.925, 0.01),
        row("c", 0.5, None),
    ]  # fmt: skip
    overall(rows + [one | {"setting": "gdwd 1, epsilon 4"} for one in rows])
    # a: a quarter of .9 and three of 1; both sets are .025 from their mean
    wanted = "epsilon 1, covered: 95.0 (2.5) of 2 data sets, 3 rows"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == wanted
    assert said[-1] == (
        "epsilon 4: 4 rows with intervals; 2 hold the fit in less than 92.5 %, 1 in more than "
        "98.5 %; 4 are longer than 1.5 floors, 0 given to less than 80%"
    )
