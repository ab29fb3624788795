"""Reading a study: errors name the key, what is allowed and an example."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.methods import METHODS, OFFLINE, load, load_live, method_of
from pipeline.methods.base import Method
from pipeline.release.policy import growth_of
from pipeline.study.data import RESPONSES, WIDEST, Feature, check_features, check_keys
from pipeline.study.encoding import check_reach
from pipeline.study.model import DEFAULT_KIND, Study
from pipeline.study.tables import check_known, near, strict

#: No residual bound is larger, in widths of the response's range: it only adds noise.
WIDTHS = 10
#: Keys of the estimator that belong to one loss or one kind of response.
_OWNERS = {
    "smoothing": ("gdwd",),
    "residual_bound": ("linear", "expectile"),
    "tau": ("expectile",),
    "noise_scale": ("linear",),
}


#: What says which study it is: the study, a path, or the text of a study file.
StudySource: TypeAlias = Study | Path | str


def read_study(source: StudySource) -> Study:
    """Return the study; a string with a line break is the text of its file, else its path.

    Raises ConfigError if it cannot be read, or says something that is not allowed.
    """
    if isinstance(source, Study):
        return source
    if isinstance(source, str) and "\n" in source:
        return parse_study(source)
    return load_study(Path(source))


#: A longer half-life is none.
LONGEST_HALF_LIFE = 1e15
#: A growth written with so few digits means one over a whole number.
SAME = 0.005


def load_study(path: Path | str) -> Study:
    """Read and check the study file at `path`.

    Raises ConfigError if the file cannot be read, is not TOML, or says something that is not
    allowed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the study file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the study file {path} is not UTF-8 text") from error
    return parse_study(text, name=str(path))


def parse_study(text: str, *, name: str = "study file") -> Study:
    """Check the text of a study file; `name` stands in the messages.

    Raises ConfigError as `load_study`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{name} is not valid TOML: {error}; texts are written in quotes, as are names with "
            "spaces, dots or accents; numbers have a point, and commas separate what is in { }"
        ) from error
    return study_of(tables, name=name)


def study_of(tables: dict[str, Any], *, name: str) -> Study:
    """Check the tables of a study; `name` stands in the messages.

    Raises ConfigError if they say something that is not allowed.
    """
    try:
        # nobody says which feature it is that is wrong
        study = strict(tables, Study, hidden=lambda: _faulty_feature(tables))
        study = unpenalised(study, tables["estimator"])
        check_consistency(study)
        study = completed(study, tables["estimator"])
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return study


def check_consistency(study: Study) -> None:
    """Refuse combinations that no single key shows.

    Raises ConfigError, naming the keys and the way out.
    """
    features, interactions = study.data.features, study.data.interactions
    check_features(features, interactions)
    before = study.study.before
    if study.name in before:
        raise ConfigError(
            "study.follows: a study cannot follow itself; give the changed study a new name, for "
            f'example name = "{study.name[:61]}-2"'
        )
    if len(set(before)) < len(before):
        raise ConfigError("study.follows: each study once, the newest first; remove the others")
    if study.data.response.name in features:
        raise ConfigError(f"data.response.name: {study.data.response.name!r} is also a feature")
    check_reach(study.encoding)
    check_response(study)
    check_kind(study)
    _check_forgetting(study)
    _check_privacy(study)
    _check_window(study)
    _check_rate(study)
    _check_share(study)


def _check_window(study: Study) -> None:
    window = study.window
    if window.growth and abs(window.growth * (window.divisor or 0) - 1) > SAME:
        raise ConfigError(
            "window.growth: 0, or one over a whole number, such as 0.1 or 0.05; for example "
            f"growth = {1 / (window.divisor or 1):.3g}"
        )
    if window.most is not None and window.most < window.records:
        raise ConfigError(
            f"window.most: at least window.records, here {window.records}; for example most = "
            f"{max(1_000_000, window.records)}"
        )


def _check_rate(study: Study) -> None:
    rate = study.trust.rate if study.trust is not None else None
    if rate is not None and rate.releases >= rate.of:
        raise ConfigError(
            "trust.rate.releases: below trust.rate.of, or it refuses nothing; for example "
            "rate = { releases = 10, of = 1000 }; or remove trust.rate"
        )


def _check_share(study: Study) -> None:
    limit = study.largest_share
    if limit is None:
        return
    if not study.authenticated:
        raise ConfigError(
            "trust.largest_share: in an open study one client can take many ids; set "
            'trust.releases = "authenticated", or remove it'
        )
    if not study.noised:
        raise ConfigError(
            "trust.largest_share: bounds nothing where privacy.mechanism is none, since one "
            "release can hold any sums; remove it"
        )
    if study.estimator.forgetting is not None:
        raise ConfigError(
            "trust.largest_share: counts releases from the start, and with estimator.forgetting "
            "old ones weigh nothing; use trust.rate instead"
        )
    if limit.share * limit.after < 1:
        raise ConfigError(
            "trust.largest_share.after: share times after must be 1 or more, or no client can "
            "begin; raise it"
        )


def _check_forgetting(study: Study) -> None:
    forgetting = study.estimator.forgetting
    if forgetting is None:
        return
    window = study.window.records if forgetting.of == "records" else study.window.seconds or 1.0
    # written so that what is no number fails
    if not window <= forgetting.half_life <= LONGEST_HALF_LIFE:
        raise ConfigError(
            f"estimator.forgetting.half_life: at least one window, here {window:g} "
            f"{forgetting.of}, and at most {LONGEST_HALF_LIFE:g}; for example half_life = 50000"
        )


def _check_privacy(study: Study) -> None:
    privacy = study.privacy
    if (privacy.seed is not None) != (privacy.mechanism == "insecure-simulation"):
        raise ConfigError(
            'privacy.seed: goes with mechanism = "insecure-simulation" and must be given there, '
            "for example seed = 1; real noise has no seed"
        )
    if privacy.mechanism == "none":
        if privacy.epsilon is not None or privacy.delta is not None:
            raise ConfigError(
                'privacy.mechanism = "none" keeps no guarantee: remove epsilon and delta, or set '
                'mechanism = "discrete-gaussian"'
            )
        return
    pure = privacy.mechanism == "discrete-laplace"
    for key, example in (("epsilon", "1.0"), ("delta", "1e-6")):
        if getattr(privacy, key) is None and not (key == "delta" and pure):
            raise ConfigError(
                f"privacy.{key}: must be given; there is no default budget; for example "
                f"{key} = {example}"
            )
    if pure and privacy.delta is not None:
        raise ConfigError(
            "privacy.delta: discrete-laplace keeps a pure epsilon; remove delta, or set mechanism "
            '= "discrete-gaussian"'
        )
    if privacy.neighbours == "add-remove":
        raise ConfigError(
            'privacy.neighbours: "add-remove" does not fit windows of a fixed number of slots, '
            "because one inserted record shifts every later window and so touches every later "
            "release; use zero-out or replace-one"
        )
    if (privacy.unit == "user") != (privacy.records is not None):
        raise ConfigError(
            'privacy.records: goes with unit = "user" and says how many records one user has at '
            "most in the whole study, for example records = 20"
        )


def _faulty_feature(tables: dict[str, Any]) -> str:
    """Return the name of the first feature that is wrong; the library does not say."""
    data = tables.get("data")
    features = data.get("features") if isinstance(data, dict) else None
    for feature, bounds in (features if isinstance(features, dict) else {}).items():
        try:
            msgspec.convert(bounds, Feature, strict=True)
        except msgspec.ValidationError:
            return str(feature)
    return "..."


def check_key(key: str) -> None:
    """Refuse a key, such as `estimator.level`, that no study file can have.

    Raises ConfigError, naming what is allowed in its place.
    """
    check_known(key, Study)


def check_kind(study: Study) -> None:
    """Refuse an unknown kind, and keys that do not go with a known one.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    kind, estimator = study.estimator.kind, study.estimator
    if not study.data.features and not (kind in METHODS and not load_live(kind).spec.features):
        raise ConfigError(
            "data.features: needs at least one entry with its public range, or its levels; "
            "example: sensor_1 = { min = 20, max = 120 }"
        )
    if kind in OFFLINE:
        load(kind).check(study)
        return
    if kind not in METHODS:
        meant = near(kind, [*METHODS, *OFFLINE])
        raise ConfigError(
            f"estimator.kind: unknown kind{meant}; allowed: {', '.join(METHODS)}, which run live, "
            f'and for `veilstream fit` {", ".join(OFFLINE)}; example: kind = "{DEFAULT_KIND}"'
        )
    method, spec = method_of(study), method_of(study).spec
    tables = [name for name in ("method", "path") if getattr(estimator, name) is not None]
    if others := [name for name in tables if name != spec.table]:
        raise ConfigError(
            f'estimator.{others[0]}: kind = "{kind}" has no keys in this table; remove it, or '
            f"choose the kind that it belongs to{_with(lambda m: m.spec.table == others[0])}"
        )
    if estimator.loss not in spec.losses:
        raise ConfigError(
            f'estimator.loss: kind = "{kind}" has {", ".join(spec.losses)}; choose one of them, '
            f"or a kind that has this one{_with(lambda m: estimator.loss in m.spec.losses)}"
        )
    if spec.needs_noise and not study.noised:
        raise ConfigError(f"privacy.mechanism: {spec.needs_noise}")
    if study.privacy.personal is not None and not spec.personal_levels:
        raise ConfigError(
            "privacy.personal: records can have levels of their own where each is noised by "
            f'itself, and kind = "{kind}" noises sums of them; remove it, or choose another '
            f"estimator.kind{_with(lambda m: m.spec.personal_levels)}"
        )
    growth_of(study, grows=method.grows(study))
    if study.privacy.noise_memory and not method.remembers(study):
        raise ConfigError(
            "privacy.noise_memory: the noise of a release can remember those before it where it is "
            "Gaussian, nothing is forgotten, and the kind allows it"
            f"{_with(lambda m: m.remembers(study))}; remove it, or set noise_memory = 0"
        )


def check_response(study: Study) -> None:
    """Refuse a response and a loss that do not fit, and keys that belong to another.

    Raises ConfigError, naming the keys and the way out.
    """
    response, estimator = study.data.response, study.estimator
    check_keys(response)
    if estimator.loss not in losses.NAMES:
        raise ConfigError(
            f"estimator.loss: unknown loss{near(estimator.loss, losses.NAMES)}; allowed: "
            f'{", ".join(losses.NAMES)}; example: loss = "{losses.NAMES[0]}"'
        )
    kind = losses.build(estimator.loss).responses
    if kind != response.kind:
        raise ConfigError(
            f'estimator.loss: "{estimator.loss}" explains a {kind}, and data.response.kind is '
            f'"{response.kind}"; example: response = {RESPONSES[kind]}'
        )
    for key, owners in _OWNERS.items():
        if getattr(estimator, key) is not None and estimator.loss not in owners:
            named = " or ".join(f'"{owner}"' for owner in owners)
            raise ConfigError(f"estimator.{key}: belongs to loss = {named}; remove it")
    if estimator.class_weights is not None and response.kind != "class":
        raise ConfigError("estimator.class_weights: this response has no classes; remove it")
    _check_smoothing(estimator.q, estimator.smoothing)
    width = response.ends[1] - response.ends[0]
    bound, scale = estimator.residual_bound, estimator.noise_scale
    most = WIDTHS * width
    if bound is not None and not 1e-6 * width <= bound <= most:
        raise ConfigError(
            "estimator.residual_bound: must be at least a millionth of the width of the response's "
            f"range, and at most {WIDTHS} times it, here {most:g}"
        )
    if scale is not None and not 1 / WIDEST <= scale <= width:
        raise ConfigError(
            f"estimator.noise_scale: must be at least {1 / WIDEST:g}, and at most the width of the "
            f"response's range, here {width:g}: no response in it deviates by more"
        )


def _check_smoothing(q: float, smoothing: float | None) -> None:
    most = losses.GeneralisedDWD.most_smoothing(q)
    if smoothing is not None and not 0 < smoothing <= most:
        raise ConfigError(
            "estimator.smoothing: belongs to gdwd and lies in (0, min(1, 2 / (q + 1)) q / (q + 1)]"
            f", here (0, {most:.6g}]"
        )


def unpenalised(study: Study, given: Container[str]) -> Study:
    """Return a study without the default ridge where its kind has none; `given` as `completed`."""
    kind = study.estimator.kind
    if "ridge" in given or kind not in METHODS or load_live(kind).spec.penalised:
        return study
    return msgspec.structs.replace(
        study, estimator=msgspec.structs.replace(study.estimator, ridge=0.0)
    )


def completed(study: Study, given: Container[str]) -> Study:
    """Return a checked study with what its method fills in; `given` are its estimator's keys."""
    kind = study.estimator.kind
    return method_of(study).resolve(study, given) if kind in METHODS else study


def _with(allowed: Callable[[Method[Any]], bool]) -> str:
    """Return the kinds that are allowed, in brackets; nothing if there is none."""
    kinds = [kind for kind in METHODS if allowed(load_live(kind))]
    return f" ({', '.join(kinds)})" if kinds else ""
