"""What floating point does to drawn copies stays below its bounds, and the law is the claimed one.

Faults of a tenth are planted in the noise, and larger ones in the arithmetic: all are seen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import mpmath
import numpy as np
import pytest

from pipeline.methods import revision_of
from pipeline.methods.noisy_copies import client as drawing
from pipeline.methods.noisy_copies.accounting import MACHINE
from pipeline.methods.noisy_copies.client import CopiedPart, CopiesTask, Law
from pipeline.privacy import accounting as gdp
from pipeline.privacy.accounting import FARTHEST, normal_numbers, total_epsilon
from pipeline.privacy.events import Gaussian, Renyi, TotalVariation, compose, group, parts
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests.attacks.copies import drawn, law_of
from tests.builders import SeededStream
from tests.sites import study_text

RNG = np.random.default_rng(20)


class Words(SecureStream):
    """A stream of given words."""

    def __init__(self, words: np.ndarray) -> None:
        super().__init__()
        self.words = words

    def uint64(self, count: int) -> np.ndarray:
        return self.words[:count]


def exact_normals(words: np.ndarray) -> list[mpmath.mpf]:
    """Return the quantiles of words with all digits."""
    found = []
    for word in words.tolist():
        tail = mpmath.ldexp(mpmath.mpf(word >> 1) + mpmath.mpf(0.5), -64)
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
        found.append(-z if word & 1 else z)
    return found


def hard_words(count: int) -> np.ndarray:
    """Return random words, half of them of tails of all lengths."""
    words = RNG.integers(0, 2**64, count, dtype=np.uint64)
    words[::2] >>= RNG.integers(0, 63, len(words[::2]), dtype=np.uint64)
    return words


def test_quantiles_are_as_exact_as_the_proof_takes_them() -> None:
    words = np.r_[hard_words(600), np.array([0, 1, 2**63 - 1, 2**64 - 2, 2**64 - 1], np.uint64)]
    with mpmath.workdps(60):
        errors = [
            abs(mpmath.mpf(z) - exact) / max(abs(exact), 1)
            for z, exact in zip(
                normal_numbers(len(words), Words(words)).tolist(), exact_normals(words), strict=True
            )
        ]
    assert max(errors) < 8 * MACHINE


def errors_of(part: CopiedPart, words: np.ndarray) -> float:
    """Return how far what is drawn of words is from what exact arithmetic makes of them."""
    law = part.law
    size, columns = len(law.theta), law.copies - 1 if part.scatter else 1
    found = np.ldexp(part.noised(Words(words)).astype(float), part.exponent)
    with mpmath.workdps(40):
        z = mpmath.matrix(size, columns)
        for place, number in enumerate(exact_normals(words[: size * columns])):
            z[divmod(place, columns)] = number
        moved = mpmath.matrix(law.root.tolist()) * z
        if part.scatter:
            square = moved * moved.T
            exact = [square[i, j] for i in range(size) for j in range(i, size)]
        else:
            scaled = moved / mpmath.sqrt(law.copies)
            exact = [mpmath.mpf(theta) + scaled[i] for i, theta in enumerate(law.theta)]
        return float(max(abs(a - b) for a, b in zip(found.tolist(), exact, strict=True)))


def coarse(count: int, stream: SecureStream, *, simulated: bool = False) -> Vector:
    return normal_numbers(count, stream, simulated=simulated).astype(np.float32).astype(float)


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "single-precision"])
def test_what_is_drawn_is_as_near_to_exact_arithmetic_as_is_paid_for(
    monkeypatch: pytest.MonkeyPatch, *, sound: bool
) -> None:
    if not sound:
        monkeypatch.setattr(drawing, "normal_numbers", coarse)
    size, copies = 3, 12
    root = RNG.normal(size=(size, size))
    law = Law(np.array([0.5, -1.0, 0.25]), root @ root.T * 50 + np.eye(size), 4.0, copies)
    spread = 4.0
    moved = (size + 8) * MACHINE * math.sqrt(size * spread / copies) * FARTHEST + MACHINE * 2
    bent = (copies + 2 * size + 24) * MACHINE * (math.sqrt(size * copies) + 16) ** 2 * spread
    # so fine a lattice that rounding to it hides nothing
    exponent = -46
    for scatter, most in ((False, moved), (True, bent)):
        part = CopiedPart(law, scatter, exponent, 2.0**62, False)
        found = max(errors_of(part, hard_words(size * copies)) for _ in range(8))
        assert (found < most + 2.0**exponent) == sound


def task(**settings: object) -> CopiesTask:
    """Return a task whose bounds one record reaches: its fit stays far inside its ball."""
    method = "copies = 20, coefficient_bound = 0.002, site_ridge = 3000.0"
    given = {"p": 1, "records": 2, "loss": "linear", "epsilon": 4.0, "noise_scale": 1.0}
    study = parse_study(study_text(method, kind="noisy-copies", **(given | settings)))
    return CopiesTask(study, revision_of(study))


WITH, WITHOUT = Arrays(np.ones((1, 1)), np.ones(1)), Arrays(np.zeros((0, 1)), np.zeros(0))


@pytest.mark.parametrize(("scale", "below"), [(1.0, True), (0.9, False)])
def test_a_scale_that_is_a_tenth_too_small_costs_more_than_the_ledger_says(
    scale: float, *, below: bool
) -> None:
    made = task()
    laws = [law_of(made, window) for window in (WITH, WITHOUT)]
    one, other = (replace(law, scale=scale * law.scale) for law in laws)
    [curve] = [one for one, _ in parts(made.budget.event) if isinstance(one, Renyi)]
    held = [
        max(one.divergence(other, order), other.divergence(one, order)) <= allowed
        for order, allowed in zip(curve.orders, curve.epsilons, strict=True)
    ]
    assert all(held) == below


@pytest.mark.parametrize(("scale", "seen"), [(1.0, False), (0.9, True)])
@pytest.mark.takes("a tenth of a variance needs thousands of draws")
def test_what_is_drawn_has_the_scale_that_is_charged(
    monkeypatch: pytest.MonkeyPatch, scale: float, *, seen: bool
) -> None:
    made, draws = task(), 4000
    root = Law.root.func  # type: ignore[attr-defined]
    shrunk = cached_property(lambda law: math.sqrt(scale) * root(law))
    shrunk.__set_name__(Law, "root")
    monkeypatch.setattr(Law, "root", shrunk)
    information = made.ridge * np.eye(2) + np.ones((2, 2))
    variance = made.scale * np.linalg.inv(information)
    means, scatters = drawn(made, WITH, draws, SeededStream(3))
    centre = np.linalg.solve(information, np.ones(2))
    # per coordinate: a mean chi-square with `draws` degrees, and one with K - 1 times as many
    of_means = np.mean((means - centre) ** 2, axis=0) / np.diag(variance) * made.copies
    diagonal = np.arange(2)
    of_scatters = scatters[:, diagonal, diagonal].mean(axis=0) / np.diag(variance)
    # what rounding adds to the first, at most: a 192nd
    errors = [
        np.abs(of_means - 1).max() / math.sqrt(2 / draws) > 4 + math.sqrt(draws / 2) / 192,
        np.abs(of_scatters / (made.copies - 1) - 1).max()
        > 4 * math.sqrt(2 / (draws * (made.copies - 1))),
    ]
    assert errors == [seen, seen]


def test_what_a_distance_costs_is_counted() -> None:
    """A release that shows a record once in 1 / T times is at a distance of T from a sound one."""
    delta, law, distance = 1e-6, Gaussian(0.5), TotalVariation(4e-8)
    for times in (1, 3):
        event = compose({compose([law, distance]): times})
        epsilon = total_epsilon([event], delta)
        shown = 1 - (1 - distance.distance) ** times
        mu = math.sqrt(times) * law.mu

        def spent(at: float, shown: float = shown, mu: float = mu) -> float:
            return shown + (1 - shown) * gdp.delta_of(mu, at)

        assert spent(epsilon) <= delta < spent(total_epsilon([compose({law: times})], delta))
    assert total_epsilon([compose({distance: 25})], delta) == math.inf
    assert total_epsilon([distance], 0.0) == math.inf
    assert total_epsilon([distance], delta) == 0
    assert group(distance, 3) == TotalVariation(3 * distance.distance)
    assert group(TotalVariation(0.5), 3) == TotalVariation(1.0)
