"""Study files: every key, what is refused and how, and what a revision is of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods import revision_of, task_of
from pipeline.methods.renewable import method as renewable
from pipeline.records.encoder import Encoder
from pipeline.study.versions import without_privacy
from pipeline.study_file.edit import TEMPLATE
from pipeline.study_file.load import load_study, parse_study
from tests.builders import study_text

BASE = """\
[study]
name = "base"
description = "text"

[data]
response = { name = "y", positive = "1", negative = "0", kind = "class" }
scaling = "unit"

[data.features]
heat = { min = -40, max = 120 }
force = { min = 0, max = 10 }

[estimator]
kind = "renewable"
loss = "gdwd"
q = 1.0
smoothing = 0.25
ridge = 1e-3
norm_bound = 1.5
class_weights = { maximum = 8.0 }
level = 0.95

[privacy]
mechanism = "discrete-gaussian"
epsilon = 1.0
delta = 1e-6
unit = "record"
neighbours = "zero-out"
split = { gradient = 0.7, curvature = 0.25, counts = 0.05 }

[window]
records = 250
seconds = 60

[stream]
partitions = 2
replication = 1
retention = "30d"
max_in_flight_windows = 4
publish = { releases = 8, seconds = 0.5, pause = 0.1 }

[trust]
releases = "open"
"""


def changed(old: str, new: str) -> str:
    assert BASE.count(old) == 1, old
    return BASE.replace(old, new)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_study(text, name="file.toml")
    message = str(caught.value)
    assert message.startswith("file.toml: ")
    return message


def test_the_template_and_the_base_are_accepted() -> None:
    task_of(parse_study(TEMPLATE))
    task_of(parse_study(BASE))


REAL, SIMULATED = 'mechanism = "discrete-gaussian"', 'mechanism = "insecure-simulation"'
BUDGET = f"{REAL}\nepsilon = 1.0\ndelta = 1e-6"
LAPLACE = 'mechanism = "discrete-laplace"'

#: Every key of the file: what is written, something outside its range, its full name.
KEYS = [
    ('name = "base"', 'name = "Base!"', "study.name"),
    ('name = "base"', 'name = "base\\n"', "study.name"),
    ('description = "text"', "description = 3", "study.description"),
    ('name = "y"', 'name = ""', "data.response.name"),
    ('positive = "1"', "positive = 1", "data.response.positive"),
    ('kind = "class"', 'kind = "text"', "data.response.kind"),
    ('scaling = "unit"', 'scaling = "sd"', "data.scaling"),
    ("min = -40", 'min = "a"', "data.features.heat.min"),
    ("max = 10", "max = true", "data.features.force.max"),
    ('kind = "renewable"', 'kind = "other"', "estimator.kind"),
    ('loss = "gdwd"', 'loss = "hinge"', "estimator.loss"),
    ("q = 1.0", "q = 0.0", "estimator.q"),
    ("smoothing = 0.25", 'smoothing = "a"', "estimator.smoothing"),
    ("ridge = 1e-3", "ridge = -1.0", "estimator.ridge"),
    ("norm_bound = 1.5", "norm_bound = 1.0", "estimator.norm_bound"),
    ("maximum = 8.0", "maximum = 0.5", "estimator.class_weights.maximum"),
    ("level = 0.95", "level = 1.0", "estimator.level"),
    ('mechanism = "discrete-gaussian"', 'mechanism = "laplace"', "privacy.mechanism"),
    ("epsilon = 1.0", "epsilon = 0.0", "privacy.epsilon"),
    ("epsilon = 1.0", "epsilon = nan", "privacy.epsilon"),
    ("delta = 1e-6", "delta = 0.0", "privacy.delta"),
    (REAL, f"{SIMULATED}\nseed = -1", "privacy.seed"),
    ('unit = "record"', 'unit = "device"', "privacy.unit"),
    ('unit = "record"', 'unit = "user"\nrecords = 0', "privacy.records"),
    ('neighbours = "zero-out"', 'neighbours = "both"', "privacy.neighbours"),
    ("gradient = 0.7", "gradient = 0.0", "privacy.split.gradient"),
    ("counts = 0.05", "counts = -0.1", "privacy.split.counts"),
    ("records = 250", "records = 0", "window.records"),
    ("records = 250", "records = 2.5", "window.records"),
    ("seconds = 60", "seconds = 0", "window.seconds"),
    ("partitions = 2", "partitions = 0", "stream.partitions"),
    ("replication = 1", "replication = 0", "stream.replication"),
    ('retention = "30d"', 'retention = "30 days"', "stream.retention"),
    ('retention = "30d"', 'retention = "30d\\n"', "stream.retention"),
    ("max_in_flight_windows = 4", "max_in_flight_windows = -1", "stream.max_in_flight_windows"),
    ("releases = 8", "releases = 0", "stream.publish.releases"),
    ("seconds = 0.5", "seconds = 0.01", "stream.publish.seconds"),
    ("pause = 0.1", "pause = -1", "stream.publish.pause"),
    ('releases = "open"', 'releases = "closed"', "trust.releases"),
    ('releases = "open"', 'releases = "open"\nkey = "0123"', "trust.key"),
]


@pytest.mark.parametrize(("old", "new", "key"), KEYS, ids=[f"{k[2]}-{k[1]!r}" for k in KEYS])
def test_a_bad_value_is_refused_with_the_key_what_is_allowed_and_an_example(
    old: str, new: str, key: str
) -> None:
    message = refusal(changed(old, new))
    last = key.rsplit(".", maxsplit=1)[-1]
    assert message.startswith(f"file.toml: {key}: ")
    assert "allowed: " in message
    assert re.search(rf"example: {last} = \S", message)


def test_a_kind_that_is_misspelt_is_asked_for() -> None:
    assert "did you mean 'renewable'?" in refusal(changed('"renewable"', '"renewabel"'))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('name = "base"\n', "study.name"),
        ('loss = "gdwd"\n', "estimator.loss"),
        ('mechanism = "discrete-gaussian"\n', "privacy.mechanism"),
        ("records = 250\n", "window.records"),
        ("min = 0, ", "data.features.force.min"),
    ],
)
def test_a_missing_key_is_named_with_an_example(line: str, key: str) -> None:
    message = refusal(changed(line, ""))
    assert message.startswith(f"file.toml: {key}: is required; allowed: ")
    assert "example: " in message


@pytest.mark.parametrize("table", ["study", "estimator", "privacy", "window"])
def test_a_missing_table_is_named(table: str) -> None:
    start = BASE.index(f"[{table}]")
    text = BASE[:start] + BASE[BASE.find("\n[", start) + 1 :]
    wanted = f"file.toml: {table}: is required; allowed: the table [{table}]; example: [{table}]"
    assert wanted in refusal(text)


@pytest.mark.parametrize(
    ("old", "new", "key", "meant"),
    [
        ("q = 1.0", "qq = 1.0", "estimator.qq", None),
        ("ridge = 1e-3", "rigde = 1e-3", "estimator.rigde", "ridge"),
        ("epsilon = 1.0", "epsilom = 1.0", "privacy.epsilom", "epsilon"),
        ("records = 250", "record = 250", "window.record", "records"),
        ("max = 120", "maxx = 120", "data.features.heat.maxx", "max"),
        ("[window]", "[windows]", "windows", "window"),
        ("gradient = 0.7", "gradients = 0.7", "privacy.split.gradients", "gradient"),
        ("maximum = 8.0", "maximun = 8.0", "estimator.class_weights.maximun", "maximum"),
        ("pause = 0.1", "pauses = 0.1", "stream.publish.pauses", "pause"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(
    old: str, new: str, key: str, meant: str | None
) -> None:
    message = refusal(changed(old, new))
    assert message.startswith(f"file.toml: {key}: unknown key")
    assert "Allowed here: " in message
    if meant is not None:
        assert f"did you mean {meant!r}" in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('neighbours = "zero-out"', 'neighbours = "add-remove"', ["add-remove", "zero-out"]),
        ('mechanism = "discrete-gaussian"', 'mechanism = "none"', ["none", "remove epsilon"]),
        ("epsilon = 1.0\n", "", ["privacy.epsilon", "no default", "epsilon = 1.0"]),
        ("delta = 1e-6\n", "", ["privacy.delta", "delta = 1e-6"]),
        (REAL, LAPLACE, ["privacy.delta", "pure epsilon", "remove delta"]),
        (BUDGET, LAPLACE, ["privacy.epsilon", "no default", "epsilon = 1.0"]),
        (REAL, SIMULATED, ["privacy.seed", "must be given", "seed = 1"]),
        (REAL, f"{REAL}\nseed = 1", ["privacy.seed", "real noise has no seed"]),
        (BUDGET, f"{SIMULATED}\nepsilon = 1.0\nseed = 1", ["privacy.delta", "delta = 1e-6"]),
        (BUDGET, f"{SIMULATED}\ndelta = 1e-6\nseed = 1", ["privacy.epsilon", "epsilon = 1.0"]),
        ('unit = "record"', 'unit = "user"', ["privacy.records", "records = 20"]),
        ('unit = "record"', "records = 5", ["privacy.records", "user"]),
        ("min = -40, max = 120", "min = 5, max = 5", ["data.features.heat", "below max"]),
        ("min = -40, max = 120", "min = 0.0, max = -0.0", ["data.features.heat", "below max"]),
        ("min = -40, max = 120", "min = 0, max = 1e-320", ["data.features.heat", "too close"]),
        ("min = -40", "min = nan", ["data.features.heat", "finite"]),
        ("max = 120", "max = 1e101", ["data.features.heat", "finite"]),
        ("smoothing = 0.25", "smoothing = 0.51", ["estimator.smoothing", "0.5"]),
        ("smoothing = 0.25", "smoothing = nan", ["estimator.smoothing"]),
        ('loss = "gdwd"', 'loss = "logistic"', ["estimator.smoothing", "gdwd"]),
        ('name = "y"', 'name = "heat"', ["data.response.name", "feature"]),
        ("heat = {", "intercept = {", ["intercept"]),
        ('negative = "0"', 'negative = "1"', ["different"]),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused_with_the_way_out(
    old: str, new: str, words: list[str]
) -> None:
    message = refusal(changed(old, new))
    assert all(word in message for word in words), message


def test_a_user_with_a_number_of_records_is_accepted_and_gets_that_much_more_noise() -> None:
    alone = task_of(parse_study(BASE))
    user = task_of(parse_study(changed('unit = "record"', 'unit = "user"\nrecords = 20')))
    assert user.budget.event.mu == pytest.approx(alone.budget.event.mu / 20, rel=1e-6)
    assert user.budget.guarantee.mu == pytest.approx(alone.budget.guarantee.mu, rel=1e-6)
    assert user.budget.guarantee.unit_records == 20


def test_the_other_mechanisms_are_accepted_with_what_they_need() -> None:
    pure = task_of(parse_study(changed(BUDGET, f"{LAPLACE}\nepsilon = 1.0")))
    assert (pure.budget.guarantee.epsilon, pure.budget.guarantee.delta) == (1.0, 0.0)
    assert (pure.study.private, pure.study.noised) == (True, True)
    simulated = task_of(parse_study(changed(REAL, f"{SIMULATED}\nseed = 0")))
    assert (simulated.study.private, simulated.study.noised) == (False, True)


def test_a_user_s_slack_grows_with_the_releases_that_hold_their_records() -> None:
    """A user's k records touch up to k releases, so k times as many samples are not exact."""

    def allowed(records: int) -> float:
        task = task_of(
            parse_study(
                changed('unit = "record"', f'unit = "user"\nrecords = {records}').replace(
                    "delta = 1e-6", "delta = 1e-10"
                )
            )
        )
        assert task.budget.guarantee.mu is not None
        return task.budget.guarantee.mu

    assert allowed(10**5) < allowed(1) * (1 - 1e-9)


def test_a_budget_that_cannot_be_kept_is_refused_with_advice_that_helps() -> None:
    with pytest.raises(PrivacyError) as caught:
        task_of(parse_study(changed("delta = 1e-6", "delta = 1e-30")))
    least = float(re.findall(r"at least ([0-9.e-]+)", str(caught.value))[0])
    task_of(parse_study(changed("delta = 1e-6", f"delta = {1.2 * least}")))


def test_the_largest_budget_is_planned_and_a_larger_one_is_refused() -> None:
    usual, largest = (
        task_of(parse_study(changed("epsilon = 1.0", f"epsilon = {e}"))).budget.guarantee.mu
        for e in (1, 20)
    )
    assert usual is not None
    assert largest is not None
    assert largest > usual
    with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
        parse_study(changed("epsilon = 1.0", "epsilon = 20.1"))


def test_the_largest_windows_fit_the_lattice() -> None:
    for epsilon in (1e-4, 1.0, 10.0):
        text = changed("records = 250", "records = 100000")
        task_of(parse_study(text.replace("epsilon = 1.0", f"epsilon = {epsilon}")))


MATTERS = [
    ("min = -40", "min = -41"),
    ("max = 10", "max = 11"),
    ("heat = {", "heat2 = {"),
    ('positive = "1"', 'positive = "yes"'),
    ('negative = "0"', 'negative = "no"'),
    ('name = "y"', 'name = "z"'),
    ('scaling = "unit"', 'scaling = "none"'),
    ('loss = "gdwd"\nq = 1.0\nsmoothing = 0.25', 'loss = "logistic"'),
    ("q = 1.0", "q = 2.0"),
    ("smoothing = 0.25", "smoothing = 0.2"),
    ("ridge = 1e-3", "ridge = 2e-3"),
    ("norm_bound = 1.5", "norm_bound = 1.6"),
    ("norm_bound = 1.5\n", ""),
    ("maximum = 8.0", "maximum = 9.0"),
    ("class_weights = { maximum = 8.0 }\n", ""),
    ("epsilon = 1.0", "epsilon = 1.1"),
    ("delta = 1e-6", "delta = 1e-7"),
    (BUDGET, f"{LAPLACE}\nepsilon = 1.0"),
    (REAL, f"{SIMULATED}\nseed = 1"),
    (REAL, f"{SIMULATED}\nseed = 2"),
    ('unit = "record"', 'unit = "user"\nrecords = 2'),
    ('neighbours = "zero-out"', 'neighbours = "replace-one"'),
    ("gradient = 0.7", "gradient = 0.6"),
    ("records = 250", "records = 251"),
    (
        "heat = { min = -40, max = 120 }\nforce = { min = 0, max = 10 }",
        "force = { min = 0, max = 10 }\nheat = { min = -40, max = 120 }",
    ),
    ('releases = "open"', 'releases = "authenticated"'),
    ('releases = "open"', 'releases = "open"\nrate = { releases = 10, of = 1000 }'),
]

MATTERS_NOT = [
    ('[trust]\nreleases = "open"\n', ""),
    ('releases = "open"', f'releases = "open"\nkey = "{"0a" * 64}"'),
    ('name = "base"', 'name = "other"'),
    ('description = "text"', 'description = "other"'),
    ("level = 0.95", "level = 0.9"),
    ("seconds = 60", "seconds = 61"),
    ("partitions = 2", "partitions = 4"),
    ("replication = 1", "replication = 3"),
    ('retention = "30d"', 'retention = "forever"'),
    ("max_in_flight_windows = 4", "max_in_flight_windows = 0"),
    ("releases = 8", "releases = 9"),
    ("seconds = 0.5", "seconds = 1"),
    ("pause = 0.1", "pause = 0"),
    ("min = -40", "min = -40.0"),
    ("norm_bound = 1.5", "norm_bound = 1.50 # same"),
    ('kind = "renewable"\n', ""),
    ('scaling = "unit"\n', ""),
]


@pytest.mark.parametrize(("old", "new"), MATTERS)
def test_the_revision_changes_with_what_a_release_means(old: str, new: str) -> None:
    one, two = revision_of(parse_study(BASE)), revision_of(parse_study(changed(old, new)))
    assert one != two
    assert re.fullmatch("[0-9a-f]{16}", two)


@pytest.mark.parametrize(("old", "new"), MATTERS_NOT)
def test_the_revision_stays_with_names_rhythm_and_spelling(old: str, new: str) -> None:
    assert revision_of(parse_study(BASE)) == revision_of(parse_study(changed(old, new)))


def test_the_start_of_a_noised_logistic_study_has_a_meaning_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its releases have half the noise: a worker of before must not read one, and no other less."""
    logistic = changed('loss = "gdwd"\nq = 1.0\nsmoothing = 0.25', 'loss = "logistic"')
    opened = re.sub(r"(?s)mechanism = .*?\n\n", 'mechanism = "none"\n\n', logistic)
    studies = [parse_study(text) for text in (BASE, opened, logistic)]
    after = [revision_of(study) for study in studies]
    monkeypatch.setattr(renewable, "START_SEMANTICS", {})
    before = [revision_of(study) for study in studies]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, True, False]


def test_all_revisions_that_matter_differ_from_each_other() -> None:
    revisions = {revision_of(parse_study(changed(old, new))) for old, new in MATTERS}
    assert len(revisions) == len(MATTERS)


def test_the_order_of_tables_does_not_matter() -> None:
    start = BASE.index("[window]")
    text = BASE[start:] + "\n" + BASE[:start]
    assert revision_of(parse_study(text)) == revision_of(parse_study(BASE))


def test_a_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_study(tmp_path / "none.toml")
    path = tmp_path / "study.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_study(path)
    path.write_text("[study", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_study(path)
    path.write_text(BASE, encoding="utf-8")
    assert load_study(path).name == "base"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("min = -40, max = 120", "min = 0, max = 5e-324", "data.features.heat"),
        ("min = -40, max = 120", "min = -1.7e308, max = 1.7e308", "data.features.heat"),
        ("q = 1.0\nsmoothing = 0.25", "q = 1e-320", "estimator.q"),
    ],
)
def test_extreme_numbers_are_refused_by_the_name_of_their_field(
    old: str, new: str, field: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(field)):
        parse_study(changed(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("min = -40, max = 120", "min = -1e100, max = 1e100"),
        ("q = 1.0\nsmoothing = 0.25", "q = 1e-6"),
        ("q = 1.0\nsmoothing = 0.25", "q = 1000.0"),
    ],
)
def test_the_most_extreme_numbers_that_are_allowed_are_planned_and_encoded(
    old: str, new: str
) -> None:
    study = parse_study(changed(old, new))
    task_of(study)
    row = Encoder(study).encode({"y": "1", "heat": 0, "force": 3})
    assert all(-1 <= value <= 1 for value in row.features)


LINEAR = study_text(p=2, loss="linear", least=0.0, most=100.0)
POISSON = study_text(p=2, loss="poisson", most=50.0)
CLASSES = study_text(p=2, loss="logistic")
NUMBER = '{ name = "y", kind = "number", min = 0.0, max = 100.0 }'
COUNT = '{ name = "y", kind = "count", max = 50.0 }'
LABELS = '{ name = "y", positive = "1", negative = "0" }'


def own(text: str, line: str) -> str:
    """Return a study with one more line under [estimator]."""
    return text.replace("[estimator]\n", f"[estimator]\n{line}\n")


def table(text: str, old: str, key: str, *rows: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Return a study with each of some texts in place of its own, and what refuses it."""
    return [(text.replace(old, new), key, words) for new, words in rows]


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (LINEAR.replace("min = 0.0, ", ""), "data.response.min", "is required"),
        (LINEAR.replace(", max = 100.0 }", " }"), "data.response.max", "is required"),
        *table(
            LINEAR, "min = 0.0", "data.response",
            ("min = 100.0", "min must be below max"), ("min = 200", "min must be below max"),
            ("min = nan", "must be finite"),
        ),
        *table(LINEAR, "min = 0.0", "data.response.min",
               ('min = "a"', "must be a number, not a text")),
        (LINEAR.replace("max = 100.0", "max = inf"), "data.response", "must be finite"),
        *table(LINEAR, NUMBER, "estimator.loss",
               (LABELS, "explains a number"), (COUNT, "explains a number")),
        *table(LINEAR, "max = 100.0 }", "data.response.positive",
               ('max = 100.0, positive = "1" }', "does not go with")),
        *table(
            POISSON, "max = 50.0", "data.response.max",
            *((f"max = {most}", "whole number from 1") for most in ("0", "-5", "2.5", "nan")),
            ("max = 1e9", "from 1 to 1000000"),
        ),
        *table(POISSON, "max = 50.0", "data.response.min",
               ("min = 0, max = 50", "does not go with")),
        (POISSON.replace(COUNT, NUMBER), "estimator.loss", "explains a count"),
        (CLASSES.replace(LABELS, COUNT), "estimator.loss", "explains a class"),
        *(
            (own(text, f"{key} = {value}"), f"estimator.{key}", words)
            for text, key, value, words in (
                (LINEAR, "class_weights", "{ maximum = 2 }", "no classes"),
                (POISSON, "class_weights", "{ maximum = 2 }", "no classes"),
                (CLASSES, "residual_bound", "1", 'loss = "linear"'),
                (POISSON, "residual_bound", "1", 'loss = "linear"'),
                (POISSON, "noise_scale", "1", 'loss = "linear"'),
                (LINEAR, "smoothing", "0.1", 'loss = "gdwd"'),
                (LINEAR, "residual_bound", "0", "more than 0"),
                (LINEAR, "residual_bound", "1e-9", "at least a millionth"),
                (LINEAR, "residual_bound", "1e5", "10 times it"),
                (LINEAR, "noise_scale", "1e5", "at most the width"),
                (LINEAR, "noise_scale", "1e-300", "at least"),
            )
        ),
    ],
)  # fmt: skip
def test_a_contradiction_names_its_key(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_study(text)
    assert f"{key}:" in str(caught.value)
    assert words in str(caught.value)


def test_the_template_s_comments_are_studies_themselves() -> None:
    number, count = (
        next(line for line in TEMPLATE.splitlines() if f'kind = "{kind}"' in line).split(": ", 1)[1]
        for kind in ("number", "count")
    )
    labels = '{ name = "anomaly", positive = "1", negative = "0" }'
    linear = TEMPLATE.replace(labels, number).replace('loss = "logistic"', 'loss = "linear"')
    linear = linear.replace("# residual_bound", "residual_bound").replace("# noise", "noise")
    assert parse_study(linear).estimator.residual_bound == 5
    poisson = TEMPLATE.replace(labels, count).replace('loss = "logistic"', 'loss = "poisson"')
    assert parse_study(poisson).data.response.ends == (0.0, 50.0)
    weighted = TEMPLATE.replace("# class_weights", "class_weights")
    assert parse_study(weighted).estimator.class_weights is not None


def test_a_study_whose_windows_grow_can_be_compared_with_itself_without_privacy() -> None:
    text = re.sub(r"\[window\]\n", "[window]\ngrowth = 0.1\n", study_text(loss="logistic"))
    text = "\n".join(line for line in text.splitlines() if line != "growth = 0")
    study = parse_study(text)
    assert (study.window.growth, task_of(study).growth.divisor) == (0.1, 10)
    assert task_of(without_privacy(study)).growth.divisor == 0


@pytest.mark.parametrize(("loss", "ridge"), [("logistic", 0.0), ("linear", 0.0), ("gdwd", 1e-3)])
def test_without_privacy_too_only_gdwd_has_a_ridge_that_nobody_asked_for(
    loss: str, ridge: float
) -> None:
    text = study_text(loss=loss, private=False, ridge=None)
    assert parse_study(text).estimator.ridge == ridge
