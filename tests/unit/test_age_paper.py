"""What the paper on planned ages states comes out of this project's formulas, and a slip shows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers import age_tables


def test_all_that_follows_from_printed_inputs_agrees() -> None:
    gated = [cell for cell in age_tables.stated() if cell.gated]
    assert len(gated) == 15
    assert [cell for cell in gated if not cell.within] == []


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_delta_is_seen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    right = age_tables.deltas
    monkeypatch.setattr(age_tables, "deltas", lambda *given: right(*given) ** factor)
    wrong = {cell.row for cell in age_tables.stated() if cell.gated and not cell.within}
    assert wrong == {
        "gamma*", "epsilon at collection, age 50", "two releases, next state",
        "Delta(10) of a mixed population",
    }  # fmt: skip


def test_stand_in_laws_are_as_far_from_steady_as_the_papers() -> None:
    moved = [
        np.abs(np.array(law) @ chain.matrix - law).sum() / 2
        for law, chain in zip(age_tables.LAWS, age_tables.chains(), strict=True)
    ]
    np.testing.assert_allclose(moved, [0.08, 0.15, 0.30], atol=1e-12)
