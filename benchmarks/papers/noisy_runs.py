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
#: Copies that a site sends.
COPIES = 40
#: Rounds of an assembly at most.
MOST = 500
#: Shares of score and curvature in SCORE, and where its residuals are cut, in deviations.
SPLIT, CUT = 2.0, 2.5


@dataclass(frozen=True, slots=True)
class Fit:
    """A site's own fit: estimate, information, and what leaving out each record does to both."""

    theta: Vector
    information: Matrix
    #: Largest |theta - theta'| and |F^(1/2) (theta - theta')| over single deletions.
    moved: float
    weighed: float


def truth_of(size: int) -> Vector:
    return np.where(np.arange(size) < 4, 0.5, 0.0)


def drawn(
    loss: str, size: int, count: int, sites: int, rng: np.random.Generator
) -> list[tuple[Matrix, Vector]]:
    found = []
    for site in range(1, sites + 1):
        rows = rng.standard_normal((count, size)) / math.sqrt(site)
        predictor = rows @ truth_of(size)
        if loss == "linear":
            found.append((rows, predictor + DEVIATION[loss] * rng.standard_normal(count)))
        else:
            found.append((rows, (rng.random(count) < expit(predictor)).astype(float)))
    return found


def fit(loss: str, rows: Matrix, responses: Vector) -> Fit:
    """Return the maximum likelihood estimate of some records."""
    size, sigma = rows.shape[1], DEVIATION[loss]
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
    loss: str, records: Sequence[tuple[Matrix, Vector]], epsilon: float,
    rng: np.random.Generator, names: Sequence[str],
) -> dict[str, Vector]:  # fmt: skip
    """Return estimates by name: OPT, Site1, AVG, INFEM, SCORE."""
    count, size = records[0][0].shape
    fits = [fit(loss, *site) for site in records]
    found = {"Site1": fits[0].theta}
    noise = alpha(epsilon, 1 / count)
    if "OPT" in names:
        rows, responses = (np.concatenate(part) for part in zip(*records, strict=True))
        found["OPT"] = fit(loss, rows, responses).theta
    if "AVG" in names:
        noised = [fits[0].theta] + [
            f.theta + f.moved / noise * rng.standard_normal(size) for f in fits[1:]
        ]
        found["AVG"] = np.mean(noised, axis=0)
    if "INFEM" in names:
        found["INFEM"] = infem(fits, count, noise, rng)
    if "SCORE" in names:
        found["SCORE"] = score(loss, records, fits[0], 1 / mu_of(epsilon, 1 / count), rng)
    return found


def alpha(epsilon: float, delta: float) -> float:
    """Return alpha, to which the paper's noise is calibrated (Theorem 1)."""
    return epsilon / (2 * math.sqrt(2 * math.log(2.5 / delta)))


def infem(
    fits: Sequence[Fit], count: int, noise: float, rng: np.random.Generator,
    *, shift: float = 0.0,
) -> Vector:  # fmt: skip
    """Return INFEMBLER's estimate; the last site says what is shifted."""
    scales = np.array([COPIES * f.weighed**2 / noise**2 for f in fits[1:]])
    drawn = [draw(f, COPIES, psi, rng) for f, psi in zip(fits[1:], scales, strict=True)]
    means, scatters = (np.array(part) for part in zip(*drawn, strict=True))
    means[-1] += shift
    many = np.ones(len(scales))
    sites = Copies(count * many, (COPIES - 1) * many, scales, scales / COPIES, means, scatters)
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
    loss: str, records: Sequence[tuple[Matrix, Vector]], first: Fit, deviation: float,
    rng: np.random.Generator,
) -> Vector:  # fmt: skip
    """Return the estimate from noised scores and curvatures at the centre's own estimate."""
    size, noise = len(first.theta), deviation * math.sqrt(1 + SPLIT**2)
    whole, step = first.information.copy(), np.zeros(size)
    sigma = DEVIATION[loss]
    # public bounds of a row at site m, of residuals and of curvatures
    cut, most = (CUT * sigma, 1.0) if loss == "linear" else (1.0, 0.25)
    for site, (rows, responses) in enumerate(records[1:], 2):
        norm = math.sqrt(1.5 * size / site)
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


def _derivatives(
    loss: str, predictor: Vector, responses: Vector, sigma: float
) -> tuple[Vector, Vector]:
    """Return the score of each record in its predictor, and the curvature."""
    if loss == "linear":
        return (responses - predictor) / sigma**2, np.full(len(responses), 1 / sigma**2)
    one = expit(predictor)
    return responses - one, one * (1 - one)
