"""`privacy.personal`: levels of privacy for single records, declared in public."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.study.data_tables import key

if TYPE_CHECKING:
    from pipeline.study.model import Study


class Personal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Levels with an epsilon each, and the column that says which one a record asks for."""

    levels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=64)],
            Annotated[float, Meta(ge=0.0001, le=20)],
        ],
        key(
            "2 to 16 names with their epsilon in [1e-4, 20]; the largest is privacy.epsilon",
            "{ strict = 0.5, normal = 1.0 }",
            min_length=2,
            max_length=16,
        ),
    ]
    column: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        key(
            "the column with a record's level; default: `produce --level` says it for all "
            "records of a client",
            "consent",
        ),
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the levels, the strictest first."""
        return tuple(sorted(self.levels, key=lambda name: (self.levels[name], name)))


def require_no_level_column(study: Study, doing: str) -> None:
    """Refuse a study in which a column says how private each record is.

    doing: What does not read it, such as "a backtest".

    Raises ConfigError if there is such a column.
    """
    personal = study.privacy.personal
    if personal is not None and personal.column is not None:
        raise ConfigError(
            f"privacy.personal.column: {doing} does not read levels of records; remove column, so "
            "that all have the strictest, or use `veilstream fit`"
        )
