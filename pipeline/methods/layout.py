"""The only form in which a vector of a release may come."""

from __future__ import annotations

from pipeline.errors import PayloadError
from pipeline.messages.release import Numbers


class Layout:
    """A vector's name, type, length and units.

    Parameters
    ----------
    name
        For messages.
    dtype
        "<i8" or "<f8".
    length
        How many numbers it has.
    exponents
        The units of its parts: powers of two.
    """

    __slots__ = ("_bytes", "_dtype", "_exponents", "_length", "_name")

    def __init__(self, name: str, dtype: str, length: int, exponents: tuple[int, ...]) -> None:
        self._name, self._dtype, self._length, self._exponents = name, dtype, length, exponents
        self._bytes = 8 * length

    def check(self, numbers: Numbers) -> None:
        """Refuse any other form; PayloadError, naming the vector and its form."""
        if (
            numbers.length != self._length
            or len(numbers.data) != self._bytes
            or numbers.dtype != self._dtype
        ):
            raise PayloadError(
                "wrong-shape", f"{self._name} must be {self._length} numbers of type {self._dtype}"
            )
        if numbers.exponents != self._exponents:
            raise PayloadError(
                "wrong-unit", f"{self._name} must be in units of 2 to the {self._exponents}"
            )
