"""Many records at once: columns to encoded arrays, as `Encoder` does it record by record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.records.features import Features
from pipeline.records.response import Response, response_of
from pipeline.study.model import Study
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of a history, in its order, by column.

    columns: Name to values, each of shape (n,): numbers, text, or objects with None for missing.
    lost: Which slots hold no record at all, such as a line that cannot be read; shape (n,).
    share: How much of the history lies behind its end, 0 to 1; None where that is not known.
    """

    columns: Mapping[str, NDArray[Any]]
    lost: NDArray[np.bool_]
    share: float | None = None

    def __len__(self) -> int:
        return len(self.lost)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch, encoded.

    features: Clipped and encoded, shape (n, p); rows that are not usable hold anything.
    responses, written: The response encoded, and as it was written in its own unit; shape (n,).
    usable: Which slots hold a sound record, shape (n,).
    unread: Which values cannot be read, of features and then of the response, shape (n, k + 1).
    beyond: Which values lay outside the public range of their feature, shape (n, k).
    """

    features: Matrix
    responses: Vector
    written: Vector
    usable: NDArray[np.bool_]
    unread: NDArray[np.bool_]
    beyond: NDArray[np.bool_]

    def clipped(self, rows: NDArray[np.bool_]) -> Integers:
        """Return how many values of each feature of some rows were clipped, shape (k,)."""
        found: Integers = np.count_nonzero(self.beyond & rows[:, None], axis=0)
        return found


class BatchEncoder:
    """Encodes the batches of one study with its public ranges only."""

    def __init__(self, study: Study) -> None:
        self.features = Features.of(study)
        self.response: Response = response_of(study)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (*self.features.names, self.response.name)

    def encode(self, batch: Batch) -> Encoded:
        """Encode a batch; a record with any fault is not usable, and its slot stays empty."""
        values = np.empty((len(batch), len(self.features.names)))
        for place, name in enumerate(self.features.names):
            values[:, place] = self.features.column(name, batch.columns[name])
        responses, written = self.response.of_column(batch.columns[self.response.name])
        unread = ~np.isfinite(np.column_stack([values, responses])) & ~batch.lost[:, None]
        usable = ~batch.lost & ~unread.any(axis=1)
        inside = self.features.clip(values)
        columns = self.features.encode(inside)
        return Encoded(columns, responses, written, usable, unread, inside != values)
