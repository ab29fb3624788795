"""`[estimator.path]`: the public steps of gradient descent, and what a study with it must say."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0, le=1e12)]
#: Every interval that a stream can show, and the releases that it is read from.
INTERVALS = {
    "random-scaling": "gradients",
    "plug-in": "gradients",
    "online-batch-means": "gradients",
    "plug-in-curvature": "gradients+curvature",
    "plug-in-products": "gradients+curvature+products",
}


class Path(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps min(eta0 i^-alpha, cap) of record i; what is not given follows from the study."""

    eta0: Annotated[Positive, Meta(description="scale of the steps, > 0", examples=[1.0])] = 1.0
    alpha: Annotated[
        Annotated[float, Meta(gt=0.5, lt=1)] | None,
        Meta(
            description="decay of the steps, in (1/2, 1); default 0.501 for linear, else 0.6",
            examples=[0.501],
        ),
    ] = None
    burn_in: Annotated[
        int,
        Meta(
            ge=0,
            le=10**9,
            description="records before averages begin; later 6 to 12 % are left out",
            examples=[1000],
        ),
    ] = 1000
    radius: Annotated[
        Positive | None,
        Meta(
            description="records with a longer (1, features) weigh less, so that none moves a "
            "gradient further; default: the root of the number of coefficients",
            examples=[2.0],
        ),
    ] = None
    curvature: Annotated[
        Positive | None,
        Meta(
            description="public guess of a record's mean curvature; default 0.8 for linear, 0.4 "
            "for expectile, 0.2 for logistic",
            examples=[0.8],
        ),
    ] = None
    kappa: Annotated[
        Positive | None,
        Meta(
            description="how far noise may move a linear predictor, in variances of its largest "
            "slope: the cap of the steps; default 0.5 for linear, else 0.25",
            examples=[0.5],
        ),
    ] = None
    behind: Annotated[
        Annotated[int, Meta(ge=0, le=10**9)] | None,
        Meta(
            description="records that a client's model may be late, which caps the steps too; "
            "default: twice window.records times stream.publish.releases",
            examples=[1000],
        ),
    ] = None
    partitions: Annotated[
        Literal["pooled", "shared"] | None,
        Meta(
            description='with stream.partitions above 1: "shared" for one path that all of them '
            'move, "pooled" for a path in each and the average of those',
            examples=["shared"],
        ),
    ] = None
    full: Annotated[
        bool,
        Meta(description="keep the whole matrix of random scaling", examples=["false"]),
    ] = False
    releases: Annotated[
        Literal["gradients", "gradients+curvature", "gradients+curvature+products"],
        Meta(
            description='"gradients" of single records; "gradients+curvature": with the noised sum '
            'of a window\'s curvatures; "gradients+curvature+products": and of its outer products. '
            "All share one budget",
            examples=["gradients"],
        ),
    ] = "gradients"
    interval: Annotated[
        Literal[
            "random-scaling",
            "plug-in",
            "online-batch-means",
            "plug-in-curvature",
            "plug-in-products",
        ],
        Meta(
            description='"random-scaling", "plug-in" or "online-batch-means"; with the releases '
            'that they need, "plug-in-curvature" or "plug-in-products"',
            examples=["random-scaling"],
        ),
    ] = "random-scaling"

    @property
    def matrices(self) -> int:
        """How many matrices a release holds beside its gradients: 0, 1 or 2."""
        return self.releases.count("+")

    @property
    def intervals(self) -> tuple[str, ...]:
        """The intervals that can be read from these releases."""
        return tuple(name for name, needed in INTERVALS.items() if self.releases.startswith(needed))
