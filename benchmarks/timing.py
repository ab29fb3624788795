"""How long a client takes for a record, by what is wrong with it: nobody must see it in arrivals.

`python -m benchmarks.timing [--records N] [--rounds N] [--output FILE]`. Processor time of one slot
from a source's record to its place in a window, of which all slots are of one kind: good records,
clipped ones and bad ones of every kind, in turns; of the same records as lines of CSV, from their
bytes to encoded rows; and of the release of a window of each. Prints
medians over rounds with their spread, ratios to good records of the same round, and writes
`benchmarks/results/timing.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pipeline.methods import task_of
from pipeline.records.blocks import Window
from pipeline.records.encoder import Arrays, Encoder
from pipeline.records.values import Record
from pipeline.release.model import round_model
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from producers.intake import encoded
from producers.sources.base import Slot
from producers.sources.csv_file import Table
from tests.builders import study_text

RESULTS = Path(__file__).parent / "results" / "timing.json"
FEATURES, SLOTS = 9, 250
Kind = TypeVar("Kind", Slot, Arrays, list[bytes])
SETTINGS: dict[str, Any] = {
    "name": "timing", "loss": "logistic", "ridge": None, "epsilon": 1.0, "delta": 1e-6,
    "records": 250,
}  # fmt: skip
STUDY = study_text(p=FEATURES, low=-10, high=10, **SETTINGS)
GOOD = {**{f"x{i}": f"{i - 4.37:.4f}" for i in range(FEATURES)}, "y": "1"}
LAST = f"x{FEATURES - 1}"
#: Slots of lines of CSV that are read together.
LINES = 4000
KINDS: dict[str, dict[str, str] | None] = {
    "good": GOOD,
    "one value clipped": {**GOOD, "x0": "12.5000"},
    "all values clipped": {**GOOD, **{f"x{i}": "-33.2500" for i in range(FEATURES)}},
    "first column no number": {**GOOD, "x0": "missing"},
    "last column no number": {**GOOD, LAST: "missing"},
    "a column is not finite": {**GOOD, "x3": "nan"},
    "a column is empty": {**GOOD, "x3": ""},
    "all columns no numbers": {**GOOD, **{f"x{i}": "?" for i in range(FEATURES)}},
    "unknown class": {**GOOD, "y": "perhaps"},
    "unreadable line": None,
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2000, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=21, help="in which all kinds take turns")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the results file")
    options = parser.parse_args()
    task = task_of(parse_study(STUDY))
    slots = {name: slot_of(record) for name, record in KINDS.items()}
    encoder = Encoder(task.study)

    def take(slot: Slot) -> None:
        window = Window(SLOTS)
        window.add(encoded(encoder, None, [slot] * SLOTS), slot.position, 0.0)

    model = round_model(1, task.first_model.coefficients + 0.1, (1.0, 1.0))

    def release(rows: Arrays) -> None:
        release_of(task, rows, model, client="a", ledger="l", seq=0)

    lines = {
        name: [",".join(record.values()).encode()] * LINES
        for name, record in {**KINDS, "written as 1.5e0": {**GOOD, "x0": "-4.37e0"}}.items()
        if record is not None
    }

    def read(of_one_kind: list[bytes]) -> None:
        encoder.block(Table.of_lines(list(GOOD), of_one_kind, {}, {}))

    rows = {name: encoded(encoder, None, [s] * SLOTS).arrays for name, s in slots.items()}
    windows = max(1, options.records // SLOTS)
    result = {
        "records": options.records,
        "rounds": options.rounds,
        "microseconds of a record": compared(take, slots, windows, options.rounds, SLOTS),
        "microseconds of a line of CSV": compared(read, lines, 1, options.rounds, LINES),
        "microseconds of a window's release": compared(release, rows, 2 * windows, options.rounds),
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")


def slot_of(record: Record | None) -> Slot:
    """Return a slot of a source with this record, or with none that could be read."""
    fault = None if record is not None else "line 7: not 10 fields"
    return Slot(record=record, fault=fault, position=b"1", line=7)


def compared(
    work: Callable[[Kind], None], kinds: dict[str, Kind], count: int, rounds: int, of: int = 1
) -> dict[str, dict[str, float]]:
    """Return for each kind the median processor time, and the ratio to good ones with its spread.

    count, of: How often to do the work in a round, and into how many parts to divide its time.

    Ratios are taken within a round, so that what else the machine does falls on both.
    """
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, kind in kinds.items():
            began = time.process_time()
            for _ in range(count):
                work(kind)
            # the first round warms up
            if number:
                times[name].append(1e6 * (time.process_time() - began) / (count * of))
    rows = {}
    for name, found in times.items():
        ratios = [one / good for one, good in zip(found, times["good"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "median": round(statistics.median(found), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratio from": round(low, 3),
            "ratio to": round(high, 3),
        }
        print(f"{name:26} {rows[name]['median']:9.2f} us   ratio {rows[name]['ratio']:6.3f} "
              f"({low:.3f} to {high:.3f})", flush=True)  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
