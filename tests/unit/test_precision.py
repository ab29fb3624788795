"""What public numbers say of the noise, against drawn noise."""

import math

import numpy as np
import pytest

from pipeline.errors import PrivacyError
from pipeline.linalg import upper_indices
from pipeline.methods.renewable.precision import RELEASES_PER_COEFFICIENT, noise_of
from tests.builders import task_of

TASK = task_of(p=9, epsilon=1.0, records=250, norm_bound=2.0, maximum=8.0)
NOISE = noise_of(TASK)


def drawn(rng: np.random.Generator, releases: int) -> np.ndarray:
    """Return the noise of a mean curvature, as the study's channels make it."""
    rows, columns = upper_indices(TASK.size)
    channels = TASK.update_channels
    assert channels.curvature is not None
    assert channels.off_diagonal is not None
    deviations = np.where(
        rows == columns,
        channels.curvature.standard_deviation,
        channels.off_diagonal.standard_deviation,
    )
    matrix = np.zeros((TASK.size, TASK.size))
    entries = rng.normal(size=len(rows)) * deviations / math.sqrt(releases) / TASK.slots
    matrix[rows, columns] = matrix[columns, rows] = entries
    return matrix


def test_the_spectral_size_stands_between_the_mean_and_the_largest_eigenvalue() -> None:
    rng, s = np.random.default_rng(1), NOISE.of_curvature(100)
    values = np.array([np.linalg.eigvalsh(drawn(rng, 100)) for _ in range(200)])
    size = TASK.size
    assert np.sqrt(np.mean(values**2)) == pytest.approx(
        s * math.sqrt((size + 1) / (2 * size)), rel=0.05
    )
    assert s < np.mean(values[:, -1]) < math.sqrt(2) * s


def test_a_ridge_is_certain_as_soon_as_enough_releases_have_come() -> None:
    ridge = 0.02
    needed = NOISE.releases_until(ridge)
    assert needed > RELEASES_PER_COEFFICIENT * TASK.size
    assert NOISE.certain_ridge(needed) == pytest.approx(ridge)
    assert NOISE.certain_ridge(4 * needed) == pytest.approx(ridge / 2)
    assert NOISE.releases_until(1e3) == pytest.approx(RELEASES_PER_COEFFICIENT * TASK.size / 0.75)
    assert NOISE.releases_until(0.0) == math.inf


def test_no_curvature_makes_a_slope_less_precise_than_the_bound() -> None:
    rng, ridge, bound = np.random.default_rng(2), 0.05, TASK.norm_bound
    most = NOISE.slope_error(100, ridge, bound) / NOISE.of_gradient(75)
    seen = 0.0
    for _ in range(300):
        rows = rng.normal(size=(int(rng.integers(1, 12)), TASK.size - 1)) * 10 ** rng.uniform(-2, 1)
        rows = rows * np.minimum(1, math.sqrt(bound**2 - 1) / np.linalg.norm(rows, axis=1))[:, None]
        design = np.column_stack([np.ones(len(rows)), rows])
        bread = design.T @ design / len(rows) + ridge * np.diag([0.0] + [1.0] * (TASK.size - 1))
        lengths = np.linalg.norm(np.linalg.inv(bread), axis=1)[1:]
        seen = max(seen, lengths.max() / most)
    assert 0.8 < seen <= 1.0


def test_a_study_without_noise_has_no_size_of_it() -> None:
    with pytest.raises(PrivacyError):
        noise_of(task_of(private=False))
