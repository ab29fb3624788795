"""What callers hold in memory to values (n, k): arrays, data frames, and lists of records.

A table is anything that names its columns and gives each by its name; nothing is imported for it.
Errors name the column and the row, counted from 0, never the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, RecordError
from pipeline.records.batch import Column
from pipeline.records.features import Features
from pipeline.types import Matrix, Vector

#: An array (n, k) in the study's order of features, a data frame with their names, or records.
Table: TypeAlias = Any


def values_of(X: Table, features: Features, *, keep: bool = False) -> Matrix:
    """Return the values of all features, shape (n, k), every one finite: see `Features`.

    Where a value is missing, that which the study declares is read in its place.

    X: An array or nested lists of shape (n, k), in the order in which the study names its features;
        a table with a column for each of them, as of `names_of` (further columns are not read); or
        a sequence of mappings from names to numbers or text.
    keep: Whether there is NaN where a value is missing and nothing is declared in its place.

    Raises DataError if the shape is wrong, a column is missing, or a value is no finite number or
    no level.
    """
    names = features.columns
    if isinstance(X, (Mapping, str, bytes)):
        raise DataError("X is a single record; pass a list of records, such as [record]")
    if (given := names_of(X)) is not None:
        features.check_columns(given)
        return _of_frame(X, features, keep=keep)
    if isinstance(X, Sequence) and len(X) > 0 and isinstance(X[0], Mapping):
        return _of_records(X, features, keep=keep)
    if hasattr(X, "toarray"):
        raise DataError("X is a sparse matrix, and the features of a study are dense; X.toarray()")
    try:
        array = np.asarray(X)
    except ValueError:
        raise DataError(_shape("rows of different lengths", names)) from None
    if array.size == 0 and array.ndim == 1:
        return np.zeros((0, len(features.names)))
    if array.ndim != 2 or array.shape[1] != len(names):
        raise DataError(_shape(f"shape {array.shape}", names))
    if np.ma.is_masked(X):
        raise DataError("X holds masked values; leave those records out, or fill them in")
    return _of_columns(dict(zip(names, array.T, strict=True)), features, keep=keep)


def names_of(table: Any) -> list[str] | None:
    """Return the names of a table's columns: of pandas, polars or Arrow, or a mapping from names.

    Returns: None if it is no table.
    """
    if isinstance(table, Mapping):
        return list(table)
    # what Arrow calls columns are the values; a frame may have a column of any name
    arrow = hasattr(type(table), "column_names")
    names = table.column_names if arrow else getattr(table, "columns", None)
    return None if names is None or not hasattr(table, "__getitem__") else list(names)


def labels_of(y: Any, count: int) -> list[object]:
    """Return the labels of `count` records as a list.

    Raises DataError if there is another number of them.
    """
    labels = list(y.tolist() if hasattr(y, "tolist") else y)
    if len(labels) != count:
        raise DataError(f"y has {len(labels)} labels for {count} records; each needs one")
    return labels


def by_row(convert: Callable[[Any], Any], items: Sequence[object]) -> list[Any]:
    """Convert items one by one; a fault names its row.

    Raises DataError if one of them cannot be converted.
    """
    found = []
    for row, item in enumerate(items):
        try:
            found.append(convert(item))
        except RecordError as error:
            raise DataError(f"row {row}: {error}") from None
    return found


def _of_frame(frame: Any, features: Features, *, keep: bool) -> Matrix:
    columns = {name: np.asarray(frame[name]) for name in features.columns}
    for name, column in columns.items():
        if column.ndim != 1:
            raise DataError(f"column {name!r}: there is more than one of this name")
    return _of_columns(columns, features, keep=keep)


def _of_columns(columns: dict[str, NDArray[Any]], features: Features, *, keep: bool) -> Matrix:
    for name, column in columns.items():
        if column.dtype.kind not in "OSUTfiub":
            raise DataError(f"column {name!r}: its type {column.dtype} is not one of numbers")
    given = {name: Column.of(column) for name, column in columns.items()}
    filled = features.without_gaps(given)
    read = [_values(filled[name], name, features, keep=keep) for name in features.names]
    return np.column_stack(read) if read else np.zeros((0, 0))


def _of_records(records: Sequence[Any], features: Features, *, keep: bool) -> Matrix:
    if not all(isinstance(record, Mapping) for record in records):
        raise DataError("X mixes records with other things; pass mappings only, or an array")
    values = by_row(partial(features.values, keep=keep), records)
    return np.array(values).reshape(len(records), len(features.names))


def _values(column: Column, name: str, features: Features, *, keep: bool) -> Vector:
    """Return one column as finite values; text and objects go one by one, as in a source."""
    if not column.typed or name in features.texts:
        return np.array(by_row(partial(features.value, name, keep=keep), column.objects()))
    numbers = column.numbers
    bad = np.flatnonzero(np.isinf(numbers) if keep else ~np.isfinite(numbers))
    if len(bad):
        raise DataError(
            f"row {bad[0]}: column {name!r}: not a finite number (NaN or infinite in {len(bad)} of "
            f"{len(numbers)} rows); leave those records out, or fill them in"
        )
    return numbers


def _shape(what: str, names: Sequence[str]) -> str:
    return (
        f"X has {what}; the model needs shape (n, {len(names)}) with the features in this order: "
        f"{', '.join(names)}"
    )
