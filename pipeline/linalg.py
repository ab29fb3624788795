"""Symmetric packing, the eigenvalue floor and guarded solves."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import NumericError
from pipeline.types import Matrix, Vector

Entry = TypeVar("Entry", bound=np.generic)


@lru_cache(maxsize=64)
def upper_indices(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row and column indices of the upper triangle, row by row; length size (size + 1) / 2."""
    return np.triu_indices(size)


@lru_cache(maxsize=64)
def _upper_indices(size: int) -> NDArray[np.intp]:
    """Return the indices of the upper triangle in the flattened matrix."""
    rows, columns = upper_indices(size)
    return rows * size + columns


def pack_upper(matrix: NDArray[Entry]) -> NDArray[Entry]:
    """Return the upper triangle of a symmetric (d, d) matrix as a vector, row by row."""
    return matrix.ravel().take(_upper_indices(matrix.shape[0]))


def unpack_upper(packed: NDArray[Entry], size: int) -> NDArray[Entry]:
    """Rebuild the symmetric (size, size) matrix that `pack_upper` flattened."""
    return packed.take(packed_indices(size))


@lru_cache(maxsize=64)
def packed_indices(size: int) -> NDArray[np.intp]:
    """Return for each entry of a symmetric matrix its index in the packed upper triangle."""
    rows, columns = upper_indices(size)
    indices = np.empty((size, size), dtype=np.intp)
    indices[rows, columns] = indices[columns, rows] = np.arange(len(rows))
    return indices


@lru_cache(maxsize=64)
def upper_is_diagonal(size: int) -> NDArray[np.bool_]:
    """Which entries of the packed upper triangle stand on the diagonal."""
    rows, columns = upper_indices(size)
    diagonal: NDArray[np.bool_] = rows == columns
    return diagonal


def condition_number(matrix: Matrix, eigenvalues: Vector | None = None) -> float:
    """Return the largest over the least absolute eigenvalue of a symmetric matrix; may be inf.

    eigenvalues: Those of the matrix, if they are known already.
    """
    sizes = np.abs(np.linalg.eigvalsh(matrix) if eigenvalues is None else eigenvalues)
    least = float(sizes.min())
    return float(sizes.max()) / least if least > 0 else math.inf


class Floored(NamedTuple):
    """A symmetric matrix with no eigenvalue below a minimum.

    matrix: Shape (d, d).
    raised: How many eigenvalues had to be raised.
    eigenvalues: Those of `matrix`, shape (d,), if it took them to make it.
    """

    matrix: Matrix
    raised: int
    eigenvalues: Vector | None


def floor_eigenvalues(matrix: Matrix, minimum: float) -> Floored:
    """Raise the eigenvalues of a symmetric matrix to at least `minimum`."""
    if _all_above(matrix, minimum):
        return Floored(matrix, 0, None)
    values, vectors = np.linalg.eigh(matrix)
    raised = int(np.count_nonzero(values < minimum))
    if raised == 0:
        return Floored(matrix, 0, values)
    values = np.maximum(values, minimum)
    repaired = (vectors * values) @ vectors.T
    return Floored((repaired + repaired.T) / 2, raised, values)


def _all_above(matrix: Matrix, minimum: float) -> bool:
    """Whether all eigenvalues are above a minimum; a Cholesky factor says so quickest."""
    try:
        np.linalg.cholesky(matrix - minimum * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True


def sandwiches(bread: Matrix, *meats: Matrix) -> list[Matrix]:
    """Return `sandwich` of one bread with several meats, for the price of one inverse.

    NumericError as `solve_positive`.
    """
    inverse: Matrix = scipy.linalg.cho_solve(_factor(bread), np.eye(len(bread)))
    found = [inverse @ meat @ inverse.T for meat in meats]
    return [(covariance + covariance.T) / 2 for covariance in found]


def solve_positive(matrix: Matrix, right: Matrix | Vector) -> Matrix:
    """Solve with a symmetric positive definite matrix.

    NumericError if the matrix is not positive definite to working precision.
    """
    solution: Matrix = scipy.linalg.cho_solve(_factor(matrix), right)
    return solution


def sandwich(bread: Matrix, meat: Matrix) -> Matrix:
    """Return bread^-1 meat bread^-1 for a symmetric positive definite bread; shape (d, d).

    NumericError as `solve_positive`.
    """
    [covariance] = sandwiches(bread, meat)
    return covariance


def _factor(matrix: Matrix) -> tuple[Matrix, bool]:
    try:
        factor: tuple[Matrix, bool] = scipy.linalg.cho_factor(matrix, lower=True, check_finite=True)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise NumericError(
            "the curvature is not positive definite: more records, a larger ridge or fewer "
            "collinear features are needed"
        ) from error
    return factor


def is_singular(matrix: Matrix) -> bool:
    """Whether a symmetric positive matrix is singular to rounding, whatever units its columns have.

    A Cholesky factor of such a matrix may exist by luck of rounding, and what it solves is noise.
    """
    diagonal = np.diag(matrix)
    if np.any(diagonal < 0):
        # of sums that no honest client can have sent
        return True
    root = np.sqrt(np.maximum(diagonal, np.finfo(float).tiny))
    scaled = matrix / root[:, None] / root
    if not np.all(np.isfinite(scaled)):
        return True
    return not _all_above(scaled, 64 * len(matrix) * float(np.finfo(float).eps))
