"""Floating-point noise from a seeded generator: for simulations, and without any protection.

Whoever knows the seed can subtract the noise, and floating-point samples give away low bits of
what they are added to (Mironov 2012). The policy of such a study says so in every release and
every estimate.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers


class SeededStream(SecureStream):
    """A reproducible generator; it serves simulations alone.

    seed: >= 0, from the study file.
    client, seq: The release: each has noise of its own, and the same one in every run.
    """

    def __init__(self, seed: int, client: str, seq: int) -> None:
        super().__init__()
        self.normals = np.random.default_rng([seed, zlib.crc32(client.encode()), seq])


def seeded(stream: SecureStream) -> np.random.Generator:
    """Return the generator of a simulation.

    Raises PrivacyError if the stream is the cryptographic one: simulated noise must not look like
    real noise.
    """
    if not isinstance(stream, SeededStream):
        raise PrivacyError("insecure-simulation draws from a seeded generator only")
    return stream.normals


@dataclass(frozen=True, slots=True)
class SimulatedGaussian:
    """Rounded normal numbers of standard deviation `sigma`, in lattice units."""

    sigma: float

    @property
    def standard_deviation(self) -> float:
        """Standard deviation, in lattice units."""
        return self.sigma

    @property
    def reach(self) -> float:
        """What a draw practically never passes, in lattice units."""
        return 16 * self.sigma

    def scaled(self, factor: float) -> SimulatedGaussian:
        """Return the same noise with another scale."""
        return SimulatedGaussian(factor * self.sigma)

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return `count` draws, int64 of shape (count,); PrivacyError as `seeded`."""
        return np.rint(seeded(stream).normal(0.0, self.sigma, count)).astype(np.int64)
