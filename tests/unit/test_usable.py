"""The test of a source's first slots, and the watch over the later ones."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from pipeline.methods import task_of
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteLaplace
from pipeline.records.batch import Reasons
from pipeline.release.quality import BLOCK, FEWEST, Clips, Jumps, Trial, worded
from pipeline.study_file.load import parse_study
from producers.report import cut
from tests.stage import OPEN, study_text


def trial(privacy: str, records: int = 20) -> Trial:
    return Trial.of(task_of(parse_study(study_text(privacy=privacy, records=records))))


def test_the_slots_and_the_noise_follow_from_the_budget_of_a_unit() -> None:
    pure = 'mechanism = "discrete-laplace"\nepsilon = {}'
    assert trial(pure.format(1.0)) == Trial(112, 4.0)
    assert trial(pure.format(0.5)) == Trial(224, 8.0)
    assert trial(pure.format(1.0), records=500) == Trial(500, 4.0)
    users = pure.format(1.0) + '\nunit = "user"\nrecords = 10'
    assert trial(users) == Trial(1120, 40.0)
    assert trial(OPEN) == Trial(20, 0.0)
    simulated = 'mechanism = "insecure-simulation"\nepsilon = 1.0\ndelta = 1e-5\nseed = 1'
    assert trial(simulated) == Trial(20, 0.0)


def test_a_unit_that_is_replaced_moves_both_counts() -> None:
    pure = 'mechanism = "discrete-laplace"\nepsilon = 1.0\nneighbours = "replace-one"'
    assert trial(pure) == Trial(224, 8.0)


@pytest.mark.parametrize("seen", [*range(1, 170), 500, 50_000])
def test_a_source_without_undeclared_values_is_hardly_ever_taken_for_misspelt(seen: int) -> None:
    tried = Trial(112, 4.0)
    ceiling = math.floor(max(seen / 10, 48))
    assert math.exp(-(ceiling + 1) / 4.0) / (1 + math.exp(-1 / 4.0)) < 4e-6
    assert not tried.mistakes(0, seen, ceiling)
    assert tried.mistakes(ceiling + 1, seen, 0)
    for undeclared, noise in ((0, ceiling + 1), (ceiling + 9, -8), (ceiling + 9, -9)):
        assert tried.mistakes(undeclared, seen, noise) == tried.mistakes(
            undeclared + noise, seen, 0
        )


@pytest.mark.parametrize("seen", [*range(170), 500, 50_000])
def test_a_good_source_is_hardly_ever_refused_and_few_slots_are_not_tested(seen: int) -> None:
    tried = Trial(112, 4.0)
    threshold = tried.threshold(seen)
    if threshold <= 0:
        assert seen <= 48
        assert not tried.refuses(0, seen, -(10**6))
        return
    # P(noise < -m) of the discrete law is at most exp(-m / s) / (1 + exp(-1 / s))
    margin = seen - threshold
    assert math.exp(-margin / 4.0) / (1 + math.exp(-1 / 4.0)) < 4e-6
    assert not tried.refuses(seen, seen, -math.floor(margin))
    assert tried.refuses(0, seen, math.ceil(threshold) - 1)


def test_the_answer_depends_on_the_noised_count_alone_and_costs_what_that_costs() -> None:
    tried = Trial(112, 4.0)
    for usable in range(113):
        for noise in (-50, -7, 0, 3, 24):
            assert tried.refuses(usable, 112, noise) == tried.refuses(usable + noise, 112, 0)
    # of neighbours: one count more, and a law whose chances differ by exp(1 / s) = exp(epsilon / 4)
    draws = DiscreteLaplace(tried.scale).draw(200_000, SecureStream())
    counts = Counter(draws.tolist())
    ratio = counts[0] / counts[1]
    error = ratio * math.sqrt(1 / counts[0] + 1 / counts[1])
    assert abs(ratio - math.exp(1 / 4)) < 5 * error


def test_a_jump_is_told_once_and_the_next_one_again() -> None:
    jumps = Jumps(1000, 10)
    said = [take(jumps, "") for _ in range(2 * BLOCK)]
    assert not any(said)
    # a third of the slots, for long
    said = [take(jumps, "column 'x': missing" if k % 3 == 0 else "") for k in range(4 * BLOCK)]
    [line] = [line for line in said if line]
    assert "34% of the last 250 record slots cannot be used, 1% before" in line
    assert "84 x column 'x': missing" in line
    assert not any(take(jumps, "") for _ in range(4 * BLOCK))
    [line] = [line for line in (take(jumps, "bad") for _ in range(3 * BLOCK)) if line]
    assert "100% of the last 250" in line


def test_slots_that_come_together_are_told_of_as_one_by_one() -> None:
    faults = ["bad" if k % 7 < 3 else "" for k in range(BLOCK)] * 2 + [""] * BLOCK
    one, many = Jumps(), Jumps()
    alone = [line for fault in faults if (line := take(one, fault))]
    together = [take(many, *faults[start:end]) for start, end in pairwise((0, 90, 600, 3 * BLOCK))]
    assert [line for line in together if line] == alone
    assert len(alone) == 1
    assert "43% of the first 250 record slots" in alone[0]


def take(jumps: Jumps, *faults: str) -> str:
    """Show slots with these faults, and return what is said."""
    reasons = Reasons(len(faults))
    for at, fault in enumerate(faults):
        if fault:
            reasons.put(at, 0, fault)
    return "\n".join(jumps.take(reasons))


def test_a_bad_start_a_short_run_and_chance() -> None:
    jumps = Jumps()
    assert f"100% of the first {BLOCK} record slots" in "".join(
        take(jumps, "bad") for _ in range(BLOCK)
    )
    short = Jumps(5000, 50)
    assert not any(take(short, "bad") for _ in range(30))
    assert "100% of the last 30" in short.close()
    few = Jumps(5000, 50)
    assert not any(take(few, "bad") for _ in range(19))
    assert few.close() == ""
    even = Jumps(100_000, 50_000)
    assert not any(take(even, "bad" if k % 9 in (0, 2, 4, 6, 8) else "") for k in range(20 * BLOCK))


def test_kinds_are_named_the_most_frequent_first() -> None:
    faults = Counter({"a": 1, "b": 5, "c": 2, "d": 3, "e": 1})
    assert worded(faults) == "5 x b; 3 x d; 2 x c; 1 x a; 1 x others"
    assert worded(Counter()) == ""


def test_a_range_that_cuts_many_values_is_told_of_once_for_each_column() -> None:
    slots = np.arange(3 * BLOCK)
    columns = (slots % 100 < 71, slots % 100 < 5, slots >= 2 * BLOCK)
    beyond = np.column_stack(columns)
    names, alone = ("wide", "narrow", "later"), Clips(("wide", "narrow", "later"))
    said = ["".join(alone.take(beyond[at : at + 1])) for at in slots]
    # however many come at a time
    assert Clips(names).take(beyond) == [line for line in said if line]
    told = [line for line in said if line]
    assert said[BLOCK - 1] == told[0]
    assert "wide 7" in told[0]
    assert "`min` and `max`" in told[0]
    assert "later 100%" in told[1]
    assert "wide" not in told[1]
    assert len(told) == 2
    assert "narrow" not in "".join(told)


def test_the_end_of_a_short_source_tells_of_its_range_too() -> None:
    for slots in (FEWEST - 1, FEWEST):
        clips = Clips(("x",))
        assert clips.take(np.ones((slots, 1), dtype=np.bool_)) == []
        assert ("x 100%" in clips.close()) == (slots == FEWEST)


def test_a_run_ends_with_the_share_of_values_that_were_cut_by_column() -> None:
    done = {"records_used": 100, "values_clipped": 104}
    said = cut(done, 3, {"far": 1.0, "near": 0.04})
    assert "far 100%." in said
    assert "near" not in said
    # however many other columns there are
    assert "far 100%." in cut(done, 30, {"far": 1.0, "near": 0.04})
    assert cut(done, 3, {"far": 0.09, "near": 0.04}) == ""
    assert cut({"records_used": 0, "values_clipped": 0}, 2, {}) == ""


def test_where_nobody_counted_by_column_it_ends_with_the_share_of_all() -> None:
    said = cut({"records_used": 100, "values_clipped": 142}, 2, {})
    assert "71% of those of all columns together" in said
    assert cut({"records_used": 100, "values_clipped": 19}, 2, {}) == ""
    assert cut({"records_used": 9, "values_clipped": 0}, 0, {}) == ""
