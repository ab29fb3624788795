"""Symmetric packing, the eigenvalue floor and guarded solves."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pipeline.errors import NumericError
from pipeline.types import Matrix, Vector

Entry = TypeVar("Entry", bound=np.generic)


@lru_cache(maxsize=64)
def upper_indices(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row and column indices of the upper triangle, row by row; length size (size + 1) / 2."""
    return np.triu_indices(size)


def pack_upper(matrix: NDArray[Entry]) -> NDArray[Entry]:
    """Return the upper triangle of a symmetric (d, d) matrix as a vector, row by row."""
    return matrix[upper_indices(matrix.shape[0])]


def unpack_upper(packed: NDArray[Entry], size: int) -> NDArray[Entry]:
    """Rebuild the symmetric (size, size) matrix that `pack_upper` flattened."""
    matrix = np.empty((size, size), dtype=packed.dtype)
    rows, columns = upper_indices(size)
    matrix[rows, columns] = packed
    matrix[columns, rows] = packed
    return matrix


@lru_cache(maxsize=64)
def upper_is_diagonal(size: int) -> NDArray[np.bool_]:
    """Which entries of the packed upper triangle stand on the diagonal."""
    rows, columns = upper_indices(size)
    diagonal: NDArray[np.bool_] = rows == columns
    return diagonal


def floor_eigenvalues(matrix: Matrix, minimum: float) -> tuple[Matrix, int]:
    """Raise the eigenvalues of a symmetric matrix to at least `minimum`.

    Returns
    -------
    tuple
        The repaired matrix and how many eigenvalues were raised.
    """
    values, vectors = np.linalg.eigh(matrix)
    raised = int(np.count_nonzero(values < minimum))
    if raised == 0:
        return matrix, 0
    repaired = (vectors * np.maximum(values, minimum)) @ vectors.T
    return (repaired + repaired.T) / 2, raised


def solve_positive(matrix: Matrix, right: Matrix | Vector) -> Matrix:
    """Solve with a symmetric positive definite matrix.

    Raises
    ------
    NumericError
        If the matrix is not positive definite to working precision.
    """
    try:
        factor = cho_factor(matrix, lower=True, check_finite=True)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise NumericError(
            "the curvature is not positive definite: more records, a larger ridge or fewer "
            "collinear features are needed"
        ) from error
    solution: Matrix = cho_solve(factor, right)
    return solution


def is_singular(matrix: Matrix) -> bool:
    """Whether a symmetric positive matrix is singular to rounding, whatever units its columns have.

    A Cholesky factor of such a matrix may exist by luck of rounding, and what it solves is noise.
    """
    root = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    scaled = matrix / root[:, None] / root
    if not np.all(np.isfinite(scaled)):
        return True
    return bool(np.linalg.eigvalsh(scaled)[0] < 64 * len(matrix) * np.finfo(float).eps)


def sandwich(bread: Matrix, meat: Matrix) -> Matrix:
    """Return bread^-1 meat bread^-1 for a symmetric positive definite bread; shape (d, d)."""
    half = solve_positive(bread, meat)
    covariance = solve_positive(bread, half.T)
    return (covariance + covariance.T) / 2
