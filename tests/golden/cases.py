"""The studies of the golden logs, and the records that their clients hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.records.encoder import Encoder, Row
from pipeline.release.task import Task
from tests import ages, builders, sgd

CLIENTS = ("north", "south", "west")
#: Features take five levels, so that no draw depends on the last bit of a float.
LEVELS = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
TRUTH = np.array([0.25, 1.0, -0.75])
#: As many releases of each client, with a model after every fourth release of all.
ROUNDS = 14


@dataclass(frozen=True, slots=True)
class Case:
    """One log to be recorded.

    Attributes
    ----------
    study
        Text of the study file.
    rounds
        Releases of each client, or blocks of them where windows grow.
    apart
        Milliseconds from one release to the next.
    """

    study: str
    rounds: int = ROUNDS
    apart: int = 1000


def _whole(**settings: object) -> Case:
    """Return a case of sums over windows; windows are large, as payloads do not grow with them."""
    defaults: dict[str, object] = {
        "p": 2, "records": 400, "releases": 4, "epsilon": 8.0,
    }  # fmt: skip
    return Case(builders.study_text(**(defaults | settings)))  # type: ignore[arg-type]


def _sites(method: str = "", *, name: str = "noisy-mle", **settings: object) -> Case:
    """Return a case of sums that are kept apart by client."""
    whole = _whole(**settings)
    table = f"method = {{ {method} }}\n" if method else ""
    kind = f'[estimator]\nkind = "{name}"\n{table}'
    return replace(whole, study=whole.study.replace("[estimator]\n", kind))


def _single(*, levels: str = "", more: str = "", rounds: int = 40, **settings: object) -> Case:
    """Return a case of gradients of single records."""
    # large steps: intervals come after few records
    # gradients alone must mix in few records; where a curvature scales the steps, that is no help
    steps = "" if "curvature" in more else ", eta0 = 20, kappa = 50, curvature = 0.15"
    path = f"burn_in = 12, behind = 0{steps}{more}"
    defaults: dict[str, object] = {
        "p": 1, "records": 16, "publish": 2, "path": path, "epsilon": 20.0,
    }  # fmt: skip
    text = sgd.study_text(**(defaults | settings))  # type: ignore[arg-type]
    return Case(text.replace("[window]", f"{levels}\n[window]"), rounds=rounds)


def _planned(**settings: object) -> Case:
    """Return a case of one value of a planned slot of each window, by age."""
    group = ages.GROUPS.replace('["c", "a-{1..2}"]', '["north", "west"]').replace(
        '["b"]', '["south"]'
    )
    return Case(ages.study_text(groups=group, slots=6, records=8, **settings))  # type: ignore[arg-type]


_PERSONAL = 'personal = { column = "consent", levels = { low = 2.0, high = 20.0 } }'
_ALL = ', releases = "gradients+curvature+products"'

CASES = {
    # sums of windows with privacy: every loss, every mechanism
    "gdwd": _whole(),
    "gdwd-laplace": _whole(mechanism="discrete-laplace", epsilon=20.0),
    "gdwd-weights": _whole(maximum=4.0, q=0.5),
    "gdwd-simulated": _whole(mechanism="insecure-simulation", maximum=2.0),
    "gdwd-user": _whole(user_records=2, epsilon=16.0),
    "gdwd-replace-one": _whole(neighbours="replace-one", scaling="none"),
    "gdwd-split": _whole(split="gradient = 0.5, curvature = 0.3, counts = 0.2", norm_bound=1.5),
    "logistic": _whole(loss="logistic"),
    "logistic-grows": replace(_whole(loss="logistic", growth=0.25, records=100), rounds=60),
    "logistic-apart": _whole(
        loss="logistic",
        growth=0,
        noise_memory=0,
        split="gradient = 0.665, curvature = 0.285, counts = 0.05",
    ),
    "logistic-laplace-weights": _whole(
        loss="logistic", mechanism="discrete-laplace", epsilon=20.0, maximum=3.0
    ),
    "linear": _whole(loss="linear", least=-4.0, most=4.0),
    "linear-simulated": _whole(
        loss="linear", mechanism="insecure-simulation", residual_bound=2.0, noise_scale=0.5
    ),
    "poisson": _whole(loss="poisson", most=10.0, epsilon=20.0),
    "poisson-laplace-user": _whole(
        loss="poisson",
        most=10.0,
        mechanism="discrete-laplace",
        epsilon=20.0,
        user_records=2,
    ),
    "forgets-records": _whole(forgetting='half_life = 20000, of = "records"'),
    "forgets-seconds": replace(
        _whole(forgetting='half_life = 240, of = "seconds"', maximum=4.0), apart=9000
    ),
    # without privacy
    "open-gdwd": _whole(private=False, records=40),
    "open-gdwd-weights": _whole(private=False, records=40, maximum=4.0),
    "open-logistic": _whole(private=False, records=40, loss="logistic"),
    "open-linear": _whole(private=False, records=40, loss="linear"),
    "open-poisson": _whole(private=False, records=40, loss="poisson", most=10.0),
    "open-forgets-records": _whole(
        private=False, records=40, forgetting='half_life = 200, of = "records"'
    ),
    # sums of sites, kept apart
    "sites-logistic": _sites(loss="logistic", norm_bound=1.5),
    "sites-linear": _sites(loss="linear", least=-4.0, most=4.0),
    "sites-linear-cut": _sites(loss="linear", least=-4.0, most=4.0, residual_bound=2.0),
    "sites-copies": _sites(name="noisy-copies", loss="logistic", norm_bound=1.5, epsilon=4.0),
    "sites-copies-linear": _sites(
        "copies = 20",
        name="noisy-copies",
        loss="linear",
        least=-4.0,
        most=4.0,
        noise_scale=1.0,
        epsilon=4.0,
    ),
    # planned slots: every use of an upload
    "planned": _planned(),
    "planned-wiener": _planned(method='use = "wiener"'),
    # gradients of single records: every loss, mechanism, what is released, and partitions
    "sgd-linear": _single(rounds=24),
    "sgd-linear-full": _single(rounds=24, more=", full = true, alpha = 0.6"),
    "sgd-logistic": _single(loss="logistic"),
    "sgd-logistic-laplace": _single(loss="logistic", mechanism="discrete-laplace", epsilon=20.0),
    "sgd-expectile": _single(loss="expectile", estimator="residual_bound = 0.7\ntau = 0.3"),
    "sgd-simulated": _single(mechanism="insecure-simulation"),
    "sgd-personal": _single(rounds=24, levels=_PERSONAL),
    "sgd-curvature": _single(loss="logistic", more=', releases = "gradients+curvature"'),
    "sgd-products": _single(more=f'{_ALL}, interval = "plug-in-products"'),
    "sgd-shared": _single(rounds=24, partitions=2, more=', partitions = "shared"'),
    "sgd-pooled": _single(rounds=24, partitions=2, more=f', partitions = "pooled"{_ALL}'),
    "sgd-open-linear": _single(rounds=24, mechanism="none"),
    "sgd-open-logistic-products": _single(mechanism="none", loss="logistic", more=_ALL),
    "sgd-open-pooled": _single(
        rounds=24, mechanism="none", partitions=2, more=', partitions = "pooled"'
    ),
}


def windows_of(task: Task, rounds: int) -> list[tuple[str, list[Row | None]]]:
    """Return the windows of all clients in the order in which they are released.

    One slot is empty, and the last window is short.
    """
    count = rounds * len(CLIENTS)
    rows = _rows(task, count * task.slots)
    windows: list[tuple[str, list[Row | None]]] = []
    for i in range(count):
        part = rows[i * task.slots : (i + 1) * task.slots]
        windows.append((CLIENTS[i % len(CLIENTS)], list(part)))
    windows[1][1][3] = None
    del windows[-1][1][-2:]
    return windows


def _rows(task: Task, count: int) -> list[Row]:
    encoder, rng = Encoder(task.study), np.random.default_rng(7)
    features = rng.choice(LEVELS[:: 4 if task.keeps_slots else 1], (count, task.size - 1))
    predictor = TRUTH[0] + features @ TRUTH[1 : task.size]
    kind = task.study.data.response.kind
    if kind == "class":
        said = (rng.random(count) < 1 / (1 + np.exp(-predictor))).astype(int).astype(str).tolist()
    elif kind == "count":
        said = rng.poisson(np.exp(predictor / 2)).tolist()
    else:
        said = (predictor + rng.normal(0, 0.5, count)).tolist()
    rows = encoder.rows(features, [encoder.response.of_label(value) for value in said])
    levels = rng.integers(0, len(task.budget.levels), count)
    return [replace(row, level=int(level)) for row, level in zip(rows, levels, strict=True)]
