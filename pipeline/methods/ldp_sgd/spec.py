"""What a study of this method must say: `[estimator.path]`, and what goes with it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pipeline.study.data import key
from pipeline.study.model import Split, Study
from pipeline.study.tables import strict

Positive = Annotated[float, Meta(gt=0, le=1e12)]
#: Every interval that a stream can show, and the releases that it is read from.
INTERVALS = {
    "random-scaling": "gradients",
    "plug-in": "gradients",
    "plug-in-curvature": "gradients+curvature",
    "plug-in-products": "gradients+curvature+products",
}
#: The interval of choice, by the last thing that is released. Only gradients: a curvature regressed
#: on the path is known no sooner than the path has mixed, and random scaling needs none.
CHOICE = {
    "gradients": "random-scaling",
    "curvature": "plug-in-curvature",
    "products": "plug-in-products",
}


class Path(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps min(eta0 i^-alpha, cap) of record i; what is not given follows from the study."""

    eta0: Annotated[
        Positive | None,
        key(
            "scale of the steps, > 0; default 2 with a released curvature (a step is then a "
            "share of the way to the minimum), otherwise 1",
            1.0,
        ),
    ] = None
    alpha: Annotated[
        Annotated[float, Meta(gt=0.5, le=1)] | None,
        key(
            "decay of the steps, in (1/2, 1]; default 1 with a released curvature, otherwise "
            "0.501 for linear and 0.6 for others",
            0.501,
        ),
    ] = None
    burn_in: Annotated[
        int,
        key(
            ("records before averages begin; afterwards 5 to 12 % are left out"),
            1000,
            ge=0,
            le=10**9,
        ),
    ] = 1000
    clipping_norm: Annotated[
        Positive | None,
        key(
            "records with a longer (1, features) weigh less, so that none of them moves a "
            "gradient further; default: the root of the number of coefficients",
            2.0,
        ),
    ] = None
    curvature: Annotated[
        Positive | None,
        key(
            "public guess of a record's mean curvature; default 0.8 for linear, 0.4 for "
            "expectile, 0.2 for logistic",
            0.8,
        ),
    ] = None
    kappa: Annotated[
        Positive | None,
        key(
            "how far noise may move a linear predictor, in variances of its largest slope; this "
            "caps the steps; default 0.25, or 0.5 for linear without a released curvature",
            0.5,
        ),
    ] = None
    behind: Annotated[
        Annotated[int, Meta(ge=0, le=10**9)] | None,
        key(
            "how many records late a client's model may be; this caps the steps, too; default: "
            "twice window.records times stream.publish.releases",
            1000,
        ),
    ] = None
    partitions: Annotated[
        Literal["pooled", "shared"] | None,
        key(
            'with stream.partitions above 1: "shared" for one path that all partitions move, '
            '"pooled" for one path in each and the average of these paths',
            "shared",
        ),
    ] = None
    full: Annotated[
        bool, key(("keep the whole matrix of random scaling, for contrasts"), "false")
    ] = False
    releases: Annotated[
        Literal["gradients", "gradients+curvature", "gradients+curvature+products"] | None,
        key(
            'what a release holds: "gradients" of single records; "gradients+curvature": also '
            'the noised sum of a window\'s curvatures; "gradients+curvature+products": also '
            'that of its outer products. All share one budget. Default: "gradients+curvature"; '
            '"gradients" for unit = "user", personal levels and discrete-laplace',
            "gradients+curvature",
        ),
    ] = None
    interval: Annotated[
        Literal[
            "random-scaling",
            "plug-in",
            "plug-in-curvature",
            "plug-in-products",
        ]
        | None,
        key(
            '"random-scaling" or "plug-in"; with the releases that they need, also '
            '"plug-in-curvature" or "plug-in-products". Default: the one that uses '
            "most of what is released",
            "plug-in-curvature",
        ),
    ] = None

    @property
    def parts(self) -> tuple[str, ...]:
        """What a release holds."""
        return tuple((self.releases or "gradients").split("+"))

    @property
    def matrices(self) -> int:
        """How many matrices a release holds beside its gradients: 0, 1 or 2."""
        return len(self.parts) - 1

    @property
    def intervals(self) -> tuple[str, ...]:
        """The intervals that can be read from these releases."""
        held = "+".join(self.parts)
        return tuple(name for name, needed in INTERVALS.items() if held.startswith(needed))

    @property
    def shown(self) -> str:
        """The interval that stands beside the coefficients."""
        return self.interval or CHOICE[self.parts[-1]]


#: Raised whenever the meaning of a release changes without a change of the study file.
SEMANTICS = 3
#: Shares of the budget that a released curvature takes: at least, at most.
LEAST_CURVATURE, MOST_CURVATURE = 0.05, 0.3
#: Largest curvature over largest slope, by loss, with residuals in units of their deviation.
STEEPEST, HUBER = {"logistic": 0.25}, 1.345
#: Losses with a bounded slope whose expectation is zero at the truth.
LOSSES = ("linear", "logistic", "expectile")


def spec_of(study: Study) -> Path:
    """Return the steps that a study declares; ConfigError, naming the key that is wrong."""
    path = strict(study.estimator.path or {}, Path, at="estimator.path")
    if path.releases is not None:
        return path
    # elsewhere the sum of a window's curvatures costs more than it is worth, or does not go
    privacy = study.privacy
    plain = privacy.unit != "record" or privacy.personal is not None
    plain = plain or privacy.mechanism == "discrete-laplace"
    held: Literal["gradients", "gradients+curvature"] = (
        "gradients" if plain else "gradients+curvature"
    )
    return msgspec.structs.replace(path, releases=held)


def split_of(study: Study, path: Path) -> Split:
    """Return the shares of the budget of gradient and curvature."""
    if study.privacy.split is None and path.matrices:
        share = _curvature_share(study, path)
        return Split(gradient=1 - share, curvature=share)
    return (study.privacy.split or Split()).filled()


def _curvature_share(study: Study, path: Path) -> float:
    """Return the share of the budget at which a released curvature is known in time.

    Widths are to be known to a fifth at twice the size at which intervals reach half a unit to
    either side, where noise rules: the unit of residuals, or of the logit. Noise of a window's sum
    then matters by (clipping_norm h / S)^2 (d + 3) / window.records.
    """
    size = len(study.coefficient_names)
    norm = path.clipping_norm or math.sqrt(max(2, size))
    ratio = norm * STEEPEST.get(study.estimator.loss, 1 / HUBER) / 1.57
    share = ratio * ratio * (size + 3) / (2 * study.window.records)
    return round(min(max(share, LEAST_CURVATURE), MOST_CURVATURE), 3)


def enter(meaning: dict[str, Any], study: Study) -> None:
    """As `Method.enter`."""
    path = spec_of(study)
    meaning["gradients"] = SEMANTICS
    meaning["privacy"]["split"] = split_of(study, path).shares
    # which intervals are shown changes no release
    given = {k: v for k, v in msgspec.to_builtins(path).items() if k != "interval"}
    meaning["estimator"]["path"] = {k: v for k, v in given.items() if v is not None}
