"""The best attack on noisy copies of a fit: the ratio of the two laws of mean and scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

from pipeline.linalg import packed_indices
from pipeline.methods import revision_of
from pipeline.methods.noisy_copies import accounting as copies_module
from pipeline.methods.noisy_copies.accounting import Change
from pipeline.methods.noisy_copies.client import CopiedPart, CopiesTask, Law
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.privatise import privatise
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.attacks.bounds import Scores, epsilon_bound, strongest
from tests.attacks.windows import Finding, Streams
from tests.sites import study_text

EPSILON, DELTA = 4.0, 1e-5


def task_of(loss: str, neighbours: str = "zero-out") -> CopiesTask:
    """Return a task whose bounds one record can nearly reach."""
    method = "copies = 40"
    if loss == "linear":
        method += ", coefficient_bound = 0.2"
    text = study_text(
        method, kind="noisy-copies", p=1, records=2, loss=loss, epsilon=EPSILON, delta=DELTA,
        neighbours=neighbours, noise_scale=0.5 if loss == "linear" else None,
    )  # fmt: skip
    study = parse_study(text)
    return CopiesTask(study, revision_of(study))


def windows_of(neighbours: str) -> tuple[Arrays, Arrays]:
    """Return two neighbouring windows: with a record at the corner, and without it or turned."""
    one = Arrays(np.ones((1, 1)), np.ones(1))
    if neighbours == "zero-out":
        return one, Arrays(np.zeros((0, 1)), np.zeros(0))
    return one, Arrays(np.ones((1, 1)), -np.ones(1))


def law_of(task: CopiesTask, window: Arrays) -> Law:
    """Return the law of the copies of a window."""
    part = task.query(window, task.first_model).parts["mean"]
    assert isinstance(part, CopiedPart)
    return part.law


def drawn(
    task: CopiesTask, window: Arrays, draws: int, stream: SecureStream
) -> tuple[Matrix, Matrix]:
    """Release a window so many times: means (draws, d) and scatters (draws, d, d)."""
    query, fields = task.query(window, task.first_model), task.layout.later
    parts = [privatise(task, query, stream).parts for _ in range(draws)]
    mean, packed = (
        np.ldexp(np.array([one[field.name] for one in parts], dtype=float), field.exponent)
        for field in fields
    )
    return mean, packed[:, packed_indices(task.size)]


def log_density(law: Law, means: Matrix, scatters: Matrix) -> Vector:
    """Return the logarithm of the density of mean and scatter, up to what all laws share."""
    precision = law.information / law.scale
    away = means - law.theta
    squares = law.copies * np.einsum("ni,ij,nj->n", away, precision, away)
    spread = np.einsum("ij,nij->n", precision, scatters)
    found: Vector = (law.copies * np.linalg.slogdet(precision)[1] - squares - spread) / 2
    return found


def measure_copies(
    loss: str, draws: int, streams: Streams, *, neighbours: str = "zero-out"
) -> Finding:
    """Draw the copies of both neighbours, and bound what tells them apart."""
    task = task_of(loss, neighbours)
    windows = windows_of(neighbours)
    laws = [law_of(task, window) for window in windows]
    seen = []
    for side, window in enumerate(windows):
        means, scatters = drawn(task, window, draws, streams(side))
        seen.append(log_density(laws[0], means, scatters) - log_density(laws[1], means, scatters))
    found = strongest([Scores(*seen)], epsilon_bound(DELTA))
    return Finding(found, found)


@contextmanager
def _scale_of_the_mean() -> Iterator[None]:
    """Give one copy the noise that the mean of all should have."""
    original = CopiesTask.query

    def thin(self: CopiesTask, window: Arrays, model: object) -> object:
        asked = original(self, window, model)  # type: ignore[arg-type]
        parts = {
            name: replace(part, law=replace(part.law, scale=part.law.scale / self.copies))  # type: ignore[type-var, attr-defined]
            for name, part in asked.parts.items()
        }
        return replace(asked, parts=parts)

    with mock.patch.object(CopiesTask, "query", thin):
        yield


def _no_coefficients() -> AbstractContextManager[object]:
    """Take how far one record moves a fit for a sixteenth of it."""
    original = copies_module.of_linear

    def small(norm: float, residual: float, ridge: float, deviation: float = 1.0) -> Change:
        return replace(original(norm, residual, ridge, deviation), shift=original(
            norm, residual, ridge, deviation).shift / 16)  # fmt: skip

    return mock.patch.object(copies_module, "of_linear", small)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that copies could have."""

    name: str
    plant: Callable[[], AbstractContextManager[object]]
    loss: str


FAULTS = (
    Fault("copies with the noise of their mean", _scale_of_the_mean, "linear"),
    Fault("copies whose shift is taken for a sixteenth", _no_coefficients, "linear"),
)
