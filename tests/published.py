"""What tests of the published methods share: studies of each kind, records, and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.methods import offline_method
from pipeline.methods import task_of as make_task
from pipeline.methods.base import OfflineFit, OfflineMethod
from pipeline.records.encoder import Row, stack
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import rows_of, simulate, study_text

KEYS = {
    "pooled": "",
    "pooled-mm": "",
    "federated-newton": "",
    "federated-newton-undamped": 'rounds = 3, ridge_matrix = "identity"',
    "online-newton": "",
    "online-newton-laplace": "epsilon = 0.8, seed = 1, stabiliser = 200.0",
    "online-newton-gaussian": "epsilon = 0.8, delta = 1e-5, seed = 1, stabiliser = 200.0",
    "online-newton-distributed": "epsilon = 1.0, delta = 1e-5, seed = 1, tolerated = 1",
}
#: Those that add noise.
NOISED = tuple(kind for kind, keys in KEYS.items() if "seed" in keys)
CLIENTS, SLOTS = 3, 40


def text_of(kind: str, keys: str | None = None, **settings: object) -> str:
    """Return a study of this kind without privacy."""
    defaults: dict[str, object] = {"p": 2, "private": False, "ridge": 0.1, "records": SLOTS}
    text = study_text(**{**defaults, **settings})  # type: ignore[arg-type]
    keys = KEYS[kind] if keys is None else keys
    table = f"method = {{ {keys} }}\n" if keys else ""
    return text.replace("[estimator]\n", f'[estimator]\nkind = "{kind}"\n{table}')


def task_of(kind: str, keys: str | None = None, **settings: object) -> Task:
    """Return the task of such a study."""
    return make_task(parse_study(text_of(kind, keys, **settings)))


def method_of(task: Task) -> OfflineMethod:
    """Return the method that a study names."""
    found = offline_method(task.study)
    assert found is not None
    return found


def fit_of(task: Task, clients: Mapping[str, Sequence[Row | None]]) -> OfflineFit:
    """Run the method that a study names."""
    held = {name: stack(rows, task.size - 1) for name, rows in clients.items()}
    return method_of(task).fit(task, held)


def sample(seed: int = 0, n: int = 900, p: int = 2) -> tuple[Matrix, Vector]:
    """Draw records of two classes."""
    return simulate(np.random.default_rng(seed), n, p)


def by_client(x: Matrix, y: Vector) -> list[tuple[Matrix, Vector]]:
    """Give records to clients in turn; the last one has fewer, so that it ends earlier."""
    owner = np.arange(len(y)) % CLIENTS
    parts = [(x[owner == c], y[owner == c]) for c in range(CLIENTS)]
    return [*parts[:-1], (parts[-1][0][:90], parts[-1][1][:90])]


def rows_by_client(x: Matrix, y: Vector) -> dict[str, list[Row | None]]:
    """Return the same as encoded rows."""
    return {f"s{i}": [*rows_of(*part)] for i, part in enumerate(by_client(x, y))}


def write(
    folder: Path, text: str, parts: list[tuple[Matrix, Vector]], names: list[str] | None = None
) -> list[str]:
    """Write a study and its records; return the arguments of `veilstream fit`."""
    p = parts[0][0].shape[1]
    lines = [",".join([*(f"x{i}" for i in range(p)), "y", "site"])]
    for number, (x, y) in enumerate(parts):
        site = names[number] if names else f"s{number}"
        lines += [
            ",".join([*map(repr, map(float, row)), "1" if label > 0 else "0", site])
            for row, label in zip(x, y, strict=True)
        ]
    (folder / "study.toml").write_text(text)
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    source = ["--input", str(folder / "data.csv"), "--client-column", "site"]
    return ["fit", str(folder / "study.toml"), *source]


def run(*arguments: str) -> Result:
    """Run a command of the program."""
    return CliRunner().invoke(cli, list(arguments))
