"""The ridge of a study of copies, which is part of what is estimated: coefficients drawn to 0.

(J + R) theta = J theta_0, where theta_0 is what the sites say without it and J the mean information
of a record. J is that of the scatters: the posterior informations of INFEMBLER are drawn to what
all sites have in common, and so a ridge beside them would draw further than in a fit of all
records wherever sites differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.linalg import floor_eigenvalues
from pipeline.methods.noisy_mle.copies_near import Fit
from pipeline.methods.noisy_mle.copies_sent import Sent
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.types import Matrix, Vector

#: Scatters of so many degrees of freedom for each dimension and two more show an information.
DEGREES = 2


@dataclass(frozen=True, slots=True)
class Penalised:
    """The penalised coefficients, shape (d,).

    turn: What they are times those without the ridge, shape (d, d).
    unsure: What the noise of the scatters adds to their covariance by J, shape (d, d).
    """

    coefficients: Vector
    turn: Matrix
    unsure: Matrix

    def covariance(self, of: Matrix) -> Matrix:
        """Return their covariance from that of those without the ridge, shapes (d, d)."""
        turned: Matrix = self.turn @ of @ self.turn.T + self.unsure
        return turned


def penalised(task: CopiesTask, sent: Sent, fit: Fit) -> Penalised:
    """Return the coefficients of a fit with the study's ridge."""
    size, theta, copies = task.size, fit.found.theta, sent.copies
    if not np.any(task.penalty):
        return Penalised(theta, np.eye(size), np.zeros((size, size)))
    # of windows of unequal weights together
    degrees = copies.degrees * sent.windows / sent.squared
    known = (fit.weights > 0) & (degrees > DEGREES * (size + 2))
    information, meat = fit.found.information, np.zeros((size, size))
    if known.any():
        mass, degrees = fit.weights[known], degrees[known]
        mass /= float(mass @ copies.records[known])
        # the inverse of a Wishart matrix is too large by this on average
        exact = 1 - (size + 1) / degrees
        full = exact[:, None, None] * np.linalg.inv(copies.inverses[known])
        information = np.einsum("m,mij->ij", mass, full) - copies.ridge * np.eye(size)
    rows = floor_eigenvalues(information, 0.0).matrix
    inverse = np.linalg.pinv(rows + np.diag(task.penalty) / task.deviation**2, hermitian=True)
    turn = inverse @ rows
    way = theta - turn @ theta
    if known.any():
        # as Wishart matrices vary
        turned = full @ way
        varied = (turned @ way)[:, None, None] * full + turned[:, :, None] * turned[:, None, :]
        meat = np.einsum("m,mij->ij", mass**2 / degrees, varied)
    return Penalised(turn @ theta, turn, inverse @ meat @ inverse)
