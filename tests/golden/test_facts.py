"""Plans, backtests and simulations give the numbers that they gave when they were recorded.

`make golden` records them anew and prints what changed. Words may change: of texts it has the
numbers alone.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.api.check import facts_of, warnings_of
from pipeline.api.planning import plan, verdict
from pipeline.backtest import Options, run_backtest
from pipeline.estimators.population import Population, target_of
from pipeline.methods import method_of, task_of
from pipeline.release.task import form_of
from pipeline.simulate.coverage import Size, judge, result_of, simulated, stream, sum_up
from pipeline.study_file.load import parse_study, read_study
from tests.program import run_here
from tests.unit.test_backtest import STUDIES as HISTORIES
from tests.unit.test_backtest import TIMED, history, timed
from tests.unit.test_method_checks import STUDIES, TOY, small

FILE = Path(__file__).parent / "facts.json"
#: Relative: where a fit ends, the order of sums decides, and that is the processor's.
TOLERANCE = 1e-5
#: Records and clients: few of both, and many.
SIZES = ((3_000, 3), (200_000, 40))
LIVE = {
    **{f"{kind}, {form}": text for kind, forms in STUDIES.items() if kind != TOY
       for form, text in forms.items()},
    "renewable, forgets": lambda: small(forgetting='half_life = 5000, of = "records"'),
    "renewable, apart": lambda: small(loss="logistic", growth=0, noise_memory=0, user_records=3),
    "renewable, rare": lambda: small(loss="logistic", p=6, ridge=0.0).replace(
        'negative = "0"', 'negative = "0", typical = 0.05'
    ),
}  # fmt: skip
#: One of each kind, of which plans are made that compare kinds.
PLANNED = ("renewable, linear-exchange", "renewable, rare", "ldp-sgd, logistic", "noisy-mle, score",
           "noisy-copies, linear")  # fmt: skip


def checked(name: str) -> Any:
    """Return what `study check` says of a study at some sizes, and what its task is made of."""
    task = task_of(parse_study(LIVE[name]()))
    said = [[facts_of(task, *size), warnings_of(task, *size)] for size in SIZES]
    ends = [task.study.data.response.ends, *task.ends, task.longest, task.magnitudes]
    return [said, ends, task.response_scale, form_of(task).layout.text]


def planned(name: str) -> Any:
    """Return a plan with its rows, and its verdict."""
    found = plan(parse_study(LIVE[name]()), 20_000, 8)
    return [found, verdict(found)]


def backtested(name: str) -> Any:
    """Return what a backtest says of 600 records."""
    study = read_study(HISTORIES[name].replace("records = 50", "records = 50\nseconds = 100"))
    options = TIMED if "by record" not in name else Options(client_column="who", bins=10)
    found = run_backtest(study, timed(history(study, 600)), options).to_dict()
    del found["seconds"], found["estimate"]["published_at"]
    return found


def judged(name: str) -> Any:
    """Return what the doctor says of three streams."""
    task = simulated(parse_study(LIVE[name]()))
    population = Population.of(task)
    streams = [result_of(task, stream(population, Size(2_000, 2), 1, i)) for i in range(3)]
    found = sum_up(task, streams, target_of(population).coefficients)
    outlook = method_of(task.study).plan(task, 2_000, 2)
    return [found, judge(task, found, outlook, 2_000)]


#: Commands, each with the text of its study; `h.csv` are records of a backtest's study.
COMMANDS: dict[str, tuple[Callable[[], str], tuple[str, str]]] = {
    "check": (LIVE["renewable, gdwd"], ("study check", "--records 9000 --clients 4")),
    "doctor": (LIVE["ldp-sgd, logistic"], ("doctor coverage", "--records 2000 --replications 2")),
    "schedule": (LIVE["age-aware, members"], ("schedule", "--explain --round 2")),
    "fit": (lambda: HISTORIES["classes"], ("fit", "--input h.csv --save-model m.json")),
    "predict": (lambda: HISTORIES["classes"], ("predict", "--input h.csv --model m.json")),
    "fit by record": (lambda: HISTORIES["by record"], ("fit", "--input h.csv --intervals")),
    "backtest": (
        lambda: HISTORIES["classes"],
        ("backtest", "--input h.csv --event-time t --client-column who --freeze 1500 --bins 20"),
    ),
    "backtest of numbers": (lambda: HISTORIES["numbers"], ("backtest", "--input h.csv")),
}  # fmt: skip
#: Numbers in what is printed, and no part of a name or a digest.
PRINTED = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?!\w)")


def printed(name: str) -> Any:
    """Return the numbers that a command prints, or of many how many they are and their sum."""
    text, (command, more) = COMMANDS[name]
    with CliRunner().isolated_filesystem():
        Path("study.toml").write_text(text())
        if "h.csv" in more:
            table = timed(history(read_study(text()), 600))
            rows = zip(*(column.tolist() for column in table.values()), strict=True)
            with open("h.csv", "w", newline="") as file:
                csv.writer(file).writerows([list(table), *rows])
        if "--model" in more:
            run_here(["fit", "study.toml", "--input", "h.csv", "--save-model", "m.json"], {})
        done = run_here([*command.split(), "study.toml", *more.split()], {"COLUMNS": "250"})
    assert done.returncode == 0, done.stderr
    # how fast it went is no fact
    lines = [line for line in done.stdout.splitlines() if " a second" not in line]
    found = [float(one.replace(",", "")) for one in PRINTED.findall("\n".join(lines))]
    return found if len(found) < 200 else [len(found), sum(found)]


PARTS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "printed": (printed, tuple(COMMANDS)),
    "checked": (checked, tuple(LIVE)),
    "planned": (planned, PLANNED),
    "backtested": (backtested, ("classes", "numbers, open", "counts", "by record", "weighted")),
    "judged": (judged, ("renewable, gdwd", "ldp-sgd, logistic", "noisy-mle, score")),
}
NAMES = [(part, name) for part, (_, names) in PARTS.items() for name in names]
#: Plans are made of what is checked, and what is printed has the other parts: more of the same.
MORE_CHECKED = ("linear-exchange", "levels", "apart", "logistic-laplace", "gdwd", "forgets", "rare")
MORE = {
    *(("planned", name) for name in PLANNED),
    *(("checked", f"renewable, {name}") for name in MORE_CHECKED),
    *(("backtested", name) for name in ("counts", "weighted")),
    ("judged", "noisy-mle, score"), ("judged", "renewable, gdwd"),
}  # fmt: skip


def numbers(value: Any) -> Any:
    """Return a value as JSON has it: of texts their numbers, and of objects their fields."""
    if isinstance(value, str):
        return re.findall(r"\d[\d,.]*(?:e-?\d+)?", value)
    if isinstance(value, (np.ndarray, np.generic)):
        return numbers(value.tolist())
    if isinstance(value, (list, tuple)):
        return [numbers(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, Mapping):
        names = getattr(value, "__dataclass_fields__", None) or value.__struct_fields__
        value = {name: getattr(value, name) for name in names}
    # what a study is stands in `test_revisions`
    return {str(key): numbers(value[key]) for key in value if key not in ("study", "revision")}


def differences(found: Any, wanted: Any, where: str) -> list[str]:
    """Return in words where two documents differ, floats by more than rounding."""
    if isinstance(wanted, dict) and isinstance(found, dict) and found.keys() == wanted.keys():
        pairs: list[Any] = [(key, found[key], wanted[key]) for key in wanted]
    elif isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        pairs = [(place, *pair) for place, pair in enumerate(zip(found, wanted, strict=True))]
    elif isinstance(wanted, float) and isinstance(found, float):
        near = found == pytest.approx(wanted, rel=TOLERANCE, abs=1e-8, nan_ok=True)
        return [] if near else [f"{where}: {wanted!r} is now {found!r}"]
    else:
        return [] if found == wanted else [f"{where}: {wanted!r} is now {found!r}"]
    return [said for key, *two in pairs for said in differences(*two, f"{where}, {key}")]


def taken(part: str, name: str) -> Any:
    """Return what a part says now, as it is stored."""
    return json.loads(json.dumps(numbers(PARTS[part][0](name))))


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return found


@pytest.mark.takes("plans look at every kind and budget")
@pytest.mark.parametrize(
    ("part", "name"),
    [
        pytest.param(*pair, id="-".join(pair), marks=[pytest.mark.slow] * (pair in MORE))
        for pair in NAMES
    ],
)
def test_a_fact_is_the_one_that_was_recorded(
    part: str, name: str, golden: dict[str, dict[str, Any]]
) -> None:
    assert differences(taken(part, name), golden[part][name], name) == []


def main() -> None:
    """Record all of it again."""
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    after: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for part, name in NAMES:
        old, new = before.get(part, {}).get(name), taken(part, name)
        found = differences(new, old, part)
        after[part][name] = new if found else old
        print(f"{part}, {name}: {'; '.join(found)[:300] or 'as before'}")
    FILE.write_text(json.dumps(after, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
