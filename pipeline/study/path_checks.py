"""What a study with locally private gradients must say, and must not."""

from __future__ import annotations

from pipeline.errors import ConfigError
from pipeline.study.model import LDP_SGD, Study
from pipeline.study.path import INTERVALS, Path

#: Losses with a bounded slope whose expectation is zero at the truth.
LOSSES = ("linear", "logistic", "expectile")


def check_path(study: Study) -> None:
    """Refuse keys that do not go with `kind = "ldp-sgd"`, and those that only go with it.

    Raises
    ------
    ConfigError
        Naming the key, what is allowed and the way out.
    """
    estimator = study.estimator
    _check_personal(study)
    if estimator.kind != LDP_SGD:
        if estimator.path is not None:
            raise ConfigError(f'estimator.path: belongs to kind = "{LDP_SGD}"; remove it')
        if estimator.loss == "expectile":
            raise ConfigError(f'estimator.loss: "expectile" belongs to kind = "{LDP_SGD}"')
        return
    if estimator.loss not in LOSSES:
        raise ConfigError(f'estimator.loss: kind = "{LDP_SGD}" has {", ".join(LOSSES)}')
    if estimator.ridge > 0:
        raise ConfigError(
            f'estimator.ridge: kind = "{LDP_SGD}" has no penalty; the default is 1e-3, so write '
            "ridge = 0"
        )
    if estimator.loss != "logistic" and estimator.residual_bound is None:
        raise ConfigError(
            "estimator.residual_bound: must be given, as the noise is in proportion to it: about "
            "1.345 times a public guess of the residuals' scale, in the response's unit"
        )
    for key in ("class_weights", "norm_bound", "noise_scale", "forgetting"):
        if getattr(estimator, key) is not None:
            instead = "; use estimator.path.radius" if key == "norm_bound" else ""
            raise ConfigError(f'estimator.{key}: kind = "{LDP_SGD}" has none; remove it{instead}')
    if study.noised and study.privacy.neighbours != "replace-one":
        raise ConfigError(
            "privacy.neighbours: the releases of single records are private against any other "
            'value of the record; set neighbours = "replace-one"'
        )
    _check_partitions(study)
    path = estimator.path or Path()
    if path.interval not in path.intervals:
        raise ConfigError(
            f'estimator.path.interval: "{path.interval}" is read from releases = '
            f'"{INTERVALS[path.interval]}", and this study has "{path.releases}"; set '
            f"estimator.path.releases to that, which shares the budget of a record among them, or "
            f"choose one of {', '.join(path.intervals)}"
        )
    if path.matrices == 2 and study.privacy.split is not None:
        raise ConfigError(
            "privacy.split: gradient, curvature and products share the budget equally, as their "
            'paper has them; remove it, or set estimator.path.releases = "gradients+curvature"'
        )


def _check_partitions(study: Study) -> None:
    """Refuse several partitions without a way to bring them together, and the other way round."""
    several = study.path.partitions if study.path else None
    if study.stream.partitions > 1 and several is None:
        raise ConfigError(
            f'stream.partitions: kind = "{LDP_SGD}" moves one path through all records in their '
            "order; set partitions = 1 (the default is 2), or say how several of them go together: "
            'estimator.path.partitions = "shared" or "pooled"'
        )
    if study.stream.partitions == 1 and several is not None:
        raise ConfigError(
            "estimator.path.partitions: a stream of one partition has nothing to bring together; "
            "remove it, or raise stream.partitions"
        )


def _check_personal(study: Study) -> None:
    """Refuse levels of privacy where they would not mean what they say."""
    personal = study.privacy.personal
    if personal is None:
        return
    if study.estimator.kind != LDP_SGD:
        raise ConfigError(
            "privacy.personal: records can have levels of their own where each is noised by "
            f'itself; set estimator.kind = "{LDP_SGD}", or remove it'
        )
    if not study.noised:
        raise ConfigError('privacy.personal: goes with noise; remove it, or mechanism = "none"')
    if study.privacy.unit != "record":
        raise ConfigError(
            'privacy.personal: a level is one of a record; set unit = "record", or remove it'
        )
    if study.path is not None and study.path.matrices:
        raise ConfigError(
            "privacy.personal: sums of a window have one noise for all its records; set "
            'estimator.path.releases = "gradients", or remove it'
        )
    if study.privacy.epsilon != max(personal.levels.values()):
        raise ConfigError(
            "privacy.personal.levels: the largest must be privacy.epsilon, which is what the study "
            f"may cost any record; here it is {max(personal.levels.values()):g}"
        )
    if personal.column in (*study.data.features, study.data.response.name):
        raise ConfigError(
            "privacy.personal.column: must be a column of its own, not a feature or the response: "
            "the noise of a record shows its level to everybody"
        )


def require_no_level_column(study: Study, doing: str) -> None:
    """Refuse a study in which a column says how private each record is.

    Parameters
    ----------
    doing
        What does not read it, such as "a backtest".

    Raises
    ------
    ConfigError
        If there is such a column.
    """
    personal = study.privacy.personal
    if personal is not None and personal.column is not None:
        raise ConfigError(
            f"privacy.personal.column: {doing} does not read levels of records; remove column, so "
            "that all have the strictest, or use `veilstream fit`"
        )
