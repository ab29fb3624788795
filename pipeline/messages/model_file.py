"""The model file: an estimate with all that a prediction needs, as JSON with a published schema.

It holds what the estimate holds and what the study file declares, nothing else: it may go wherever
the estimate may go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline import losses
from pipeline.errors import ConfigError, NumericError
from pipeline.messages.estimate import Coefficient, EstimateMessage, Finite
from pipeline.messages.fit import FitMessage
from pipeline.privacy.policy import Guarantee
from pipeline.release.task import Task
from pipeline.study.families import WIDEST, check_keys
from pipeline.study.model import Response

TYPE = "model-file/1"
_ADVICE = "name a file that `--save-model` of `veilstream fit` or `veilstream watch` has written"


class FeatureRange(msgspec.Struct, frozen=True):
    """A feature with its public range: values beyond it are clipped."""

    name: Annotated[str, Meta(min_length=1)]
    min: Finite
    max: Finite


class ModelFile(msgspec.Struct, frozen=True, tag=TYPE, tag_field="type"):
    """One estimate, ready for predictions.

    Attributes
    ----------
    response
        The response column with its classes or its public range, as the study file declares it.
    coefficients
        The intercept, then one for each feature in the order of `features`, on the scaling and in
        the unit of the response.
    level
        Confidence level of the intervals.
    class_weights
        Of the classes at the time of the estimate: probabilities are those under them.
    privacy
        The guarantee of the releases behind the coefficients; it holds for the file as well.
    status
        That of a live estimate; of a published method "ready" with intervals and "point" without.
    state_version, published_at
        Which estimate it was.
    """

    study: str
    study_revision: str
    loss: str
    scaling: Literal["unit", "none"]
    response: Response
    features: Annotated[list[FeatureRange], Meta(min_length=1, max_length=1000)]
    coefficients: Annotated[list[Coefficient], Meta(min_length=2, max_length=1001)]
    level: Finite
    class_weights: dict[str, float]
    status: Literal["starting", "warming", "ready", "point"]
    reason: str
    records: Annotated[int, Meta(ge=0)]
    releases: Annotated[int, Meta(ge=0)]
    privacy: Guarantee
    state_version: int
    published_at: str


class _Kind(msgspec.Struct):
    type: str


def compose_model_file(task: Task, message: EstimateMessage | FitMessage) -> ModelFile:
    """Join an estimate, or the fit of a published method, with what its study declares.

    Raises
    ------
    ConfigError
        If the estimate belongs to another study or revision.
    NumericError
        If nothing has been folded yet.
    """
    check_origin(task, message.study, message.study_revision, "the estimate")
    live = message if isinstance(message, EstimateMessage) else None
    data = task.study.data
    return ModelFile(
        study=message.study,
        study_revision=message.study_revision,
        loss=message.loss,
        scaling=data.scaling,
        response=data.response,
        features=[FeatureRange(name, r.min, r.max) for name, r in data.features.items()],
        coefficients=message.coefficients,
        level=message.level,
        class_weights=message.class_weights,
        status=_status(message),
        reason=message.reason,
        records=message.records,
        releases=live.releases if live else 0,
        privacy=message.privacy,
        state_version=live.state_version if live else 0,
        published_at=message.published_at,
    )


def _status(
    message: EstimateMessage | FitMessage,
) -> Literal["starting", "warming", "ready", "point"]:
    if isinstance(message, FitMessage):
        return "point" if message.interval_method == "none" else "ready"
    if message.status == "empty":
        raise NumericError(f"there is nothing to predict with: {message.reason}")
    return message.status


def check_origin(task: Task, study: str, revision: str, what: str) -> None:
    """Refuse what belongs to another study, or to another revision of it.

    Raises
    ------
    ConfigError
        Naming both.
    """
    if study != task.study.name:
        raise ConfigError(
            f"{what} belongs to study {study!r}, and the study file is that of "
            f"{task.study.name!r}; the operator must name the two that belong together"
        )
    if revision != task.revision:
        raise ConfigError(
            f"{what} belongs to revision {revision} of study {study!r}, and the study file is "
            f"revision {task.revision}: ranges, response, estimator, privacy or window differ; the "
            "operator must restore the study file, or make a model of this revision"
        )


def write_model_file(model: ModelFile) -> bytes:
    """Write a model file: JSON, indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(model), indent=2) + b"\n"


def read_model_file(payload: bytes) -> ModelFile:
    """Read a model file.

    Raises
    ------
    ConfigError
        If it is none, one of another version, or its parts do not fit each other.
    """
    try:
        model = msgspec.json.decode(payload, type=ModelFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(_explain(payload, error)) from None
    for fault in _faults(model):
        raise ConfigError(f"{fault}; {_ADVICE}")
    return model


def _explain(payload: bytes, error: Exception) -> str:
    """Say what a payload is instead of a model file."""
    try:
        kind = msgspec.json.decode(payload, type=_Kind).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"it is no model file of this program; {_ADVICE}"
    if kind.startswith("model-file/") and kind != TYPE:
        return f"its version is not {TYPE}, which this program reads; {_ADVICE}"
    if kind.startswith("estimate/"):
        return f"it holds an estimate alone, without the study's ranges and response; {_ADVICE}"
    if kind != TYPE:
        return f"it is no model file of this program; {_ADVICE}"
    return f"it is damaged: {error}; {_ADVICE}"


def _faults(model: ModelFile) -> Iterator[str]:
    """Yield how the parts of a model contradict each other."""
    names = [feature.name for feature in model.features]
    if len(set(names)) != len(names):
        yield "features: two have the same name"
    if [coefficient.name for coefficient in model.coefficients] != ["intercept", *names]:
        yield "coefficients: they must be the intercept and then the features, in their order"
        return
    if model.loss not in losses.NAMES:
        yield f"loss: this program knows {', '.join(losses.NAMES)}"
    elif losses.build(model.loss).responses != model.response.kind:
        yield "response: its kind is not the one that the loss explains"
    try:
        check_keys(model.response)
    except ConfigError as error:
        yield str(error).removeprefix("data.")
    for feature in model.features:
        widest = max(abs(feature.min), abs(feature.max))
        if not (feature.max - feature.min >= 1 / WIDEST and widest <= WIDEST):
            yield f"features: {feature.name!r} needs min below max, within +-{WIDEST:g}"
    # one predictor that is not finite would end a stream of predictions
    if not math.isfinite(_largest_predictor(model)):
        yield "coefficients: they are too large for the ranges"


def _largest_predictor(model: ModelFile) -> float:
    intercept, *slopes = (abs(coefficient.value) for coefficient in model.coefficients)
    widest = (
        1.0 if model.scaling == "unit" else max(abs(feature.min), abs(feature.max))
        for feature in model.features
    )
    return intercept + sum(slope * reach for slope, reach in zip(slopes, widest, strict=True))
