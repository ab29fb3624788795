"""What plans suppose: how large windows are, how much a loss bends, and when models are near.

Sites move together. A class that is rare lies far from the public start, which takes more models,
and there a logistic loss bends less. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pipeline.estimators.forgetting import PER_HALF_LIFE
from pipeline.methods.noisy_mle import near
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.estimate import LONGEST_STEP
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.study.reference import evenness, kept_moments, moments, rarer_share
from pipeline.types import Matrix, Vector

#: At the reference, logistic losses bend at least this share of what they do at 0.
BEND = 0.55
#: Windows of every site before models are near, of even classes: at 0 and at a first model. Then as
#: many near the estimate as it takes at least: one, and one more, which a tenth to four fifths of
#: the streams of steep slopes and rare levels need (benchmarks.sites_coverage).
FIRST, LATER = 2, 2
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
#: So many logits from that of the rarer class, a model is as near as a first one of even classes.
FIRST_NEAR = 0.25


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


def bend_of(task: SiteTask | CopiesTask) -> float:
    """Return the guess of a record's mean curvature at the reference, over that at 0."""
    # the mean of p (1 - p) is at most that of the mean
    return min(BEND, evenness(task.study)) if task.loss.name == "logistic" else 1.0


def first_windows(task: SiteTask) -> int:
    """Return how many windows of every site are usually taken before models are near."""
    # of even classes the first model is one step off, since slopes are
    return FIRST + (max(_steps(task) - 1, 0) if task.classes else 0)


def near_windows(task: SiteTask) -> int:
    """Return how many windows of every site it takes until scores are usually near."""
    first, later, moved = first_windows(task), LATER, _moved(task)
    while moved * _scatter(task, first, later) > CLEAR and later < MOST_WINDOWS:
        later = math.ceil(1.05 * later)
    return first + later


def _steps(task: SiteTask) -> int:
    """Return after how many of Newton's steps an intercept is near that of the rarer class."""
    share, most = rarer_share(task.study), LONGEST_STEP / task.norm_bound
    goal, at, steps = math.log(share / (1 - share)), 0.0, 0
    while at - goal > FIRST_NEAR:
        here = 1 / (1 + math.exp(-at))
        at -= min((here - share) / (here * (1 - here)), most)
        steps += 1
    return steps


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
    moved = near.of_each(half * square, half * longest * math.sqrt(square), scale, bread)
    return float((moved / deviations).max()) / near.NEAR


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


def planned_curvature(task: SiteTask) -> Matrix:
    """Return the mean curvature of a record at the reference, shape (d, d)."""
    bend = bend_of(task) * task.loss.start_curvature
    return bend * kept_moments(task.encoding, task.norm_bound)


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
