"""One replication of paper noisy-mle: sites with their records, and every estimate of them.

Site m of M has n rows x ~ N(0, I / m) and no intercept; theta has four coefficients of 0.5 and else
0; linear responses have a deviation of 4, where the paper prints a variance of 2^2 and its figures
say 16. Site 1 is the centre, and its records are used in clear; the others release.

The paper's scale of the noise is that of the records at hand, the largest change by leaving out one
of them. **That protects nobody**, and only reproduces its tables; what studies do instead, with a
public scale, is `pipeline.methods.noisy_copies.accounting`. SCORE keeps epsilon and delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from pipeline.methods.noisy_copies import infembler
from pipeline.methods.noisy_copies.infembler import Assembled, Copies
from pipeline.privacy.accounting import mu_of
from pipeline.types import Matrix, Vector

DEVIATION = {"linear": 4.0, "logistic": 1.0}
#: Newton steps of a site's fit, and the ridge that keeps separated classes finite.
STEPS, RIDGE = 30, 1e-6
#: Rounds of an assembly at most.
MOST = 500
#: Shares of score and curvature in SCORE, and where its residuals are cut, in deviations.
SPLIT, CUT = 2.0, 2.5
#: Steps, rates and clipping norms that DP-SGD is tuned over, on the truth, as the paper did.
DESCENTS = [
    (steps, rate, limit) for steps in (5, 10) for rate in (0.2, 0.5) for limit in (0.15, 0.3, 0.6)
]


@dataclass(frozen=True, slots=True)
class Fit:
    """A site's own fit: estimate, information, and what leaving out each record does to both."""

    theta: Vector
    information: Matrix
    #: Largest |theta - theta'| and |F^(1/2) (theta - theta')| over single deletions.
    moved: float
    weighed: float


@dataclass(frozen=True, slots=True)
class Setting:
    """Privacy of every remote site, and how many copies it sends."""

    epsilon: float = 4.0
    delta: float | None = None
    copies: int = 40


def truth_of(size: int) -> Vector:
    """Return the coefficients."""
    return np.where(np.arange(size) < 4, 0.5, 0.0)


def drawn(
    loss: str, size: int, count: int, sites: int, rng: np.random.Generator
) -> list[tuple[Matrix, Vector]]:
    """Return the records of all sites."""
    found = []
    for site in range(1, sites + 1):
        rows = rng.standard_normal((count, size)) / math.sqrt(site)
        predictor = rows @ truth_of(size)
        if loss == "linear":
            found.append((rows, predictor + DEVIATION[loss] * rng.standard_normal(count)))
        else:
            found.append((rows, (rng.random(count) < expit(predictor)).astype(float)))
    return found


def fit(loss: str, rows: Matrix, responses: Vector, scale: float | None = None) -> Fit:
    """Return the maximum likelihood estimate of some records; `scale` is sigma of a linear one."""
    size, sigma = rows.shape[1], DEVIATION[loss] if scale is None else scale
    theta = np.zeros(size)
    for _ in range(1 if loss == "linear" else STEPS):
        slope, weight = _derivatives(loss, rows @ theta, responses, sigma)
        information = (rows.T * weight) @ rows + RIDGE * np.eye(size)
        moved = np.linalg.solve(information, rows.T @ slope - RIDGE * theta)
        # a step that separated classes make endless
        theta = theta + moved * min(1.0, 5.0 / max(float(np.linalg.norm(moved)), 1e-300))
        if np.linalg.norm(moved) < 1e-10:
            break
    slope, weight = _derivatives(loss, rows @ theta, responses, sigma)
    information = (rows.T * weight) @ rows + RIDGE * np.eye(size)
    solved = np.linalg.solve(information, rows.T)
    leverage = np.einsum("ij,ji->i", rows, solved)
    pull = np.abs(slope) / (1 - np.minimum(weight * leverage, 0.999))
    lengths = np.linalg.norm(solved, axis=0)
    return Fit(
        theta, information, float(np.max(pull * lengths)), float(np.max(pull * np.sqrt(leverage)))
    )


def estimates(
    loss: str, records: Sequence[tuple[Matrix, Vector]], how: Setting, rng: np.random.Generator,
    *, names: Sequence[str], norms: Sequence[float] | None = None, scale: float | None = None,
    cut: float | None = None,
) -> dict[str, Vector]:  # fmt: skip
    """Return estimates by name: OPT, Site1, AVG, INFEM, SCORE, DPSGD.

    norms, cut: Public bounds of rows and residuals; by default those of the simulation.
    """
    count, size = records[0][0].shape
    delta = 1 / count if how.delta is None else how.delta
    sigma = DEVIATION[loss] if scale is None else scale
    fits = [fit(loss, *site, scale) for site in records]
    rows = np.concatenate([site[0] for site in records])
    responses = np.concatenate([site[1] for site in records])
    found = {"Site1": fits[0].theta}
    noise = alpha(how.epsilon, delta)
    if "OPT" in names:
        found["OPT"] = fit(loss, rows, responses, scale).theta
    if "AVG" in names:
        noised = [fits[0].theta] + [
            f.theta + f.moved / noise * rng.standard_normal(size) for f in fits[1:]
        ]
        found["AVG"] = np.mean(noised, axis=0)
    if "INFEM" in names:
        found["INFEM"] = infem(fits, count, how, noise, rng)
    public = list(norms or (math.sqrt(1.5 * size / (m + 1)) for m in range(len(records))))
    bound = cut if cut is not None else CUT * sigma if loss == "linear" else 1.0
    deviation = 1 / mu_of(how.epsilon, delta)
    if "SCORE" in names:
        found["SCORE"] = score(loss, records, fits[0], public, bound, deviation, sigma, rng)
    if "DPSGD" in names:
        for steps, rate, clip in DESCENTS:
            found[f"DPSGD {steps} {rate} {clip}"] = descent(
                loss, records, clip * bound * float(np.mean(public)), deviation, steps, rate, rng
            )
    return found


def alpha(epsilon: float, delta: float) -> float:
    """Return alpha, to which the paper's noise is calibrated (Theorem 1)."""
    return epsilon / (2 * math.sqrt(2 * math.log(2.5 / delta)))


def infem(
    fits: Sequence[Fit], count: int, how: Setting, noise: float, rng: np.random.Generator,
    *, shift: float = 0.0, shrink: float = 1.0,
) -> Vector:  # fmt: skip
    """Return INFEMBLER's estimate; the last site says what is shifted, or too precise."""
    scales = np.array([how.copies * f.weighed**2 / noise**2 for f in fits[1:]])
    drawn = [draw(f, how.copies, psi, rng) for f, psi in zip(fits[1:], scales, strict=True)]
    means, scatters = (np.array(part) for part in zip(*drawn, strict=True))
    means[-1] += shift
    scatters[-1] *= shrink
    many = np.ones(len(scales))
    sites = Copies(
        count * many, (how.copies - 1) * many, scales, scales / how.copies, means, scatters
    )
    return assemble(sites, count, fits[0].theta, fits[0].information).theta


def draw(fit: Fit, copies: int, scale: float, rng: np.random.Generator) -> tuple[Vector, Matrix]:
    """Return mean and scatter of K copies N(theta, scale F^-1), by Bartlett's decomposition.

    Fewer copies than there are numbers in one are drawn as they are.
    """
    size = len(fit.theta)
    root = np.sqrt(scale) * np.linalg.inv(np.linalg.cholesky(fit.information)).T
    if copies <= size:
        apart = rng.standard_normal((copies, size)) @ root.T
        middle = apart.mean(axis=0)
        return fit.theta + middle, (apart - middle).T @ (apart - middle)
    mean = fit.theta + root @ rng.standard_normal(size) / np.sqrt(copies)
    lower = np.tril(rng.standard_normal((size, size)), -1)
    np.fill_diagonal(lower, np.sqrt(rng.chisquare(copies - 1 - np.arange(size))))
    half = root @ lower
    return mean, half @ half.T


def assemble(
    sites: Copies, records: float, theta: Vector, information: Matrix, tolerance: float = 1e-3
) -> Assembled:
    """Return the estimate of Algorithm 1: rounds until a step is small in standard errors.

    records, theta, information: What the centre holds itself.
    """
    counted = float(sites.records.sum())
    middle = (records * theta + sites.records @ sites.means) / (records + counted)
    found = Assembled(middle, information / records, np.eye(len(theta)), sites.scatters)
    while found.rounds < MOST:
        # a round of the product, and what the centre has
        before, found = found, infembler.step(sites, found)
        own = counted + len(theta) + 1
        whole = found.whole + information
        score = found.whole @ found.theta + information @ theta
        at = np.linalg.solve(whole, score)
        moved = at - before.theta
        found = replace(
            found, theta=at, whole=whole,
            information=(own * found.information + information) / (own + records),
            step=math.sqrt(max(0.0, float(moved @ whole @ moved))),
        )  # fmt: skip
        changed = np.abs(found.information - before.information).max()
        if found.step < tolerance and changed < tolerance * np.abs(found.information).max():
            break
    return found


def score(
    loss: str, records: Sequence[tuple[Matrix, Vector]], first: Fit, norms: Sequence[float],
    cut: float, deviation: float, sigma: float, rng: np.random.Generator,
) -> Vector:  # fmt: skip
    """Return the estimate from noised scores and curvatures at the centre's own estimate."""
    size, noise = len(first.theta), deviation * math.sqrt(1 + SPLIT**2)
    whole, step = first.information.copy(), np.zeros(size)
    most = 1.0 if loss == "linear" else 0.25
    for (rows, responses), norm in zip(records[1:], norms[1:], strict=True):
        shorter = np.minimum(1.0, norm**2 / np.sum(rows**2, axis=1))
        slope, weight = _derivatives(loss, rows @ first.theta, responses, 1.0)
        own = noise * norm * cut / SPLIT
        pull = rows.T @ (shorter * np.clip(slope, -cut, cut)) + own * rng.standard_normal(size)
        upper = np.triu(rng.standard_normal((size, size)), 1) / math.sqrt(2)
        curved = noise * norm**2 * most
        bent = (rows.T * (shorter * weight)) @ rows + curved * (
            upper + upper.T + np.diag(rng.standard_normal(size))
        )
        share = 1 / (sigma**2 + own**2 * size / max(float(np.trace(bent)), own))
        whole += share * bent
        step += share * pull
    # noise can leave it indefinite where the rule of the page does not hold
    values, vectors = np.linalg.eigh(whole)
    least = float(np.linalg.eigvalsh(first.information)[0])
    return first.theta + vectors @ ((vectors.T @ step) / np.maximum(values, least))


def descent(
    loss: str, records: Sequence[tuple[Matrix, Vector]], limit: float, deviation: float, steps: int,
    rate: float, rng: np.random.Generator,
) -> Vector:  # fmt: skip
    """Return DP-SGD's estimate: full batches, clipped gradients, noise of each remote site."""
    size, theta = records[0][0].shape[1], np.zeros(records[0][0].shape[1])
    count = sum(len(rows) for rows, _ in records)
    bend = np.mean([np.mean(rows**2) for rows, _ in records]) * (1 if loss == "linear" else 0.25)
    for _ in range(steps):
        # a sum of equal Gaussians of all remote sites
        noise = limit * math.sqrt(steps * (len(records) - 1)) * deviation
        total = noise * rng.standard_normal(size)
        for rows, responses in records:
            slope, _weight = _derivatives(loss, rows @ theta, responses, 1.0)
            lengths = np.abs(slope) * np.linalg.norm(rows, axis=1)
            total += rows.T @ (slope * np.minimum(1.0, limit / np.maximum(lengths, 1e-300)))
        theta = theta + rate / bend * total / count
    return theta


def _derivatives(
    loss: str, predictor: Vector, responses: Vector, sigma: float
) -> tuple[Vector, Vector]:
    """Return the score of each record in its predictor, and the curvature."""
    if loss == "linear":
        return (responses - predictor) / sigma**2, np.full(len(responses), 1 / sigma**2)
    one = expit(predictor)
    return responses - one, one * (1 - one)
