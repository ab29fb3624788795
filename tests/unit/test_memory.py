"""Noise that remembers: its recursion, its variances, and that releases follow from free draws."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import PrivacyError
from pipeline.privacy import memory
from pipeline.privacy.mechanism import gaussian
from pipeline.privacy.memory import COEFFICIENTS, Chain, advanced, empty_rows
from pipeline.stream.release import Standing
from tests.by_formula import C, covariance_of_chain


def test_weights_and_variances_are_those_of_the_derivation() -> None:
    wanted = [
        1, -0.5, -0.125, -0.0625, -0.0390625, -0.02734375, -0.0205078125, -0.01611328125,
        0.18328857421875, -0.021820068359375,
    ]  # fmt: skip
    assert [memory.weight(place) for place in range(10)] == wanted
    between = {
        (1, 1): 1.7183792591095, (1, 7): 2.8774268691006, (1, 22): 5.5782636463362,
        (8, 22): 5.3193061045489, (30, 51): 6.5181380169353, (1, 60): 12.1834972453774,
    }  # fmt: skip
    for (first, last), value in between.items():
        ends = np.array([first - 1, last])
        both = memory.covariance_of_sums(ends[:, None], ends)
        assert both[1, 1] - 2 * both[0, 1] + both[0, 0] == pytest.approx(value, rel=1e-12)
        chain = covariance_of_chain(last)[first - 1 :, first - 1 :]
        assert chain.sum() == pytest.approx(value, rel=1e-12)
    assert memory.cross(9, 8) / 2**60 == pytest.approx(-0.575909167528152, rel=1e-14)
    assert memory.cross(40, 30) / 2**60 == pytest.approx(-0.03556662861459, rel=1e-11)
    assert abs(memory.SQUARED_NORM / float(C @ C) - 1) < 1e-15


def test_noise_of_given_draws() -> None:
    rows, found = empty_rows(1), []
    for t in range(10):
        drawn = np.array([(-1) ** t * (123456789 + 1000003 * t)])
        noise, rows = advanced(rows, drawn)
        found.append(int(noise[0]))
    assert found == [
        60282, -90911, 84108, -88547, 86894, -89225, 88685, -90343, 102086, -104185
    ]  # fmt: skip


def test_what_a_release_adds_since_each_epoch() -> None:
    starts = [1, 3, 8, 8] + [0] * 22
    found = [more / 2**60 for more in memory.additions(12, starts, 3)]
    wanted = [0.1131489413237, 0.166260971353, 0.1141621681309, 0.1141621681309]
    assert found[:4] == pytest.approx(wanted, rel=1e-11)
    assert not any(found[4:])


def test_a_release_follows_from_free_draws_alone() -> None:
    """R_t is a function of Y_t = Q_t + z_t and of the releases before: bit by bit."""
    rng = np.random.default_rng(1)
    sums = rng.integers(-(2**40), 2**40, (60, 5))
    drawn = rng.integers(-(2**43), 2**43, (60, 5))
    rows, released = empty_rows(5), []
    for exact, z in zip(sums, drawn, strict=True):
        noise, rows = advanced(rows, z)
        released.append(exact + noise)
    for t in range(60):
        reach = range(1, min(7, t) + 1)
        y = 2048 * sums[t] + sum(COEFFICIENTS[j] * sums[t - j] for j in reach) + drawn[t]
        known = sum((COEFFICIENTS[j] * released[t - j] for j in reach), np.zeros(5, dtype=np.int64))
        assert (released[t] == (y - known + 1024) >> 11).all()


def test_no_draw_of_any_channel_overflows() -> None:
    """Sixteen scales of a draw, and rows as large as these make them, are far below 2^63."""
    with pytest.raises(PrivacyError, match="noise_memory = 0"):
        gaussian(1.0, 5000.0, 1e-6, remembers=True)
    for mu in (1e-4, 1e-3, 0.2, 5.0):
        channel = gaussian(1.0, 5000.0, mu, remembers=True)
        largest = channel.noise.reach
        assert largest < 2**44
        # |nu| is at most the sum of |w| times the largest draw
        rows = sum(abs(memory.weight(place)) for place in range(2000)) * largest / 2048
        assert largest + sum(COEFFICIENTS[1:]) * rows < 2**58


def test_the_sum_since_an_epoch_has_the_variance_that_is_counted() -> None:
    """20,000 chains; the standard error of a variance is 1 %, and five of them are allowed."""
    rng, draws = np.random.default_rng(3), 20_000
    rows, sums, counted = empty_rows(draws), np.zeros((3, draws)), np.zeros(3)
    firsts = (1, 9, 30)
    starts = [1] * 4 + [9] * 4 + [30] * 18
    for number in range(1, 51):
        noise, rows = advanced(rows, np.rint(2.0**24 * rng.standard_normal(draws)).astype(np.int64))
        epoch = 3 if number < 9 else 7 if number < 30 else 25
        more = memory.additions(number, starts, epoch)
        for place, first in enumerate(firsts):
            if number >= first:
                sums[place] += noise
                counted[place] += more[(0, 4, 8)[place]] / 2**60
    measured = sums.var(axis=1) / 2.0**26
    assert np.all(np.abs(measured / counted - 1) < 0.05)


def test_a_chain_says_where_epochs_began() -> None:
    chain = Chain()
    for number, epoch in enumerate((0, 0, 2, 2, 5), start=1):
        chain = chain.behind(250, epoch, None)
        assert (chain.number, chain.epoch, chain.slots) == (number, epoch, 250 * number)
    assert chain.starts[:7] == (1, 3, 3, 5, 5, 5, 0)
    stands = Standing(7, 2000, chain).anew()
    after = stands.chain
    assert (stands.seq, stands.held) == (7, 2000)
    assert (after.chain, after.number, after.slots, any(after.starts)) == (7, 0, 0, False)
    assert not after.rows.size


@pytest.mark.parametrize(
    ("watermark", "epoch"), [(0, 0), (250, 0), (499, 0), (500, 1), (999, 1), (1000, 2), (2**53, 25)]
)
def test_epochs_double_by_records(watermark: int, epoch: int) -> None:
    assert memory.epoch_of(watermark, 250) == epoch
    assert memory.epochs_of(np.array([watermark]), 250).tolist() == [epoch]


def test_a_release_with_any_number_costs_no_more_than_others() -> None:
    """A client may say any number of its release; nothing is made for each up to it."""
    far = memory.additions(2**40, [1, 2**39, *[2**40] * 24], 25)
    assert far[0] == memory.variance(600) + 2 * memory.cross(600, 599)
    assert memory.variance(2**40) == memory.variance(512)
    assert max(far) < 2**61


def test_the_noise_of_sums_goes_together_as_its_draws_do() -> None:
    one, other = np.array([0, 1, 4, 7, 30, 520]), np.array([9, 1, 9, 3, 600, 540])
    chain = covariance_of_chain(600)
    wanted = [chain[:n, :m].sum() for n, m in zip(one, other, strict=True)]
    assert memory.covariance_of_sums(one, other) == pytest.approx(wanted, rel=1e-9)
    # later releases take back what is in earlier ones, so that it is less than by what both have
    assert wanted[2] < np.sqrt(4 / 9 * chain[:4, :4].sum() * chain[:9, :9].sum())
