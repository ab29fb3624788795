"""Noised sums of many sites, as the registry knows them: what they need, and intervals to hope for.

Of features that are as their ranges and typical values say. Plans suppose how large windows are,
how much a loss bends, and when models are near: sites move together. A class that is rare lies far
from the public start, which takes more models, and there a logistic loss bends less. Derived in
docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import ndtri

from pipeline.estimators.estimate import median_kept
from pipeline.estimators.forgetting import PER_HALF_LIFE, counted_slots
from pipeline.methods.base import Method, Plan, Proposal, Spec
from pipeline.methods.noisy_mle.client import SiteTask, check, chosen_release
from pipeline.methods.noisy_mle.estimate import KNOWN, estimate, limit
from pipeline.methods.sites import robust
from pipeline.methods.sites.client import LOSSES, SERVER_KEYS
from pipeline.methods.sites.report import (
    LATER,
    REMEDIES,
    SiteReport,
    bend_of,
    first_windows,
    influence,
)
from pipeline.methods.sites.report import propose as plan_of_sites
from pipeline.methods.sites.state import SiteServer
from pipeline.release.policy import growth_of
from pipeline.study.model import Study
from pipeline.study.reference import (
    Seen,
    kept_moments,
    moments,
)
from pipeline.study.versions import replace_keys
from pipeline.types import Matrix, Vector

#: A smaller ridge changes nothing that could be seen.
LEAST_RIDGE = 1e-3
#: A larger one leaves little of the coefficients.
LARGEST_RIDGE = 0.3
#: A ridge draws a level's coefficient to 0 by a tenth or more where the level's share of the
#: records is less than so many times the ridge.
OUTWEIGHED = 10
#: Levels with a smaller share are rare.
RARE = 0.05
#: What brings models near.
SOONER = (
    "a larger estimator.ridge, which keeps models from moving far by noise alone; or the same "
    "records in more windows (window.records), where models have not come near yet"
)
#: Share of the streams that have intervals where a plan says that they come; so much of the
#: Tracy-Widom law of real matrices lies below the second number.
NINE_TENTHS, DRIVEN = 0.9, 0.45
#: No least eigenvalue is said to be further below the noise of one release.
FARTHEST = 1e15


def facts(task: SiteTask) -> dict[str, object]:
    """Return what `study check` prints of a study."""
    later = task.channels(1)
    noise = {
        "gradient_sd": later.gradient.standard_deviation,
        "curvature_sd": later.curvature.standard_deviation,
        "start_gradient_sd": task.initial_channels.gradient.standard_deviation,
        "norm_bound": task.norm_bound,
    }
    if later.squares is not None:
        noise["squared_slopes_sd"] = later.squares.standard_deviation
    return {
        "noise": noise,
        "sites": {
            "release": task.release,
            "because": because(task),
            "records_of_a_site": least_records(task),
            "that_is": (
                "with at least this many records in each site, the noised estimate of all "
                f"{task.spec.sites} sites is more precise than what one of them could compute "
                "from its own records without noise"
            ),
            "largest_share": task.spec.largest_share,
        }
        | influence(task),
    }


def because(task: SiteTask) -> str:
    """Say why a study has its release."""
    if task.spec.release != "auto":
        return "estimator.method.release says so"
    if task.release == "sufficient":
        return "the sums of a linear model at 0 say everything, so no site waits for a model"
    if task.loss.name == "linear":
        return "residuals are cut below the response's range, and a model makes them smaller"
    return (
        "a curved loss is known only near the point where its score is taken, and models bring "
        "that point near"
    )


def least_records(task: SiteTask) -> int:
    """Return from how many records of each site on noised scores tell more than a site of its own.

    n sqrt(M) >= 2 (R^2 / lambda) s sqrt(2 d), s R^2 being the noise of the curvature's diagonal.
    """
    spread = float(np.trace(kept_moments(task.encoding, task.norm_bound))) / task.size
    curvature = task.update_channels.curvature.standard_deviation / task.loss.curvature_bound
    return math.ceil(2 * curvature * math.sqrt(2 * task.size / task.spec.sites) / spread)


def warnings(task: SiteTask) -> tuple[str, ...]:
    """Return what the operator should know, in words."""
    said, least, largest = [], least_records(task), task.growth.largest
    if least > 20 * largest:
        said.append(
            f"a site should have about {least:,} records, and a window has {largest} at most. "
            "Noise enters each window anew: use larger windows (window.records), a larger epsilon "
            "or fewer features"
        )
    levels = max((len(f.levels or ()) for f in task.encoding.features.values()), default=0)
    ridge = task.study.estimator.ridge
    if levels and OUTWEIGHED * ridge > min(RARE, 1 / levels):
        said.append(
            f"estimator.ridge: {ridge:g} outweighs what the records say about levels that fewer "
            f"than {OUTWEIGHED * ridge:.2g} of them have. It pulls the coefficients of these "
            "levels to 0 by a tenth or more, and intervals are for the smaller coefficients. Use "
            "a smaller ridge, or join rare levels"
        )
    return tuple(said)


def plan(task: SiteTask, records: int, clients: int, seen: Seen | None = None) -> Plan:
    """As `Method.plan`: its study says how many sites there are."""
    del clients
    counted = counted_slots(task.study, records)
    reach = float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]
    curvature = planned_curvature(task, seen)
    bread = curvature + np.diag(task.penalty)
    ridge, usual = task.study.estimator.ridge, _until(task, float(np.linalg.eigvalsh(bread)[0]))
    releases = releases_in(task, records) - releases_in(task, records - counted)
    half = np.diag(covariance(task, curvature, counted, max(releases, 1.0)))[1:]
    latest = _until(task, ridge) if ridge else None
    narrow: int | None = None
    sooner: tuple[str, ...] = ()
    if task.at_models:
        # no number of windows is known to bring a model near, whatever the records say
        near = _until_near(task)
        latest, narrow = None, None if latest is None else max(latest, near)
        usual = max(usual, near)
    usual = usual if latest is None else min(usual, latest)
    if task.at_models and usual == _until_near(task):
        sooner = (SOONER,)
    return Plan(
        latest=latest,
        usual=usual,
        usual_half=reach * math.sqrt(float(np.median(half))),
        why=_why(task),
        narrow=narrow,
        kept=median_kept(bread, task.penalty),
        sooner=sooner,
        remedies=REMEDIES,
        facts=facts(task),
        warnings=warnings(task),
    )


def _why(task: SiteTask) -> str:
    if not task.study.estimator.ridge:
        return (
            "estimator.ridge is 0, so intervals wait until the records' own curvature is clear "
            "of the noise"
        )
    return "intervals wait until models are near the estimate" if task.at_models else ""


def propose(study: Study, records: int, clients: int, seen: Seen | None = None) -> Proposal:
    """As `Method.propose`: ridge and windows are enough whatever records are like."""
    del seen
    task = SiteTask(study)
    shared = plan_of_sites(study, records, clients, moving=task.at_models)
    changes, reasons = dict(shared.changes), dict(shared.reasons)
    begun = SiteTask(replace_keys(study, changes))
    near = first_windows(begun) + LATER
    certain = _spectral(begun) / begun.slots / math.sqrt(near * clients)
    ridge = max(float(f"{1.05 * certain:.2g}"), LEAST_RIDGE)
    larger = changes["estimator.ridge"] = _near_ridge(study, changes, ridge, near)
    held = ", and so that noise keeps no model far from the estimate" if larger > ridge else ""
    reasons["estimator.ridge"] = (
        f"large enough beside the noise for intervals of slopes from {near} of "
        f"{near + 1} windows on in nine of ten streams, whatever the records say"
        f"{', once models are near' if task.at_models else ''}{held}; these intervals are for "
        "the penalised coefficients"
    )
    return Proposal(changes, reasons)


def _near_ridge(study: Study, changes: Mapping[str, object], ridge: float, windows: int) -> float:
    """Return the ridge, or the least larger one with which models are near after so many windows.

    A model that noise moves far makes later scores of little use, and a ridge holds it.
    """
    larger = ridge
    while larger <= LARGEST_RIDGE:
        task = SiteTask(replace_keys(study, {**changes, "estimator.ridge": larger}))
        if not task.at_models or near_windows(task) <= windows:
            return larger
        larger = float(f"{1.1 * larger:.2g}")
    return ridge


def _until(task: SiteTask, least: float) -> int:
    """Return from how many record slots on the least eigenvalue stands out of the noise."""
    channels, far = task.channels(1), away(task)
    wanted = min(_spectral(task) / max(least, 1e-300), FARTHEST * task.slots)
    if channels.squares is not None:
        own = channels.squares.standard_deviation
        # what is left of them has the noise of scores and curvatures, too
        left = own**2 + 4 * far * channels.gradient.standard_deviation**2
        left += far**2 * channels.curvature.standard_deviation**2
        clear = KNOWN * own + float(ndtri(NINE_TENTHS)) * math.sqrt(left)
        wanted = max(wanted, clear / dispersion(task))
    return slots_until(task, wanted)


def _spectral(task: SiteTask) -> float:
    """Return the least eigenvalue of a sum whose streams stand out of the noise of one release.

    Nine of ten do: noise drives eigenvalues of slopes that records tell little of apart, and it is
    the noised ones that must be clear.
    """
    deviation = task.channels(1).curvature.standard_deviation
    return (limit(task.size) + driven(task.size - 1)) * deviation


def driven(count: int) -> float:
    """Return how far below equal eigenvalues their noise drives the least, in nine of ten cases.

    In deviations of an entry on the diagonal, entries beside it having half its variance: the law
    of Tracy and Widom (1996, On orthogonal and symplectic matrix ensembles), above what three or
    more have by less than a tenth.

    count: How many they are; none are driven nowhere.
    """
    return math.sqrt(2 * count) + DRIVEN / math.sqrt(2) / count ** (1 / 6) if count else 0.0


def _until_near(task: SiteTask) -> int:
    """Return from how many record slots on scores are usually near enough."""
    # clients that move together need whole rounds for the releases of a model
    windows = (near_windows(task) - 1) * of_each_model(task) + 1
    return round(task.spec.sites * float(window_sizes(task, windows).sum()))


#: What models off the estimate may move, in shares of what is allowed at most. Nine of ten streams
#: of 8 % positives had intervals at 0.7, half of them at 0.9, and one of ten at 1.4.
CLEAR = 0.8
#: No plan looks further ahead.
MOST_WINDOWS = 10_000
#: What a residual's standard deviation is taken for where a study says nothing, and that of the
#: linear predictor of a number, in encoded units.
RESIDUAL, PREDICTOR = 0.1, 0.25
#: The usual ratio of a residual bound to the residuals' deviation.
HUBER = 1.345


def stages(task: SiteTask) -> Iterator[tuple[int, float]]:
    """Yield how large the windows of a site are in turn, and how many are as large.

    Those at the start do not grow; the last stage has no end. A window ends where releases get
    another age, of which sites hear with the model after that.
    """
    growth, forgetting = task.growth, task.study.estimator.forgetting
    before, most = 0, growth.largest
    if forgetting is not None and forgetting.of == "records":
        aged = 2 * forgetting.half_life / PER_HALF_LIFE / task.spec.sites
        most = min(most, math.ceil(aged / task.slots) * task.slots)
    yield task.slots, of_each_model(task)
    while (size := growth.next_window(before)) < most:
        # until the next ones are larger
        enough = (size // task.slots + 1) * task.slots * growth.divisor
        count = math.ceil((enough - before) / size)
        yield size, count
        before += count * size
    yield most, math.inf


def of_each_model(task: SiteTask) -> int:
    """Return how many windows of each site a model takes."""
    return math.ceil(task.study.stream.publish.releases / task.spec.sites)


def window_sizes(task: SiteTask, windows: int) -> Vector:
    """Return the record slots of the first windows of a site, shape (windows,)."""
    sizes: list[float] = []
    for size, count in stages(task):
        sizes += [size] * int(min(count, windows - len(sizes)))
        if len(sizes) == windows:
            break
    return np.array(sizes)


def releases_in(task: SiteTask, slots: float) -> float:
    """Return how many releases the first record slots of all sites together make."""
    sites, windows = task.spec.sites, 0.0
    rest = slots / sites
    for size, count in stages(task):
        windows += min(count, rest / size)
        if (rest := rest - count * size) <= 0:
            break
    return sites * windows


def slots_until(task: SiteTask, wanted: float) -> int:
    """Return after how many record slots of all sites their noise is small enough.

    wanted: Slots over the root of their releases, > 0.
    """
    sites, slots, windows = task.spec.sites, 0, 0.0
    square, more = wanted**2 / sites, math.inf
    for size, count in stages(task):
        # (slots + more size)^2 = square (windows + more)
        half = square / 2 - slots * size
        rest = (square * windows - slots**2) * size**2
        more = (half + math.sqrt(max(half**2 + rest, 0.0))) / size**2
        if more <= count:
            break
        slots, windows = slots + size * int(count), windows + count
    # a hair less, for the rounding of what is a whole number
    return sites * slots + max(1, math.ceil(more * sites * (1 - 1e-12))) * size


def near_windows(task: SiteTask) -> int:
    """Return how many windows of every site it takes until scores are usually near."""
    first, later, moved = first_windows(task), LATER, _moved(task)
    while moved * _scatter(task, first, later) > CLEAR and later < MOST_WINDOWS:
        later = math.ceil(1.05 * later)
    return first + later


def _moved(task: SiteTask) -> float:
    """Return by how much a model of one round moves coefficients, in shares of what is allowed.

    Such a model is as far off as the noise and the records of a round make it. The most of all
    coefficients, over the standard error of one round.
    """
    curvature = planned_curvature(task)
    releases = task.spec.sites * of_each_model(task)
    chance = covariance(task, curvature, task.slots * releases, releases)
    scale, half = float(curvature[0, 0]), task.loss.remainder / 2
    deviations = np.sqrt(np.diag(chance))
    square = float(np.sum(chance * curvature)) / scale
    longest = min(
        # the mean length of a normal number
        math.sqrt(2 / math.pi) * float(deviations.sum()),
        task.longest * float(np.linalg.norm(deviations)),
    )
    bread = curvature + np.diag(task.penalty)
    moved = robust.of_each(half * square, half * longest * math.sqrt(square), scale, bread)
    return float((moved / deviations).max()) / robust.NEAR


def _scatter(task: SiteTask, first: int, rounds: int) -> float:
    """Return what so many rounds make of it, the models of which are means of all before them.

    Of N_m blocks in m rounds with equal noise a mean has the variance V_m = m / N_m^2. The older
    half i of all J rounds is left out: about the mean of the others, of N_J - N_i blocks and with
    V = (J - i) / (N_J - N_i)^2, a model has the variance V_m + V - 2 (m - 1 - i) / (N_m (N_J -
    N_i)), as all but one of its rounds may be among them. The standard error is the root of V.

    first: Rounds before those that may count.
    """
    each, number = of_each_model(task), np.arange(1, rounds + 1)
    sizes = window_sizes(task, (first + rounds) * each) / task.slots
    out, means = (rounds - 1) // 2, sizes.reshape(-1, each).mean(axis=1)[first:]
    held, blocks = np.cumsum(means), means[out:]
    total = float(blocks.sum())
    last = (rounds - out) / total**2
    both = np.maximum(number - 1 - out, 0) / (held * total)
    about = (number / held**2 + last - 2 * both)[out:]
    return float(blocks @ about / total) / math.sqrt(last)


def planned_curvature(task: SiteTask, seen: Seen | None = None) -> Matrix:
    """Return the mean curvature of a record at the reference, shape (d, d)."""
    bend = bend_of(task) * task.loss.start_curvature
    return bend * kept_moments(task.encoding, task.norm_bound, seen)


def covariance(task: SiteTask, curvature: Matrix, counted: float, releases: float) -> Matrix:
    """Return the covariance of the coefficients, shape (d, d).

    counted, releases: After so many record slots, in so many releases.
    """
    inverse = np.linalg.pinv(curvature + np.diag(task.penalty), hermitian=True)
    channels = task.channels(1)
    # that of the curvature times the way, whose own direction has twice as much as others
    half = away(task) * (1 + 1 / task.size) / 2
    noise = (
        channels.gradient.standard_deviation**2 + half * channels.curvature.standard_deviation**2
    )
    sampling = dispersion(task) / counted * curvature
    meat = sampling + noise * releases / counted**2 * np.eye(task.size)
    found: Matrix = inverse @ meat @ inverse
    return found


def away(task: SiteTask) -> float:
    """Return the guess of the squared way from where sums are taken to the coefficients."""
    if task.at_models:
        return 0.0
    products = moments(task.encoding)
    # slopes have equal shares in the predictor
    return PREDICTOR**2 * float(np.mean(1 / (np.diag(products) - products[0] ** 2)[1:]))


def dispersion(task: SiteTask) -> float:
    """Return the guess of the variance of a record's score over its curvature."""
    estimator, unit = task.study.estimator, task.response_scale[1]
    if task.classes:
        return 1.0
    if estimator.noise_scale is not None:
        return (estimator.noise_scale / unit) ** 2
    # a bound is chosen as so many deviations (Huber 1964)
    bound = estimator.residual_bound
    return (RESIDUAL if bound is None else bound / unit / HUBER) ** 2


LINES = """\
kind = "noisy-mle"            # each client is a site, which releases whole windows at once
loss = "logistic"             # or "linear", of a number: see [data]
# What a site sends. "auto" chooses by public numbers, and `study check` says what and why:
# "score", noised sums at the newest model, or "sufficient" (linear), noised sums that need none.
# sites: about how many there are, public. largest_share: the most that one may weigh, of all.
method = { release = "auto", sites = 10, largest_share = 0.5 }
# ridge: a number, part of what is estimated: slopes are drawn to 0 by it
norm_bound = "typical"        # longer records than 99 % of usual ones weigh less; or a number
# noise_scale = 2             # of linear: the residuals' standard deviation, where it is known
level = 0.95
# Let old releases fade, by half after so many records of all sites (or "seconds"):
# forgetting = { half_life = 50000, of = "records" }
"""


class NoisyMle(Method[SiteTask]):
    """Noised sums of each window of a site, weighed at the worker."""

    spec = Spec(
        kind="noisy-mle",
        title="noised scores of many sites, far ones weighed down",
        gives="a site that lies is bounded, left out and named",
        losses=LOSSES,
        table="method",
        server_keys=SERVER_KEYS,
        template={"estimator": LINES},
        needs_noise=(
            'kind = "noisy-mle" weighs sites by their noise, so that it has no stream without '
            "noise; see the exact fit (`veilstream fit --without-privacy`), or set estimator.kind "
            '= "renewable"'
        ),
    )
    report = SiteReport("curvature")

    def resolve(self, study: Study, given: Container[str]) -> Study:
        del given
        check(study)
        return study

    def grows(self, study: Study) -> bool:
        del study
        return True

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: which release it is, not how the worker weighs it."""
        meaning["estimator"].pop("method", None)
        meaning["release"] = chosen_release(study)
        grown = growth_of(study, grows=True)
        if grown.divisor:
            meaning["growth"] = [grown.divisor, grown.most]

    task = SiteTask

    def server(self, task: SiteTask) -> SiteServer:
        return SiteServer(task, estimate)

    plan = staticmethod(plan)
    propose = staticmethod(propose)


METHOD = NoisyMle()
