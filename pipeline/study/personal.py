"""`privacy.personal`: levels of privacy for single records, declared in public."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Personal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Levels with an epsilon each, and the column that says which one a record asks for."""

    levels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=64)],
            Annotated[float, Meta(ge=1e-4, le=20)],
        ],
        Meta(
            min_length=2,
            max_length=16,
            description="2 to 16 names with their epsilon in [1e-4, 20]; the largest is "
            "privacy.epsilon",
            examples=["{ strict = 0.5, normal = 1.0 }"],
        ),
    ]
    column: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="the column with a record's level; default: `produce --level` says it for "
            "all records of a client",
            examples=["consent"],
        ),
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the levels, the strictest first."""
        return tuple(sorted(self.levels, key=lambda name: (self.levels[name], name)))
