"""Many paths of locally private gradient descent side by side, from records drawn for them.

Steps are eta0 i^-alpha from zero. Noise is Gaussian of a seeded generator, which protects nobody.
Source: ldp-sgd, path; late points are this project's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.ldp_sgd_models import LINEAR, SIZE, Array, Model, weights_of
from pipeline.methods.ldp_sgd.step_rule import StepRule

#: Most records of all replications that are drawn at once.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Setting:
    """One path: its privacy, its steps, and how late its points are.

    Attributes
    ----------
    mu
        Of one gradient; infinite for none.
    behind, block
        D and k: record i uses the iterate after max(k floor((i - 1) / k) - D, 0) records.
    cap
        Largest step.
    """

    mu: float
    eta0: float = 1.0
    alpha: float = 0.501
    burn_in: int = 1000
    behind: int = 0
    block: int = 1
    cap: float = math.inf
    model: Model = LINEAR

    @property
    def noise(self) -> float:
        """Standard deviation of the noise of one gradient entry."""
        return 2 * self.model.slope / self.mu

    @property
    def steps(self) -> StepRule:
        """The rule of its steps."""
        return StepRule(self.eta0, self.alpha, self.cap)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of all replications: arrays (records, replications, d), `loss` without d.

    `loss` holds the slopes and curvatures of the records, and their weights.
    """

    gradients: Array
    points: Array
    path: Array
    rows: Array
    loss: tuple[Array, Array, Array]


class Walk:
    """All replications of a setting, moved over one chunk of records after the other."""

    def __init__(self, setting: Setting, count: int, seed: int, chunk: int) -> None:
        self.setting, self.records = setting, 0
        self._count, self._chunk, self._rng = count, chunk, np.random.default_rng(seed)
        # the newest iterates, that after j records at j modulo the length
        self._ring = np.zeros((setting.behind + setting.block + 1, count, SIZE))

    def advance(self) -> Chunk:
        """Move over one chunk."""
        setting, model, ring = self.setting, self.setting.model, self._ring
        x, y = model.draw(self._rng, (self._chunk, self._count))
        weights = weights_of(x)
        weighted = x * weights[:, :, None]
        noise = np.zeros_like(x)
        if math.isfinite(setting.mu):
            noise = self._rng.normal(0, setting.noise, x.shape)
        points, path = np.empty_like(x), np.empty_like(x)
        length, block, behind, slope = len(ring), setting.block, setting.behind, model.loss.slope
        steps = setting.steps.steps(self.records + 1, self._chunk)
        theta = ring[self.records % length].copy()
        for t in range(self._chunk):
            i = self.records + t
            points[t] = ring[max(block * (i // block) - behind, 0) % length]
            noise[t] += weighted[t] * slope(np.vecdot(x[t], points[t]), y[t])[:, None]
            theta = theta - steps[t] * noise[t]
            ring[(i + 1) % length] = path[t] = theta
        self.records += self._chunk
        predictor = np.vecdot(x, points)
        loss = slope(predictor, y), model.loss.curvature(predictor, y), weights
        return Chunk(noise, points, path, x, loss)

    def move_to(self, theta: Array) -> None:
        """Go on from other iterates, shape (replications, d)."""
        self._ring[self.records % len(self._ring)] = theta
