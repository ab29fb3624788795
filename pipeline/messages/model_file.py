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
from pipeline.messages.results import FitMessage
from pipeline.privacy.guarantee import Guarantee
from pipeline.records.features import ClassResponse, Features
from pipeline.release.task import Task
from pipeline.study.data import OF_TRIALS, Feature, Response, check_features, check_keys
from pipeline.study.encoding import Encoding

TYPE = "model-file/1"
_ADVICE = "name a file that `--save-model` of `veilstream fit` or `veilstream watch` has written"


class NamedFeature(Feature, frozen=True, kw_only=True, omit_defaults=True):
    """A feature as its study declares it: values beyond its range are clipped."""

    name: Annotated[str, Meta(min_length=1)]


class ModelFile(msgspec.Struct, frozen=True, tag=TYPE, tag_field="type"):
    """One estimate, ready for predictions.

    response: The response column with its classes or its public range, as the study file declares
        it.
    coefficients: The intercept, then one for each column of the features in their order, and of
        their interactions, on the scaling and in the unit of the response.
    level: Confidence level of the intervals.
    class_weights: Of the classes at the time of the estimate: probabilities are those under them.
    privacy: The guarantee of the releases behind the coefficients; it holds for the file as well.
    status: That of a live estimate; of a published method "ready" with intervals and "point"
        without.
    state_version, published_at: Which estimate it was.
    labels: Of the negative and the positive class, as the records of a fit have them; empty: the
        texts of the response.
    """

    study: str
    study_revision: str
    loss: str
    scaling: Literal["unit", "none"]
    response: Response
    features: Annotated[list[NamedFeature], Meta(min_length=1, max_length=1000)]
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
    interactions: list[str] = []
    labels: list[bool | int | float | str] = []


class _Kind(msgspec.Struct):
    type: str


def compose_model_file(task: Task, message: EstimateMessage | FitMessage) -> ModelFile:
    """Join an estimate, or the fit of a published method, with what its study declares.

    Raises ConfigError if the estimate belongs to another study or revision; NumericError if nothing
    has been folded yet.
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
        features=[
            NamedFeature(name=name, **msgspec.structs.asdict(feature))
            for name, feature in data.features.items()
        ],
        interactions=data.interactions,
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

    ConfigError, naming both.
    """
    if study != task.study.name:
        advice = "the operator must name the two that belong together"
        if study.endswith(OF_TRIALS) and not task.study.name.endswith(OF_TRIALS):
            advice = "a trial made it, so put `veilstream play` in the place of `veilstream`"
        raise ConfigError(
            f"{what} belongs to study {study!r}, and the study file is that of "
            f"{task.study.name!r}; {advice}"
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

    ConfigError if it is none, one of another version, or its parts do not fit each other.
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
        return
    features = {feature.name: feature for feature in model.features}
    try:
        check_features(features, model.interactions)
        check_keys(model.response)
    except ConfigError as error:
        yield str(error).removeprefix("data.")
        return
    encoding = features_of(model).encoding
    if [coefficient.name for coefficient in model.coefficients] != ["intercept", *encoding.columns]:
        yield (
            "coefficients: they must be the intercept and then the columns of the features, in "
            "their order"
        )
        return
    if model.loss not in losses.NAMES:
        yield f"loss: this program knows {', '.join(losses.NAMES)}"
    elif losses.build(model.loss).responses != model.response.kind:
        yield "response: its kind is not the one that the loss explains"
    declared = ClassResponse(model.response.name, *reversed(model.response.classes))
    if model.labels and tuple(model.labels) != declared.labels(model.labels[0]):
        yield "labels: they are not those of the response's classes"
    # one predictor that is not finite would end a stream of predictions
    if not math.isfinite(_largest_predictor(model, encoding)):
        yield "coefficients: they are too large for the ranges"


def features_of(model: ModelFile) -> Features:
    """Return the features of a model file, to read records with."""
    declared = {feature.name: feature for feature in model.features}
    return Features(declared, model.interactions, unit=model.scaling == "unit")


def _largest_predictor(model: ModelFile, encoding: Encoding) -> float:
    intercept, *slopes = (abs(coefficient.value) for coefficient in model.coefficients)
    widest: list[float] = encoding.magnitudes.tolist()
    return intercept + sum(slope * reach for slope, reach in zip(slopes, widest, strict=True))
