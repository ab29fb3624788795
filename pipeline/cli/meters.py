"""The demonstration of planned ages: blocks of flats whose load is wanted as it is now."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.cli.context import say
from pipeline.cli.stage import Demonstration, Site, same_state
from pipeline.messages.estimate import EstimateMessage
from pipeline.records.encode import Encoder, Row
from pipeline.release.task import Task
from pipeline.types import Vector

#: Rounds of each client, and the seed of what its flats do.
ROUNDS, SEED = 12, 16


class Meters(Demonstration):
    """Flats that go round the states of their model card, each at its own pace.

    folder: Where the records of each client are written.
    """

    seconds = 24.0
    ahead = 25.0

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task)
        method: dict[str, Any] = task.study.estimator.method or {}
        self._slots_each, rng = int(method["slots"]), np.random.default_rng(SEED)
        names = task.clients
        cards = {name: method["groups"][name.rpartition("-")[0]] for name in names}
        self._loads = {
            name: _loads(card, task, self._slots_each, rng) for name, card in cards.items()
        }
        self._kept: dict[int, dict[str, Any]] = {}
        self.sites = [
            Site(name, str(_written(folder / f"{name}.csv", task, loads)), loads.size)
            for name, loads in self._loads.items()
        ]

    def see(self, message: EstimateMessage) -> None:
        """Keep what was said of each round last."""
        details: dict[str, Any] = dict(message.details)
        if "round" in details:
            self._kept[details["round"]] = details

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Set each published round beside the flats' true mean at its end."""
        self.see(final)
        last: dict[str, Any] = dict(final.details)
        errors = [
            details["value"] - self._truth(number) for number, details in sorted(self._kept.items())
        ]
        error = float(np.sqrt(np.mean(np.square(errors))))
        expected, alone = last["expected_loss"] ** 0.5, last["loss_without_data"] ** 0.5
        say(
            f"In words: {len(errors)} published rounds miss the flats' true mean by {error:.2f} Wh "
            f"(root mean square); {expected:.2f} was expected, and {alone:.2f} of the model cards "
            f"alone, without any data. {same_state(same)}"
        )
        return {
            "round": last["round"],
            "value": round(last["value"], 2),
            "true_value": round(self._truth(last["round"]), 2),
            "rounds_seen": len(errors),
            "error": round(error, 3),
            "expected_error": round(expected, 3),
            "expected_error_without_data": round(alone, 3),
            "data_help": last["data_help"],
            "epsilon_now": last["epsilon_now"],
            "epsilon_when_collected": round(last["epsilon_when_collected"], 4),
            "epsilon_at_any_time": round(last["epsilon_at_any_time"], 4),
            "epsilon_of_all_rounds": round(last["epsilon_of_all_rounds"], 4),
        }

    def _truth(self, number: int) -> float:
        at = (number + 1) * self._slots_each - 1
        return float(np.mean([loads[at].mean() for loads in self._loads.values()]))

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        """Yield the records of the clients one after the other."""
        encoder, name = Encoder(self._task.study), self._task.study.data.response.name
        for client, loads in self._loads.items():
            for load in loads.ravel().tolist():
                yield client, encoder.encode({name: load})


def _loads(card: dict[str, Any], task: Task, slots: int, rng: np.random.Generator) -> Vector:
    """Return the loads of a client's flats in all slots, shape (slots of all rounds, flats)."""
    states, flats = np.array(card["states"], dtype=np.float64), task.slots // slots
    steps = rng.random((ROUNDS * slots, flats)) < card["q"]
    places = rng.integers(len(states), size=flats) + np.cumsum(steps, axis=0)
    return np.asarray(states[places % len(states)])


def _written(path: Path, task: Task, loads: Vector) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([task.study.data.response.name])
        writer.writerows([load] for load in loads.ravel().tolist())
    return path
