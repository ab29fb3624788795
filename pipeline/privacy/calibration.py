"""Noise for a budget, and a budget for noise: calibration as a tool of its own.

Of epsilon, delta and the noise scale, two are given and the third is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from pipeline.errors import PrivacyError
from pipeline.privacy import channel, curves, gdp
from pipeline.privacy.accounting import mu_of_pure
from pipeline.privacy.sensitivity import rounding_of_vector

Name = Literal["gaussian", "discrete-gaussian", "laplace", "discrete-laplace"]
#: Ranges of what may be asked, and of scales in lattice units: within them no step overflows.
COUNTS = 10**9
LENGTHS = 1e-100, 1e100
EPSILONS = 1e-12, 1e4
DELTAS = 1e-300, 1.0
UNITS = 2.0**-10, 2.0**80


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be noised.

    mechanism: "gaussian" and "laplace" are the continuous laws, whose guarantee real numbers would
        keep; the discrete ones are what a computer can keep.
    sensitivity: Distance between neighbours: L2 for Gaussian noise, L1 for Laplace noise; > 0.
    dimension: Numbers in one release, >= 1.
    records: At most so many records belong to one unit (group privacy), >= 1.
    releases: Each record enters so many releases of this kind (composition), >= 1.
    lattice: Unit of the lattice that all values lie on already; None to let one be chosen, with
        rounding to it inside the sensitivity. For the discrete mechanisms.
    """

    mechanism: Name
    sensitivity: float
    dimension: int = 1
    records: int = 1
    releases: int = 1
    lattice: float | None = None

    def __post_init__(self) -> None:
        """Refuse what has no meaning; PrivacyError, naming the field and its range."""
        if self.mechanism not in get_args(Name):
            raise PrivacyError(f"mechanism must be one of {', '.join(get_args(Name))}")
        _check("sensitivity", self.sensitivity, LENGTHS)
        for name in ("dimension", "records", "releases"):
            if not 1 <= getattr(self, name) <= COUNTS:
                raise PrivacyError(f"{name} must be a whole number in 1 ... {COUNTS:,}")
        if self.lattice is None:
            return
        if "discrete" not in self.mechanism:
            raise PrivacyError(
                "lattice: it goes with the discrete mechanisms alone, as other noise has no "
                "lattice; leave it out"
            )
        _check("lattice", self.lattice, LENGTHS)
        if not 1 <= self.sensitivity / self.lattice < 2**40:
            raise PrivacyError("sensitivity must be between 1 and 2^40 lattice units")
        units = self.sensitivity / self.lattice
        if self.dimension == 1 and not math.isclose(units, round(units), rel_tol=1e-12):
            raise PrivacyError("sensitivity must be a whole number of lattice units")

    @property
    def gaussian(self) -> bool:
        """Whether the noise is of the Gaussian kind."""
        return "gaussian" in self.mechanism


@dataclass(frozen=True, slots=True)
class Answer:
    """A calibrated mechanism.

    scale: sigma of Gaussian noise, b of Laplace noise, in the units of the sensitivity.
    epsilon, delta: What all releases together keep, for one unit.
    mu: They are mu-GDP too; for "discrete-gaussian" up to what `how` says.
    lattice, lattice_scale: Unit of the lattice, and the scale in such units; None for the
        continuous laws.
    how: Which curve was used, and whether it is exact or a bound.
    """

    question: Question
    scale: float
    epsilon: float
    delta: float
    mu: float | None
    lattice: float | None
    lattice_scale: float | None
    how: str


def solve(
    question: Question,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    scale: float | None = None,
) -> Answer:
    """Find the one of epsilon, delta and scale that is missing; Laplace noise has no delta.

    Raises PrivacyError if not exactly one is missing, or one is outside its range, or none fits.
    """
    given = {"epsilon": epsilon, "delta": delta, "scale": scale}
    if not question.gaussian:
        if delta:
            raise PrivacyError("delta: Laplace noise keeps a pure epsilon; leave delta out")
        del given["delta"]
    if sum(value is None for value in given.values()) != 1:
        raise PrivacyError(f"leave out exactly one of {', '.join(given)}")
    if epsilon is not None:
        _check("epsilon", epsilon, EPSILONS)
    if delta is not None and question.gaussian and not DELTAS[0] <= delta < DELTAS[1]:
        raise PrivacyError(f"delta must lie in [{DELTAS[0]:g}, 1), for example 1e-6")
    if scale is not None:
        _check("scale", scale, LENGTHS)
    if not question.gaussian:
        answer = _laplace(question, epsilon, scale)
    elif question.mechanism == "gaussian":
        answer = _gaussian(question, epsilon, delta, scale)
    elif question.lattice is None:
        answer = _fine_gaussian(question, epsilon, delta, scale)
    else:
        answer = _discrete_gaussian(question, question.lattice, epsilon, delta, scale)
    if not (math.isfinite(answer.epsilon) and math.isfinite(answer.mu or 0.0)):
        raise PrivacyError(
            "scale: noise of this scale is too small for any finite epsilon; give a larger scale"
        )
    return answer


def _gaussian(
    question: Question, epsilon: float | None, delta: float | None, scale: float | None
) -> Answer:
    whole = question.sensitivity * question.records * math.sqrt(question.releases)
    if scale is None:
        scale = whole / gdp.mu_of(epsilon or 0.0, delta or 0.0)
    mu = whole / scale
    epsilon = gdp.epsilon_of(mu, delta or 0.0) if epsilon is None else epsilon
    # noise so large that delta is no float any more still has one
    delta = max(gdp.delta_of(mu, epsilon), DELTAS[0]) if delta is None else delta
    how = "exact: mu-GDP and its (epsilon, delta) dual"
    return Answer(question, scale, epsilon, delta, mu, None, None, how)


def _fine_gaussian(
    question: Question, epsilon: float | None, delta: float | None, scale: float | None
) -> Answer:
    """Answer for the lattice of this project's releases, far finer than the noise."""
    if scale is not None:
        raise PrivacyError(
            "lattice: it must be given together with scale, because the cost of discrete "
            "noise depends on the step of its lattice"
        )
    epsilon, delta = epsilon or 0.0, delta or 0.0
    numbers = question.dimension * question.releases * question.records
    lost = channel.slack(numbers, epsilon)
    if lost[0] >= epsilon / 2 or lost[1] >= delta / 2:
        raise PrivacyError(
            f"epsilon, delta: ({epsilon:g}, {delta:g}) is below what discrete noise can promise "
            f"for {numbers} numbers; give a larger epsilon or delta"
        )
    mu = gdp.mu_of(*channel.continuous(epsilon, delta, lost))
    part = channel.gaussian(
        question.sensitivity,
        rounding_of_vector(question.dimension, 2),
        mu / question.records / math.sqrt(question.releases),
    )
    how = (
        "bound: the rounded Gaussian's exact curve, less what the discrete one differs from it "
        f"(epsilon {lost[0]:.1e}, delta {lost[1]:.1e})"
    )
    return Answer(
        question, part.standard_deviation, epsilon, delta, mu, part.unit,
        part.noise.standard_deviation, how,
    )  # fmt: skip


def _discrete_gaussian(
    question: Question,
    lattice: float,
    epsilon: float | None,
    delta: float | None,
    scale: float | None,
) -> Answer:
    """Any lattice: the exact curve for one integer in one release, a zCDP bound for the rest."""
    whole = question.sensitivity / lattice * question.records
    alone = question.dimension == question.releases == 1

    def curve(sigma: float, at: float) -> float:
        if alone and sigma <= curves.LARGEST_SIGMA:
            return curves.discrete_gaussian_delta(sigma, round(whole), at)
        return curves.concentrated_delta(whole**2 * question.releases / (2 * sigma**2), at)

    if scale is None:
        at, most = epsilon or 0.0, delta or 0.0
        sigma = curves.smallest(lambda value: curve(value, at) <= most, whole)
    else:
        sigma = scale / lattice
    if not UNITS[0] <= sigma <= UNITS[1]:
        raise PrivacyError("the noise scale must lie between 2^-10 and 2^80 lattice units")
    if epsilon is None:
        most = delta or 0.0
        epsilon = 0.0
        if curve(sigma, 0.0) > most:
            epsilon = curves.smallest(lambda at: curve(sigma, at) <= most, 1.0)
    delta = max(curve(sigma, epsilon), DELTAS[0]) if delta is None else delta
    exact = alone and sigma <= curves.LARGEST_SIGMA
    how = "exact: the discrete Gaussian's own curve" if exact else "bound: zCDP, any dimension"
    return Answer(question, sigma * lattice, epsilon, delta, None, lattice, sigma, how)


def _laplace(question: Question, epsilon: float | None, scale: float | None) -> Answer:
    times, unit, how = question.records * question.releases, question.lattice, "exact: pure epsilon"
    if question.mechanism == "discrete-laplace" and unit is None:
        if epsilon is None:
            raise PrivacyError(
                "lattice: it must be given together with scale, because the cost of discrete "
                "noise depends on the step of its lattice"
            )
        rounding = rounding_of_vector(question.dimension, 1)
        part = channel.laplace(question.sensitivity, rounding, epsilon / times)
        unit, scale = part.unit, part.sensitivity * times / epsilon
    else:
        scale = question.sensitivity * times / (epsilon or 0.0) if scale is None else scale
        epsilon = question.sensitivity * times / scale
    mu, steps = mu_of_pure(epsilon), scale / unit if unit else None
    return Answer(question, scale, epsilon, 0.0, mu, unit, steps, how)


def _check(name: str, value: float, within: tuple[float, float]) -> None:
    """Refuse a number outside its range, and what is no number."""
    if not within[0] <= value <= within[1]:
        raise PrivacyError(f"{name} must be a number in [{within[0]:g}, {within[1]:g}]")
