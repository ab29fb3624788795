"""Many streams of locally private gradient descent side by side, for their plug-in intervals.

As `GradientStream` draws and folds them, a window of every stream at a time: one stream alone has
its numbers, up to rounding. What the interval of a released curvature does not read is left at
zero. Every window is followed by a model, so that only the iterate behind it counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.sgd_designs import Design
from pipeline.estimators.estimate import Estimate
from pipeline.linalg import unpack_upper
from pipeline.methods.ldp_sgd.estimate import estimate_sgd
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.state import SgdState
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.records.blocks import with_intercept
from pipeline.release.model import as_floats, on_lattice
from pipeline.types import Matrix


class Streams:
    """Streams of one design, each with a path of its own.

    records: That have come in each of them.
    """

    def __init__(self, design: Design, streams: int, rng: np.random.Generator) -> None:
        self._design, self._task, self._rng = design, design.task, rng
        self._rule, size = rule_of(self._task), self._task.size
        self._upper = np.triu_indices(size)
        first = SgdPath(self._rule)
        assert self._rule.scaling is not None
        assert first.matrix is not None
        self.records = 0
        self._theta = np.tile(first.theta, (streams, 1))
        self._model = np.tile(self._task.first_model.coefficients, (streams, 1))
        self._matrices = np.tile(first.matrix, (streams, 1, 1))
        self._caps = np.full(streams, first.steps.cap)
        self._counted, self._marked = 0, 0
        self._sums = {
            name: np.zeros((streams, *getattr(first.sums, name).shape))
            for name in ("g", "u", "gu", "uu", "gg", "extra")
        }
        self._marks = [(0, {name: one.copy() for name, one in self._sums.items()})]

    def fold(self) -> None:
        """Move along the gradients of one window of every stream, and publish the models."""
        task, count = self._task, len(self._theta)
        block = task.slots
        features, responses = self._design.row.records(self._rng, count * block, self._design.truth)
        design = with_intercept(features)
        predictor = np.einsum("ij,ij->i", design, np.repeat(self._model, block, axis=0))
        weights = task.record_weights(design)
        slope, curved = (
            weights * of(predictor, responses) for of in (task.loss.slope, task.loss.curvature)
        )
        rows = design.reshape(count, block, task.size)
        weighted = rows * curved.reshape(count, block, 1)
        extra = np.matmul(weighted.transpose(0, 2, 1), rows)[:, *self._upper]
        held, noise = task.channels.curvature, task.record_noise
        assert held is not None
        deviations = np.where(
            self._upper[0] == self._upper[1],
            held.standard_deviation, held.off_diagonal().standard_deviation,
        )  # fmt: skip
        extra += deviations * self._rng.standard_normal(extra.shape)
        gradients = rows * slope.reshape(count, block, 1)
        gradients += noise * self._rng.standard_normal(gradients.shape)
        self._add(gradients, extra)

    def _add(self, gradients: np.ndarray, extra: Matrix) -> None:
        """Add a window: gradients of shape (streams, k, d), matrices of shape (streams, m)."""
        block = gradients.shape[1]
        if self.records >= self._rule.burn_in:
            g, u = gradients.sum(axis=1), self._model
            for name, item in (
                ("g", g), ("u", block * u), ("gu", g[:, :, None] * u[:, None, :]),
                ("uu", block * u[:, :, None] * u[:, None, :]),
                ("gg", np.matmul(gradients.transpose(0, 2, 1), gradients)), ("extra", extra),
            ):  # fmt: skip
                self._sums[name] += item
            self._counted += block
        index = np.arange(self.records + 1, self.records + block + 1, dtype=np.float64)
        free = self._rule.steps.eta0 * index**-self._rule.steps.alpha
        steps = np.minimum(free, self._caps[:, None])
        moved = np.einsum("sk,skd->sd", steps, gradients)
        self._theta = self._theta - np.einsum("sij,sj->si", self._matrices, moved)
        assert np.abs(self._theta).max() <= LARGEST, "a path has left its range"
        self.records += block
        self._model = as_floats(on_lattice(self._theta))
        unit = self._rule.unit
        if self._counted >= unit * ((1 << (self._marked // unit + 1).bit_length()) - 1):
            self._mark()

    def _mark(self) -> None:
        """Keep a copy of the sums, and make the matrices anew from the released curvatures."""
        self._marked, scaling = self._counted, self._rule.scaling
        assert scaling is not None
        self._marks.append((self._counted, {name: one.copy() for name, one in self._sums.items()}))
        for i, packed in enumerate(self._sums["extra"] / self._counted):
            found = scaling.matrix(unpack_upper(packed, self._task.size), self._counted)
            self._matrices[i] = found
            self._caps[i] = min(self._rule.steps.cap, scaling.cloud / float(np.trace(found)))

    def estimate(self, number: int) -> Estimate:
        """Return the estimate of one stream so far."""
        state = SgdState(self._rule)
        path, empty = state.path, state.path.sums
        path.records, path.releases = self.records, self.records // self._task.slots
        path.theta = self._theta[number]
        path.sums, *path.marks = (
            replace(empty, records=records, **{name: one[number] for name, one in sums.items()})
            for records, sums in [(self._counted, self._sums), *self._marks[-4:]]
        )
        return estimate_sgd(self._task, state)
