"""Random words: of the operating system, and for simulations from a seed.

Floating-point noise from a seed protects nobody: whoever knows the seed can subtract it, and
floating-point samples give away low bits of what they are added to (Mironov 2012). The policy of
such a study says so in every release and every estimate.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from pipeline.errors import PrivacyError
from pipeline.types import Integers

_BLOCK = 1 << 17
_ZEROS = memoryview(bytes(_BLOCK))
#: `update_into` asks for this much room behind its output.
_ROOM = 16
#: Numbers that are made at once for small requests.
_STOCK = 512


_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  a count of this process's own descent
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _process() -> tuple[int, int]:
    """Return what tells this process from its ancestors, even where an id is used again."""
    return os.getpid(), _forks


class SecureStream:
    """AES-256 in counter mode, keyed by the operating system.

    A stream belongs to the process that made it. A child that inherits one by fork draws a key of
    its own before its first number: two processes never see the same noise.
    """

    _stock: NDArray[np.uint64]
    _taken: int
    _process: tuple[int, int]

    def __init__(self) -> None:
        self._rekey()

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """Return `count` independent uniform 64-bit integers."""
        if self._process != _process():
            self._rekey()
        if count > _STOCK:
            return self._key_stream(count)
        if self._taken + count > len(self._stock):
            self._stock, self._taken = self._key_stream(_STOCK), 0
        self._taken += count
        return self._stock[self._taken - count : self._taken]

    def _rekey(self) -> None:
        cipher = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._encryptor = cipher.encryptor()
        self._process = _process()
        # small requests are served from a stock; a child must not share its parent's
        self._stock = np.empty(0, dtype="<u8")
        self._taken = 0

    def _key_stream(self, count: int) -> NDArray[np.uint64]:
        size = 8 * count
        key_stream = np.empty(size + _ROOM, dtype=np.uint8)
        room = memoryview(key_stream.data)
        for start in range(0, size, _BLOCK):
            self._encryptor.update_into(_ZEROS[: size - start], room[start:])
        return key_stream[:size].view("<u8")


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
