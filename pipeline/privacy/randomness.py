"""The cryptographic generator that all noise comes from."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray


class SecureStream:
    """AES-256 in counter mode, keyed by the operating system.

    A stream belongs to the process that made it. A child that inherits one by fork draws a key of
    its own before its first number: two processes never see the same noise.
    """

    def __init__(self) -> None:
        self._rekey()

    def _rekey(self) -> None:
        cipher = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._encryptor = cipher.encryptor()
        self._process = os.getpid()

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """Return `count` independent uniform 64-bit integers."""
        if os.getpid() != self._process:
            self._rekey()
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8")
