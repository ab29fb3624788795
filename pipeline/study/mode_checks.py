"""Which keys go with which `estimator.kind`, and the refusal of the live commands."""

from __future__ import annotations

from pipeline.errors import ConfigError
from pipeline.study.model import Study
from pipeline.study.modes import LIVE, MODES, Mode, Reproduction

#: Losses of two classes: the published methods know no other response.
CLASSIFICATION: tuple[str, ...] = ("gdwd", "logistic")
_KEEP = f'kind = "{LIVE}" is the one that keeps a guarantee'


def check_mode(study: Study) -> None:
    """Refuse keys that do not go with `estimator.kind`.

    Raises
    ------
    ConfigError
        Naming the key, what is allowed and the way out.
    """
    estimator, mode = study.estimator, MODES[study.estimator.kind]
    given = estimator.reproduction or Reproduction()
    for key in given.given:
        if key not in mode.keys:
            taken = ", ".join(mode.keys) or "no key of this table"
            raise ConfigError(
                f'estimator.reproduction.{key}: does not belong to kind = "{estimator.kind}", '
                f"which takes {taken}; remove it, or choose a kind that has it: "
                f"{', '.join(_kinds_with(key))}"
            )
    if estimator.kind == LIVE:
        return
    _check_guarantee(study, mode)
    if estimator.forgetting is not None:
        raise ConfigError(
            f'estimator.forgetting: kind = "{estimator.kind}" weighs all records alike, as '
            f'published; remove the key, or set kind = "{LIVE}"'
        )
    for key in mode.required:
        if key not in given.given:
            raise ConfigError(
                f'estimator.reproduction.{key}: must be given with kind = "{estimator.kind}"; '
                f"there is no default; for example {key} = {_EXAMPLES[key]}"
            )
    if estimator.loss not in CLASSIFICATION:
        raise ConfigError(
            f'estimator.loss: kind = "{estimator.kind}" has {", ".join(CLASSIFICATION)}; choose '
            f'one of them, or kind = "{LIVE}"'
        )
    if estimator.class_weights is not None and not mode.weighted:
        raise ConfigError(
            f'estimator.class_weights: kind = "{estimator.kind}" has none, as published; remove '
            f"the key, or choose a kind that has them: {', '.join(_kinds_with('class_weights'))}"
        )
    _check_matrix(study, mode, given)


def require_live(study: Study, doing: str) -> None:
    """Refuse to stream a study whose kind needs what a stream of releases cannot give.

    Parameters
    ----------
    doing
        Who asks, such as "a worker".

    Raises
    ------
    ConfigError
        Saying why, and what to use instead.
    """
    mode = MODES[study.estimator.kind]
    if mode.needs:
        raise ConfigError(
            f'estimator.kind = "{study.estimator.kind}" needs {mode.needs}, so {doing} cannot use '
            f'it: set kind = "{LIVE}" for a live stream, or run `veilstream fit` for this kind'
        )


def _check_guarantee(study: Study, mode: Mode) -> None:
    """Refuse a budget next to a method that does not keep it: it would be a false promise."""
    if study.privacy.mechanism == "none":
        return
    claim = "put epsilon into [estimator.reproduction], as a claim; " if mode.noised else ""
    raise ConfigError(
        f'privacy.mechanism: kind = "{study.estimator.kind}" does not keep the guarantee of a '
        f'study, so only "none" is allowed, without epsilon and delta; {claim}{_KEEP}'
    )


def _check_matrix(study: Study, mode: Mode, given: Reproduction) -> None:
    matrix, kind = given.ridge_matrix or "intercept-free", study.estimator.kind
    if given.ridge_matrix and matrix not in mode.ridge_matrices:
        raise ConfigError(
            f'estimator.reproduction.ridge_matrix: kind = "{kind}" has '
            f"{', '.join(mode.ridge_matrices)}: where the fit converges, the printed curvature "
            "gives the same coefficients as intercept-free"
        )
    ridged = given.ridge_matrix in ("identity", "as-printed") and study.estimator.ridge > 0
    if "stabiliser" in mode.keys and not (ridged or given.stabiliser):
        raise ConfigError(
            f'estimator.reproduction.stabiliser: kind = "{kind}" has no noise scale without a '
            "curvature that is positive in every direction: set stabiliser > 0, or ridge_matrix = "
            '"identity" (or "as-printed") with estimator.ridge > 0'
        )
    from_zero = kind == "federated-newton-undamped" or given.start == "one-step"
    if from_zero and study.estimator.loss == "gdwd" and not ridged:
        raise ConfigError(
            "estimator.reproduction.ridge_matrix: gdwd has no curvature at zero, so a first step "
            "from there needs a ridge > 0 on every coefficient: set ridge_matrix = "
            '"identity" (or "as-printed") and estimator.ridge > 0, or another kind or start'
        )


def _kinds_with(key: str) -> list[str]:
    if key == "class_weights":
        return [kind for kind, mode in MODES.items() if mode.weighted]
    return [kind for kind, mode in MODES.items() if key in mode.keys]


_EXAMPLES = {"rounds": "1", "epsilon": "0.8", "delta": "1e-5", "seed": "1"}
