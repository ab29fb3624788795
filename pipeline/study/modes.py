"""The kinds of estimator that a study can name, and the keys of `[estimator.reproduction]`.

"renewable" is the project's own and the only live one. The others are published methods, which
`fit` runs over a file: they need pooled records, several rounds or a trusted aggregator.
Source: dwd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal[
    "renewable",
    "pooled",
    "pooled-mm",
    "federated-newton",
    "federated-newton-undamped",
    "online-newton",
    "online-newton-laplace",
    "online-newton-gaussian",
    "online-newton-distributed",
]
LIVE = "renewable"


class Reproduction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """`[estimator.reproduction]`: what a published method needs beside the common keys."""

    ridge_matrix: Annotated[
        Literal["intercept-free", "identity", "as-printed"] | None,
        Meta(
            description='"intercept-free" (default), "identity", or "as-printed": intercept free '
            "in the gradient, identity in the curvature",
            examples=["identity"],
        ),
    ] = None
    start: Annotated[
        Literal["fitted", "one-step"] | None,
        Meta(
            description='"fitted" (default): the first batch at its own fit; "one-step": from zero',
            examples=["one-step"],
        ),
    ] = None
    rounds: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="undamped steps from zero, 1 to 1000", examples=[1]),
    ] = None
    epsilon: Annotated[
        Annotated[float, Meta(ge=1e-4, le=20)] | None,
        Meta(description="the method's claim, in [1e-4, 20]", examples=[0.8]),
    ] = None
    delta: Annotated[
        Annotated[float, Meta(gt=0, lt=0.5)] | None,
        Meta(description="the method's claim, in (0, 0.5)", examples=[1e-5]),
    ] = None
    l1_bound: Annotated[
        Annotated[float, Meta(gt=1, le=1e12)] | None,
        Meta(
            description="C1, bound of the 1-norm of (1, features), in (1, 1e12]; longer records "
            "are shortened to it; default: the longest that the ranges allow",
            examples=[4.0],
        ),
    ] = None
    l2_bound: Annotated[
        Annotated[float, Meta(gt=1, le=1e12)] | None,
        Meta(description="C2, likewise of the 2-norm", examples=[3.0]),
    ] = None
    step_bound: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | None,
        Meta(
            description="r, the assumed length of a step between two batches, in [0, 1e6]; default "
            "0, which reproduces the tables",
            examples=[0.1],
        ),
    ] = None
    stabiliser: Annotated[
        Annotated[float, Meta(ge=0, le=1e12)] | None,
        Meta(
            description="rho, added to the curvature in every batch, in [0, 1e12]; default 0",
            examples=[100.0],
        ),
    ] = None
    tolerated: Annotated[
        Annotated[int, Meta(ge=0, le=10**6)] | None,
        Meta(
            description="clients that may drop out or collude, >= 0 and below their number; "
            "default 0",
            examples=[1],
        ),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, lt=2**62)] | None,
        Meta(description="of the simulated noise, a whole number >= 0", examples=[1]),
    ] = None

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the keys that the file has."""
        return tuple(n for n in self.__struct_fields__ if getattr(self, n) is not None)


@dataclass(frozen=True, slots=True)
class Mode:
    """A kind of estimator: what it is, and which keys belong to it.

    Attributes
    ----------
    label
        The paper's name.
    meaning
        The method in the field's words.
    needs
        Why it cannot run on a live stream of releases; empty for the live kind.
    required, optional
        Keys of `[estimator.reproduction]`.
    ridge_matrices
        Which of them the method has.
    weighted
        Whether it has class weights.
    """

    label: str
    meaning: str
    needs: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    ridge_matrices: tuple[str, ...] = ()
    weighted: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of `[estimator.reproduction]` that belong to it."""
        return (*self.required, *self.optional)

    @property
    def noised(self) -> bool:
        """Whether it adds (simulated) noise."""
        return "seed" in self.required


_ONE_MATRIX = ("intercept-free", "identity")
_TWO_MATRICES = (*_ONE_MATRIX, "as-printed")
_TRUSTED = ("ridge_matrix", "l2_bound", "step_bound", "stabiliser")

MODES: dict[str, Mode] = {
    "renewable": Mode("", "renewable estimation from releases", "", weighted=True),
    "pooled": Mode(
        "OffNP",
        "penalised fit to all records in one place, converged",
        "all raw records in one place",
        optional=("ridge_matrix",),
        ridge_matrices=_ONE_MATRIX,
        weighted=True,
    ),
    "pooled-mm": Mode(
        "OffNP by kerndwd",
        "the same by majorisation-minimisation, stopped as kerndwd does; its lambda is ridge / 2",
        "all raw records in one place",
    ),
    "federated-newton": Mode(
        "OffWP",
        "damped Newton steps on sums of all clients",
        "several rounds over the same records",
        optional=("ridge_matrix",),
        ridge_matrices=_ONE_MATRIX,
        weighted=True,
    ),
    "federated-newton-undamped": Mode(
        "OffWP as published",
        "literal Newton steps of eq. (16) from zero; a reproduction",
        "several rounds over the same records",
        required=("rounds",),
        optional=("ridge_matrix",),
        ridge_matrices=_TWO_MATRICES,
    ),
    "online-newton": Mode(
        "OnWP",
        "one Newton step for each batch, eq. (37)",
        "batches with a window of every client, all at the same point",
        optional=("ridge_matrix", "start"),
        ridge_matrices=_TWO_MATRICES,
        weighted=True,
    ),
    "online-newton-laplace": Mode(
        "OnWDP, Laplace",
        "OnWP with an aggregator's Laplace noise, Algorithm 2; a reproduction",
        "a trusted aggregator that sees raw sums",
        required=("epsilon", "seed"),
        optional=(*_TRUSTED, "l1_bound"),
        ridge_matrices=_TWO_MATRICES,
    ),
    "online-newton-gaussian": Mode(
        "OnWDP, Gaussian",
        "OnWP with an aggregator's Gaussian noise, Algorithm 2; a reproduction",
        "a trusted aggregator that sees raw sums",
        required=("epsilon", "delta", "seed"),
        optional=_TRUSTED,
        ridge_matrices=_TWO_MATRICES,
    ),
    "online-newton-distributed": Mode(
        "",
        "OnWP with a share of the noise from each client, as under secure aggregation",
        "secure aggregation, which this program does not have",
        required=("epsilon", "delta", "seed"),
        optional=("ridge_matrix", "l2_bound", "tolerated"),
        ridge_matrices=_ONE_MATRIX,
        weighted=True,
    ),
}

KIND_HELP = (
    f'"{LIVE}", the only live one; for `veilstream fit` also a published method: '
    f"{', '.join(kind for kind in MODES if kind != LIVE)}"
)
