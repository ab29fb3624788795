"""Do intervals hold when they are first shown, and at every moment of a stream that is watched?

`python -m benchmarks.first_intervals [--data FOLDER] [--streams TEXT] [--epsilon E] [--draws N]`;
`--show` prints the stored table. Streams are those of `interval_streams`; every study says ranges,
a norm bound and epsilon, and leaves all else to its default. Columns: the share of coefficients
that had an interval at any time; and how many hold the target, with the Monte Carlo error, of the
first ones and of all that were shown in the course of a stream. The target is the penalised fit to
a million other records, and where every draw has the same records the fit to them. Writes
`benchmarks/results/first_intervals.json`; other rows stay.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np

from benchmarks.interval_streams import Drawn, Stream, chosen
from pipeline.estimators.estimate import Estimate, class_weights
from pipeline.estimators.reference_fit import study_rows, target
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.types import Integers, Vector
from tests.builders import task_of

RESULTS = Path(__file__).parent / "results" / "first_intervals.json"
#: No rule was chosen on its draws.
SEED = 20261127
#: Draws of 40,000 records that stand for a population.
POPULATION = 25
#: Where the stream does not say whose records are whose.
CLIENTS = 8
COLUMNS = """\
| stream | setting | draws | given | first ones hold | all hold |
|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz and of held-out data")
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--show", action="store_true", help="print the stored table")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    print(COLUMNS)
    rows = json.loads(RESULTS.read_text())["rows"]
    if options.show:
        print("\n".join(rows.values()))
        return
    for stream in chosen(options.streams, options.data):
        for loss in ("gdwd", "logistic"):
            setting = Setting(loss, options.epsilon)
            name = f"{stream.name}, {setting.label}"
            rows[name] = row_of(stream, setting, options.draws)
            print(rows[name], flush=True)
            options.out.write_text(json.dumps({"seed": SEED, "rows": rows}, indent=1) + "\n")


@dataclass(frozen=True)
class Setting:
    """What a row of the table has beside its stream."""

    loss: str = "gdwd"
    epsilon: float = 1.0

    @property
    def label(self) -> str:
        return f"{self.loss}{' 1' if self.loss == 'gdwd' else ''}, epsilon {self.epsilon:g}"


def row_of(stream: Stream, setting: Setting, draws: int) -> str:
    task = task_for(stream, setting)
    aim = None if stream.fixed else population_fit(stream, task)
    firsts, every = list[Vector](), list[Vector]()
    for number in range(draws):
        name = crc32(f"{stream.name}, {setting.label}".encode())
        rng = np.random.default_rng([SEED, name, number])
        drawn = released(task, stream.draw(rng, task.loss))
        if aim is None:
            aim = pooled(task, drawn)
        *estimates, _ = streamed(task, drawn, int(rng.integers(2**62)))
        flags = np.array([held(one, aim) for one in estimates])
        firsts.append(first(flags))
        every.append(flags.ravel())
    # windows of clients fill at other times, so that draws may have more estimates or fewer
    longest = max(flags.size for flags in every)
    every = [np.append(flags, np.full(longest - flags.size, np.nan)) for flags in every]
    cells = [stream.name, setting.label, str(draws), f"{np.mean(~np.isnan(firsts)):.0%}"]
    cells += [told(share_of(firsts)), told(share_of(every))]
    return f"| {' | '.join(cells)} |"


def held(found: Estimate, aim: Vector) -> Vector:
    """Return whether each interval holds its target, NaN where there is none, shape (d,)."""
    nothing = np.full(len(aim), np.nan)
    low, high = found.intervals(0.95) or (nothing, nothing)
    return np.where(np.isnan(low), np.nan, (low <= aim) & (aim <= high))


def first(flags: Vector) -> Vector:
    """Return whether the first interval of each coefficient held, NaN where there was none, (d,).

    flags: Of each estimate and coefficient, shape (estimates, d).
    """
    given = ~np.isnan(flags)
    at = given.argmax(axis=0)
    return np.where(given.any(axis=0), flags[at, np.arange(flags.shape[1])], np.nan)


def share_of(flags: list[Vector]) -> tuple[float, float | None] | None:
    """Return the mean of the flags of all draws, NaN left out, and its Monte Carlo error.

    Where one draw alone has any flag, nobody knows the error: it is None.
    """
    each = [float(np.nanmean(draw)) for draw in flags if not np.isnan(draw).all()]
    if not each:
        return None
    error = float(np.std(each) / np.sqrt(len(each) - 1)) if len(each) > 1 else None
    return float(np.nanmean(flags)), error


def told(share: tuple[float, float | None] | None) -> str:
    """Return a share in percent, with its Monte Carlo error."""
    if share is None:
        return ""
    mean, error = share
    return f"{100 * mean:.1f} ({'one draw' if error is None else f'{100 * error:.1f}'})"


@lru_cache(maxsize=64)
def task_for(stream: Stream, setting: Setting) -> RenewableTask:
    """Return the task of a study that says nothing of the ridge."""
    return task_of(
        p=stream.features, loss=setting.loss, ridge=None, norm_bound=float(stream.norm_bound),
        maximum=8.0 if stream.weighed else None, mechanism="insecure-simulation",
        epsilon=setting.epsilon, delta=1e-6, records=250,
    )  # fmt: skip


def streamed(task: RenewableTask, drawn: Drawn, seed: int) -> list[Estimate]:
    """Run one stream: clients fill the windows that the study wants, in the order of its records.

    Returns what was published, and the estimate of all records, for which open windows close.
    """
    features, responses, clients = drawn
    run, found = OfflineRun(task), list[Estimate]()
    open_at: dict[int, tuple[Model, int, list[Integers]]] = {}

    def close(client: int) -> None:
        model, _, held = open_at.pop(client)
        rows, name = np.concatenate(held), str(client)
        noise = SeededStream(seed, name, run.releases)
        run.fold(name, run.release(name, Arrays(features[rows], responses[rows]), model, noise))

    for client, rows in blocks(responses, clients, task.slots):
        if client not in open_at:
            # a window takes the model that is the newest when its first block has come
            open_at[client] = run.model, run.room(str(client)) or task.slots, []
        _, size, held = open_at[client]
        held.append(rows)
        if len(held) * task.slots == size:
            close(client)
            if run.wait() is not None:
                found.append(run.publish())
    for client in list(open_at):
        close(client)
    return [*found, estimate_of(task, run.partitions)]


def blocks(
    responses: Vector, clients: Integers | None, slots: int
) -> Iterator[tuple[int, Integers]]:
    """Yield clients and rows of full blocks of slots, in the order in which they are full."""
    if clients is None:
        for number, start in enumerate(range(0, len(responses) - slots + 1, slots)):
            yield number % CLIENTS, np.arange(start, start + slots)
        return
    full: list[tuple[int, int, Integers]] = []
    for client in np.unique(clients):
        own = np.flatnonzero(clients == client)
        starts = range(0, len(own) - slots + 1, slots)
        full += [(int(own[i + slots - 1]), int(client), own[i : i + slots]) for i in starts]
    for _, client, rows in sorted(full, key=lambda window: window[0]):
        yield client, rows


def released(task: RenewableTask, drawn: Drawn) -> Drawn:
    """Return the records that are in a full block: the others never leave their client."""
    features, responses, clients = drawn
    rows = np.concatenate([rows for _, rows in blocks(responses, clients, task.slots)])
    return features[rows], responses[rows], None if clients is None else clients[rows]


def pooled(task: RenewableTask, drawn: Drawn) -> Vector:
    """Return the penalised fit to all records, with the class weights that exact counts give."""
    up = float(np.mean(drawn[1] > 0))
    rows = study_rows(task, drawn[0], drawn[1], class_weights(1 - up, up, task.largest_weight))
    return target(task, lambda: [rows]).coefficients


def population_fit(stream: Stream, task: RenewableTask) -> Vector:
    draws = [stream.draw(np.random.default_rng([6, k]), task.loss) for k in range(POPULATION)]
    features, responses = (np.concatenate([draw[part] for draw in draws]) for part in (0, 1))
    return pooled(task, (features, responses, None))


if __name__ == "__main__":
    main()
