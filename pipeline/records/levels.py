"""Which personal level of privacy a record has; in doubt the strictest."""

from __future__ import annotations

from pipeline.records.values import Record
from pipeline.study.personal import Personal


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
