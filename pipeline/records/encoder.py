"""The encoder: records to clipped rows, one by one and in batches.

Records to rows: read, check, clip to the public ranges, encode.

Many records at once: columns to encoded arrays, as `Encoder` does it record by record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.records.batch import Batch, Column, Reasons, Records
from pipeline.records.features import Features, Response, response_of
from pipeline.records.values import Record
from pipeline.study.model import Personal, Study
from pipeline.types import Integers, Matrix, Vector


class Levels:
    """Places of levels, 0 for the strictest.

    personal: The study's levels; None where it has none.
    """

    def __init__(self, personal: Personal | None) -> None:
        names = () if personal is None else personal.names
        self._column = None if personal is None else personal.column
        self._places = {name: place for place, name in enumerate(names)}
        self._last = max(len(names) - 1, 0)

    @property
    def columns(self) -> tuple[str, ...]:
        """The column that a source must have; none where there is none."""
        return () if self._column is None else (self._column,)

    def of(self, record: Record) -> int:
        """Return the place that a record asks for; without a column all ask for the loosest.

        A missing value, or one that is no level, asks for the strictest. The client's own ceiling
        holds in any case, see `Budget.ceiling`.
        """
        if self._column is None:
            return self._last
        asked = record.get(self._column)
        return self._places.get(asked.strip(), 0) if isinstance(asked, str) else 0

    def of_all(self, columns: Mapping[str, Column], size: int) -> Integers:
        """Return the places that many records ask for, shape (n,)."""
        if self._column is None:
            return np.full(size, self._last, dtype=np.int64)
        asked = columns[self._column].objects()
        return np.array([self.of({self._column: value}) for value in asked], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded record: columns (p,), response, and how many values were clipped.

    `level` is the place of its level of privacy, 0 for the strictest.
    """

    features: Vector
    response: float
    clipped: int
    level: int = 0


class Arrays(NamedTuple):
    """Encoded records as arrays, one for each slot.

    features, responses: Shapes (n, p) and (n,); the response of an empty slot is NaN.
    levels: Places of their levels of privacy, (n,); None: all have that of empty slots.
    """

    features: Matrix
    responses: Vector
    levels: Integers | None = None

    @property
    def sound(self) -> Arrays:
        """The same without the empty slots."""
        known = ~np.isnan(self.responses)
        if known.all():
            return self
        levels = None if self.levels is None else self.levels[known]
        return Arrays(self.features[known], self.responses[known], levels)

    def part(self, places: slice) -> Arrays:
        """Return some slots."""
        levels = None if self.levels is None else self.levels[places]
        return Arrays(self.features[places], self.responses[places], levels)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive record slots, encoded together.

    arrays: One row for each; those without a sound record are empty.
    reasons: Why they are.
    values, written: Of features in their own units, (n, k), and of the response, (n,), before any
        clipping; those of empty slots mean nothing.
    beyond: Which values of sound records lay outside their range, of features and then of the
        response, (n, k + 1).
    """

    arrays: Arrays
    reasons: Reasons
    values: Matrix
    written: Vector
    beyond: NDArray[np.bool_]

    @property
    def usable(self) -> int:
        """How many slots hold a sound record."""
        return int(np.count_nonzero(self.reasons.codes == 0))

    @property
    def clipped(self) -> int:
        """How many values of those were clipped."""
        return int(np.count_nonzero(self.beyond))


#: The slots of a window, one by one, None for an empty one, or as arrays.
Rows: TypeAlias = Sequence[Row | None] | Arrays


class Encoder:
    """Encodes the records of one study with its public ranges only.

    dummy: A record that anybody could make up: to be encoded where there is none, so that it takes
        as long.
    """

    def __init__(self, study: Study) -> None:
        self.features = Features.of(study)
        self.response: Response = response_of(study)
        self._levels = Levels(study.privacy.personal)
        self._beyond = np.zeros(len(self.features.names) + 1, dtype=np.int64)
        self.dummy = dummy_of(study)
        self._kinds = self.features.kinds.followed(by=self.response.kinds)
        self._numbers = {*self.features.columns} - self.features.texts
        if study.data.response.kind != "class":
            self._numbers.add(self.response.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (*self.features.columns, self.response.name, *self.level_columns)

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the values of features, and of the response: those of `Block.beyond`."""
        return (*self.features.names, self.response.name)

    @property
    def level_columns(self) -> tuple[str, ...]:
        """The column with the levels of records; none where the study has none."""
        return self._levels.columns

    @property
    def refusals(self) -> frozenset[str]:
        """Faults of values that are misspelt, mostly: undeclared ones, and forms of numbers."""
        return frozenset({*self.features.refusals, *self.response.refusals})

    @property
    def clipped(self) -> Counter[str]:
        """How many values have been cut to their range, by column: counted from raw data."""
        counts = zip(self.value_names, self._beyond.tolist(), strict=True)
        return Counter({name: count for name, count in counts if count})

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a source that lacks a column of the study.

        Raises DataError, naming the columns that are missing.
        """
        self.features.check_columns(columns, self.response.name, *self.level_columns)

    def encode(self, record: Record) -> Row:
        """Encode one record.

        Raises RecordError if a column is missing, a value is no finite number, or the response is
        none that the study knows. The message names the column, never the value.
        """
        values = self.features.values(record)
        response, beyond = self.response.of_label(record.get(self.response.name))
        inside = self.features.clip(values)
        changed = inside != values
        self._beyond += np.append(changed, beyond)
        clipped = int(np.count_nonzero(changed)) + beyond
        return Row(self.features.encode(inside), response, clipped, self._levels.of(record))

    def block(
        self, records: Batch | Sequence[Record], refused: Mapping[int, str] | None = None
    ) -> Block:
        """Encode consecutive slots together, bit by bit as `encode` does their records one by one.

        refused: Places whose record must not be used, with the reason.

        The same steps are taken for records that are good, clipped or bad, in about one time.
        """
        batch = records if isinstance(records, Batch) else Records(records)
        columns = batch.columns(self.columns, self._numbers)
        reasons = Reasons(len(batch), self._kinds)
        for at, why in {**batch.lost, **(refused or {})}.items():
            reasons.put(at, -1, why)
        values = self.features.read(columns, self.dummy, reasons)
        name = self.response.name
        responses, written, cut = self.response.read(columns[name], self.dummy[name], reasons)
        empty = reasons.codes != 0
        inside = self.features.clip(values)
        features = np.ascontiguousarray(self.features.encode(inside))
        levels = self._levels.of_all(columns, len(batch))
        features[empty], responses[empty], levels[empty] = 0.0, np.nan, 0
        beyond = np.empty((len(self._beyond), len(batch)), dtype=np.bool_).T
        np.not_equal(inside, values, out=beyond[:, :-1])
        beyond[:, -1] = cut
        # true only where no fault is: as many steps for all
        np.greater(beyond, empty[:, None], out=beyond)
        self._beyond += np.add.reduce(beyond, axis=0)
        return Block(Arrays(features, responses, levels), reasons, values, written, beyond)

    def far(self, block: Block) -> NDArray[np.bool_]:
        """Return which records have a value further outside its range than that is wide, (n,)."""
        low, high = self.features.encoding.range
        away = np.abs(block.values - self.features.clip(block.values)) > high - low
        given = [*away.T, self.response.far(block.written)]
        far: NDArray[np.bool_] = np.logical_or.reduce(given) & (block.reasons.codes == 0)
        return far

    def rows(self, values: Matrix, responses: Sequence[tuple[float, bool]]) -> list[Row]:
        """Encode records whose values have been read.

        values: Finite values in their own units, shape (n, p).
        responses: For each record the encoded response, and whether it was clipped.
        """
        inside = self.features.clip(values)
        clipped = np.count_nonzero(inside != values, axis=1).tolist()
        scaled = self.features.encode(inside)
        return [
            Row(features, response, beyond + count, self._levels.of({}))
            for features, (response, beyond), count in zip(scaled, responses, clipped, strict=True)
        ]


def dummy_of(study: Study) -> dict[str, str]:
    """Return a record of a study made of public words alone: the middle of ranges, base levels."""
    record = {}
    for name, feature in study.encoding.features.items():
        low, high = feature.ends
        public = {"number": repr(low / 2 + high / 2), "category": feature.base_level}
        record[name] = public[feature.kind]
    response = study.data.response
    classes = response.kind == "class"
    record[response.name] = response.classes[0] if classes else repr(response.ends[0])
    return record


def stack(rows: Rows, features: int) -> Arrays:
    """Return the slots of a window as arrays, with so many columns; there may be none."""
    if isinstance(rows, Arrays):
        return rows
    found = Arrays(
        np.zeros((len(rows), features)),
        np.full(len(rows), np.nan),
        np.zeros(len(rows), dtype=np.int64),
    )
    places = [place for place, row in enumerate(rows) if row is not None]
    sound = [row for row in rows if row is not None]
    if sound:
        joined = np.concatenate([row.features for row in sound])
        found.features[places] = joined.reshape(len(sound), features)
        found.responses[places] = [row.response for row in sound]
        if found.levels is not None:
            found.levels[places] = [row.level for row in sound]
    return found


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Return the slots of several blocks, one at least, that all have levels."""
    if len(parts) == 1:
        return parts[0]
    return Arrays(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.responses for part in parts]),
        np.concatenate([part.levels for part in parts if part.levels is not None]),
    )


class Stretch(NamedTuple):
    """Records of a history, in its order.

    share: How much of the history lies behind its end, 0 to 1; None where that is not known.
    absent: Columns that were asked for, need not be there, and are not.
    """

    slots: Batch
    share: float | None = None
    absent: Sequence[str] = ()
