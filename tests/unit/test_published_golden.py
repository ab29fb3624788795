"""Published methods give the numbers that they gave when they were recorded.

`python -m tests.unit.test_published_golden` records them anew, which only a change of a method's
mathematics may need.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks.papers import dwd
from tests.published import KEYS, by_client, run, sample, text_of, write

GOLDEN = Path(__file__).parent.parent / "golden" / "published.json"
#: Relative: sums over records in float64 with condition numbers below 1e3, where other orders of
#: addition move the last digits alone. A score at the end of a fit is rounding itself.
TOLERANCE, ROUNDING = 1e-12, 1e-9
IDENTITY = 'ridge_matrix = "identity"'
#: Name: kind, keys of its own, settings of the study.
FITS: dict[str, tuple[str, str, dict[str, object]]] = {
    **{kind: (kind, keys, {}) for kind, keys in KEYS.items()},
    "pooled, identity": ("pooled", IDENTITY, {"loss": "logistic"}),
    "pooled, weighted": ("pooled", "", {"maximum": 8.0, "q": 2.0}),
    "federated-newton, weighted": ("federated-newton", "", {"maximum": 8.0, "ridge": 0.0}),
    "federated-newton-undamped, as printed": (
        "federated-newton-undamped", 'rounds = 2, ridge_matrix = "as-printed"', {},
    ),
    "online-newton, one-step": ("online-newton", f'start = "one-step", {IDENTITY}', {}),
    "online-newton, weighted": (
        "online-newton", 'ridge_matrix = "as-printed"', {"maximum": 8.0, "records": 25},
    ),
    "online-newton-laplace, bounds": (
        "online-newton-laplace",
        f"epsilon = 2.0, seed = 7, l1_bound = 2.0, l2_bound = 1.5, step_bound = 0.1, {IDENTITY}",
        {},
    ),
    "online-newton-gaussian, bounds": (
        "online-newton-gaussian",
        'epsilon = 2.0, delta = 1e-6, seed = 7, l2_bound = 1.5, ridge_matrix = "as-printed"',
        {},
    ),
    "online-newton-distributed, weighted": (
        "online-newton-distributed",
        f"epsilon = 4.0, delta = 1e-6, seed = 7, l2_bound = 1.6, {IDENTITY}",
        {"maximum": 4.0},
    ),
}  # fmt: skip


def fit(name: str, folder: Path) -> dict[str, Any]:
    """Return what `veilstream fit` prints for one of `FITS`, without time and names."""
    kind, keys, settings = FITS[name]
    x, y = sample()
    done = run(*write(folder, text_of(kind, keys, **settings), by_client(x, y)), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    kept = ("estimator", "method", "interval_method", "records", "clients", "rounds", "score",
            "class_weights", "status", "reason")  # fmt: skip
    return {
        **{key: found[key] for key in kept},
        "guarantee": found["privacy"]["guarantee"],
        "coefficients": [
            [row["value"], row["standard_error"], row["interval"]] for row in found["coefficients"]
        ],
    }


def accuracies() -> dict[str, Any]:
    """Return accuracies of a small run of the tables of paper dwd, by method."""
    with pytest.MonkeyPatch.context() as patch:
        row = dwd.Row("1", 5, 6, 4, "4:1", (0, 0, 0, 0))
        patch.setattr(dwd, "ROWS", (row,))
        return {key: list(value) for key, value in dwd.run_row(0, 0, ours=True).items()}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


def close(found: Any, wanted: Any, where: str) -> None:
    """Compare two documents, numbers up to rounding."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key in wanted:
            close(found[key], wanted[key], f"{where}, {key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            close(one, other, f"{where}, {place}")
    elif isinstance(wanted, float):
        lowest = ROUNDING if where.endswith("score") else 0.0
        assert found == pytest.approx(wanted, rel=TOLERANCE, abs=lowest), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_the_one_that_was_recorded(
    name: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    close(fit(name, tmp_path), golden["fits"][name], name)


def test_a_table_is_the_one_that_was_recorded(golden: dict[str, Any]) -> None:
    close(accuracies(), golden["table"], "table")


def record() -> None:
    """Write the golden file."""
    with TemporaryDirectory() as folder:
        document = {
            "fits": {name: fit(name, Path(folder)) for name in FITS},
            "table": accuracies(),
        }
    GOLDEN.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    record()
