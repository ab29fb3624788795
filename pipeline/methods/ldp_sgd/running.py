"""The running sums along some releases, whole batches at once.

Every operation is elementwise, strictly sequential, or a sum within one release, so that the bits
do not depend on how many releases come at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.types import Integers, Matrix, Vector


def sums_along(
    held: Sums,
    gradients: NDArray[np.float64],
    by_entry: Matrix,
    points: Matrix,
    path: Matrix,
    steps: Vector,
    late: Integers,
    extra: Matrix,
) -> Sums:
    """Return the sums after the last release.

    held: The sums before the first one.
    gradients, by_entry: Shape (releases, k, d), and the same as (d, releases k).
    points: Where each release was linearised, shape (releases, d).
    path: theta - m after each record, shape (d, releases k).
    steps: Shape (releases k,).
    late: How many records late the models of the releases so far were, shape (releases,).
    extra: What came beside the gradients, shape (releases, m).
    """
    releases, block, size = gradients.shape
    c = accumulated(held.c, path)
    index = np.arange(held.records + 1, held.records + releases * block + 1, dtype=np.float64)

    cubes = c.reshape(size, releases, block)
    g = by_entry.reshape(size, releases, block).sum(axis=2)
    a = (
        np.matmul(cubes.transpose(1, 0, 2), cubes.transpose(1, 2, 0)).transpose(1, 2, 0)
        if held.a.ndim == 2
        else np.vecdot(cubes, cubes)
    )
    products = np.matmul(gradients.transpose(0, 2, 1), gradients)
    u = points.T
    running = {
        "s": accumulated(held.s, cubes.sum(axis=2)),
        "b": accumulated(held.b, np.vecdot(cubes, index.reshape(releases, block))),
        "a": accumulated(held.a, a),
        "g": accumulated(held.g, g.copy()),
        "u": accumulated(held.u, block * u),
        "gu": accumulated(held.gu, g[:, None, :] * u[None, :, :]),
        "uu": accumulated(held.uu, block * u[:, None, :] * u[None, :, :]),
        "gg": accumulated(held.gg, products.transpose(1, 2, 0)),
        "extra": accumulated(held.extra, extra.T.copy()),
    }
    moved = accumulated(np.array(held.moved), steps.reshape(releases, block).sum(axis=1))

    return Sums(
        records=held.records + releases * block,
        behind=held.behind + int(late[-1]),
        moved=float(moved[-1]),
        c=c[:, -1].copy(),
        **{name: sums[..., -1].copy() for name, sums in running.items()},
    )


def accumulated(first: NDArray[np.float64], items: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn items, which nobody else holds, into first plus the items so far.

    They are added strictly one by one along the last axis, in place: copies cost as much as sums.
    """
    items[..., 0] += first
    return np.add.accumulate(items, axis=-1, out=items)


def scaled(matrix: Matrix, by_entry: Matrix) -> Matrix:
    """Return matrix times each column of (d, n), entry by entry: a fast product has other bits."""
    found: Matrix = matrix[:, :1] * by_entry[0]
    for column in range(1, len(by_entry)):
        found += matrix[:, column : column + 1] * by_entry[column]
    return found
