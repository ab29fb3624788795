"""The statement of the guarantee: what is promised to whom, in fields that a program can read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Guarantee(msgspec.Struct, frozen=True, omit_defaults=False):
    """What holds for every release of a study, and so for all that is computed from them.

    mu: The stream of releases is mu-GDP for one unit; None without privacy.
    unit: Whose data the promise is about: "record", or "user" (at most `unit_records` records).
    neighbours: Which change of the data it hides: "zero-out" (one record becomes a null record) or
        "replace-one".
    adversary: Who may look: everybody beyond the client, with all releases and estimates.
    counts: How numbers of records are treated: which leave with noise, which are public, which
        never leave.
    levels: Epsilon of each level of privacy that a record can have, the largest being `epsilon`;
        None where all records have the same.
    """

    mechanism: str
    epsilon: float | None
    delta: float | None
    mu: float | None
    unit: str | None
    unit_records: int | None
    neighbours: str | None
    adversary: str | None
    guarantee: str
    counts: str
    levels: dict[str, float] | None = None

    @property
    def claim(self) -> str:
        """The promise in short, for a release to carry."""
        who = self.unit if self.unit_records is None else f"{self.unit}:{self.unit_records}"
        levels = "" if self.levels is None else f" {sorted(self.levels.items())}"
        return f"{self.mechanism} {self.epsilon!r} {self.delta!r} {who} {self.neighbours}{levels}"


ADVERSARY = "anyone who sees every message and estimate; only the client itself is trusted"

NO_PRIVACY = Guarantee(
    mechanism="none",
    epsilon=None,
    delta=None,
    mu=None,
    unit=None,
    unit_records=None,
    neighbours=None,
    adversary=None,
    guarantee="none: privacy is off, and releases hold exact sums of raw records",
    counts="class counts and record counts: sent as they are; clipped and set-aside: never sent",
)


_CHANGES = {"zero-out": "its absence", "replace-one": "its replacement by any other"}
#: What the method that releases three parts calls its cost, and what it is.
PUBLISHED = (
    "the published method calls three releases at mu each mu-GDP, and they are sqrt(3) mu-GDP: "
    "here the three together keep the study's budget"
)


def loose_delta(delta: float | None, records: int) -> str:
    """Return a warning if delta is too large for so many records, or nothing."""
    if not delta or delta * records <= 1:
        return ""
    return (
        f"delta {delta:g} is above 1 / {records}, the record slots released: it would allow a "
        "mechanism to publish a record as it is; use 1e-5 or less, and far below 1 / records"
    )


def simulation_of(*, epsilon: float, delta: float) -> Guarantee:
    """State what a simulation promises: nothing."""
    return msgspec.structs.replace(
        NO_PRIVACY,
        mechanism="insecure-simulation",
        guarantee=(
            f"none: insecure-simulation of ({epsilon:g}, {delta:g}) with floating-point noise from "
            "a seeded generator; whoever has the seed can take the noise away"
        ),
        counts="simulated noise",
    )


def guarantee_of(
    *,
    mechanism: str,
    epsilon: float,
    delta: float,
    mu: float | None,
    unit: str,
    records: int | None,
    neighbours: str,
    counted: str = "class counts",
    releases: int = 1,
    parts: Mapping[str, float] | None = None,
    levels: dict[str, float] | None = None,
    floating: float | None = None,
) -> Guarantee:
    """State the guarantee of noised releases.

    mu: None where the promise is no mu-GDP.
    counted: What leaves with noise beside gradient and curvature; empty for nothing.
    releases: How many releases a record may enter.
    parts: What a record's gradient, curvature and product cost, where single records release them:
        mu, or epsilon if delta is 0.
    levels: Epsilon by level where records have one each.
    floating: Of copies, which are drawn in floating point: its part of delta, at most.
    """
    enters = (
        "since each record enters one release"
        if releases == 1
        else f"since a client's ledger counts each release, and {releases} keep this budget"
    )
    if floating is not None:
        enters += (
            f"; copies are drawn in floating point, whose part of delta is at most {floating:.1g}"
        )
    change = _CHANGES[neighbours]
    budget = f"({epsilon:g}, {delta:g})" if delta else f"{epsilon:g}"
    shown = ""
    if levels is not None:
        strictest = min(levels, key=lambda name: (levels[name], name))
        each = ", ".join(f"{levels[name]:g} at level {name!r}" for name in levels)
        change += (
            f" of the same level, with an epsilon of {each}, and {levels[strictest]:g} for a "
            "record of any other level or none"
        )
        shown = ", at which level a record slot was noised"
    return Guarantee(
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        mu=mu,
        unit=unit,
        unit_records=records,
        neighbours=neighbours,
        adversary=ADVERSARY,
        guarantee=(
            f"local {budget}-differential privacy of {_who(unit, records)} against {change}, "
            f"over the whole stream, {enters}; timing, the number of windows{shown} and which "
            f"client sent them are not hidden{_shared(parts or {}, delta)}"
        ),
        counts=(f"{counted}: noised under the budget; " if counted else "")
        + "record slots: public; clipped records: never sent; set-aside records: never sent"
        + (", though the strictest noise of their slots can show them" if levels else ""),
        levels=levels,
    )


def _who(unit: str, records: int | None) -> str:
    return "one record" if unit == "record" else f"one user with at most {records} records"


def _shared(parts: Mapping[str, float], delta: float) -> str:
    """Say what each part of a record costs; nothing of a gradient alone."""
    if len(parts) < 2:
        return ""
    unit = "mu" if delta else "epsilon"
    each = ", ".join(f"{name} {cost:.3g}" for name, cost in parts.items())
    said = f"; the parts of one record cost, in {unit}: {each}"
    if "products" in parts:
        said += f" ({PUBLISHED})"
    return said
