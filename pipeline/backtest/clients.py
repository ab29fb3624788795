"""Whose record it is: a column of the history, or a named rule that deals records to clients."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError
from pipeline.records.encoder import Batch, Encoded
from pipeline.study.model import Study
from pipeline.types import Integers

#: A client id is a Kafka key and a name in every release.
LONGEST_NAME = 200
#: Slices of the public range that stand for the classes of a number or a count.
SLICES = 10
#: Stands for the client of a slot that holds no record.
_LOST = object()
RULES = "round-robin, blocks:N, range:FEATURE or dirichlet:ALPHA"


class Clients(ABC):
    """Deals records to clients.

    names: The clients by number, in the order in which they were first seen.
    columns: Columns that it reads beside the study's.
    """

    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.names: list[str] = []

    @abstractmethod
    def of(self, batch: Batch, encoded: Encoded) -> Integers:
        """Return the numbers of the clients of the next records, shape (n,)."""


class ByColumn(Clients):
    """A column names the client; a slot without a record belongs to the client before it."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self._column, self.columns = column, (column,)
        self._numbers: dict[str, int] = {}
        self._last: int | None = None

    def of(self, batch: Batch, encoded: Encoded) -> Integers:
        """As `Clients.of`; DataError if a name is too long."""
        values = batch.columns[self._column].tolist()
        if batch.lost.any():
            values = [
                _LOST if lost else value for value, lost in zip(values, batch.lost, strict=True)
            ]
        try:
            numbers = {value: self._number(value) for value in dict.fromkeys(values)}
            found = [numbers[value] for value in values]
        except TypeError:  # a list or an object of JSON is no key
            found = [self._number(value) for value in values]
        codes = np.array(found, dtype=np.int64)
        if batch.lost.any():
            codes = self._filled(codes)
        self._last = int(codes[-1]) if len(codes) else self._last
        return codes

    def _filled(self, codes: Integers) -> Integers:
        """Give each slot without a record to the client before it."""
        if codes[0] < 0:
            codes[0] = self._named("client") if self._last is None else self._last
        named_at = np.where(codes >= 0, np.arange(len(codes)), 0)
        filled: Integers = codes[np.maximum.accumulate(named_at)]
        return filled

    def _number(self, value: object) -> int:
        if value is _LOST:
            return -1
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a column of whole numbers with gaps comes as floats
        missing = value is None or value == "" or value != value  # noqa: PLR0124  NaN
        return self._named("(no name)" if missing else str(value))

    def _named(self, name: str) -> int:
        if len(name) > LONGEST_NAME:
            raise DataError(
                f"column {self._column!r}: a client's name has more than {LONGEST_NAME} characters"
            )
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


class Dealt(Clients):
    """A rule deals records to a fixed number of clients.

    - `round-robin`: in turn.
    - `blocks:N`: N records to each client in turn.
    - `range:FEATURE`: by equal slices of a number's encoded range, so that clients differ in it.
    - `dirichlet:ALPHA`: each class is shared out by a draw of its own from a symmetric Dirichlet
      law; a small ALPHA gives clients with hardly more than one class. For numbers and counts
      tenths of the public range stand for classes. Source: Hsu, Qi and Brown 2019.

    names: The clients, at least one.
    rule: One of the above.
    seed: Of dirichlet, >= 0.
    study: Its public ranges say where a slice begins.

    Raises ConfigError if the rule is none of these.
    """

    def __init__(self, names: list[str], rule: str, *, seed: int, study: Study) -> None:
        super().__init__()
        self.names, self._count, self._dealt = names, len(names), 0
        self._rng = np.random.default_rng([seed, 0xD1])
        self._kind, _, given = rule.partition(":")
        self._length, self._column, self._study = 1, 0, study
        numbers = [name for name, f in study.data.features.items() if f.kind == "number"]
        self._ends = np.zeros(1), np.ones(1)
        self._shares = np.zeros((SLICES, len(names)))
        if self._kind == "blocks" and re.fullmatch(r"[1-9][0-9]{0,11}", given):
            self._length = int(given)
        elif self._kind == "range" and given in numbers:
            encoding = study.encoding
            self._column, self._ends = encoding.column_of(given), encoding.ends
        elif self._kind == "dirichlet" and (alpha := _positive(given)):
            shares = self._rng.dirichlet(np.full(len(names), alpha), SLICES)
            self._shares = np.cumsum(shares, axis=1)
        elif rule != "round-robin":
            raise ConfigError(
                f"--by: {rule!r} is not a rule; allowed: {RULES}, with N >= 1, a number among the "
                "features and ALPHA > 0"
            )

    def of(self, batch: Batch, encoded: Encoded) -> Integers:
        """As `Clients.of`; a record that cannot be used counts as one at the middle."""
        count = self._count
        if self._kind == "range":
            low, high = (float(end[self._column]) for end in self._ends)
            return _slices(encoded.features[:, self._column], encoded.usable, (low, high), count)
        if self._kind == "dirichlet":
            response = self._study.data.response
            ends = response.ends if response.kind == "count" else (-1.0, 1.0)
            groups = _slices(encoded.responses, encoded.usable, ends, SLICES)
            draws = self._rng.random(len(batch))
            found: Integers = (draws[:, None] > self._shares[groups]).sum(axis=1)
            return np.minimum(found, count - 1)
        numbers = self._dealt + np.arange(len(batch), dtype=np.int64)
        self._dealt += len(batch)
        return numbers // self._length % count


def _slices(
    values: NDArray[Any], usable: NDArray[np.bool_], ends: tuple[float, float], count: int
) -> Integers:
    """Return which slice of a range each value lies in; the middle one where there is none."""
    low, high = ends
    share = np.where(usable, (values - low) / (high - low), 0.5)
    found: Integers = np.clip(np.floor(share * count), 0, count - 1).astype(np.int64)
    return found


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number <= 1e6 else None
