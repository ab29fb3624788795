"""What a run of a client says that it did, from what stood there before and after it."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from producers.report import run_of

COUNTS = ("records_used", "values_clipped", "records_set_aside", "releases", "releases_lost")
#: What one run adds to each count.
STEP = st.tuples(*(st.integers(0, 9) for _ in COUNTS))


def account(totals: tuple[int, ...]) -> dict[str, Any]:
    """Return what a database says; every release is made or lost, and each reason is one."""
    found = dict(zip(COUNTS, totals, strict=True))
    found["releases"] += found["releases_lost"]
    return found | {"reasons": {"late": totals[2]}, "spent": {"epsilon": 0.5 * totals[3]}}


@given(st.lists(STEP, min_size=2, max_size=5))
def test_what_runs_did_one_after_the_other_adds_up(steps: list[tuple[int, ...]]) -> None:
    totals = accumulate(steps, lambda one, other: tuple(map(sum, zip(one, other, strict=True))))
    stood = [{}, *map(account, totals)]
    for step, before, after in zip(steps, stood, stood[1:], strict=False):
        done = run_of(before, after)
        assert tuple(done[name] for name in COUNTS) == step
        assert done["reasons"] == ({"late": step[2]} if step[2] else {})
        assert done["in_all"] == {name: after[name] for name in COUNTS[:4]}
        assert done["epsilon"]["spent"] == after["spent"]["epsilon"]
