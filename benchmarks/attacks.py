"""What distinguishing attacks learn from releases, beside what the study promises.

`python -m benchmarks.attacks [--draws N] [--streams N] [--chains N] [--seed N | --secure]
[--output FILE]`. For each kind of release, mechanism and kind of neighbours: a lower bound of the
epsilon that was kept, which holds with probability 1 - ALARM each. Then the same attack with
hostile models, on whole streams, on chains of releases whose noise remembers, and on planted
faults. Prints a table and writes `benchmarks/results/attacks.json`; ends with 1 if a right program
exceeds its claim. `--only-chains` leaves what the file says of all others. `--markdown` prints that
file as the tables of docs/privacy/attacks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.privacy.randomness import SecureStream
from pipeline.release.task import Task
from tests.attacks import chains as remembered
from tests.attacks import copies as copied
from tests.attacks import sites
from tests.attacks import streams as whole
from tests.attacks.bounds import ALARM
from tests.attacks.bugs import BOTH, BUGS, HOSTILE, hostile
from tests.attacks.simulation import measure_simulation
from tests.attacks.studies import RELEASES, Attack, Mechanism, attack_of
from tests.attacks.windows import Finding, Streams, measure
from tests.builders import SeededStream

RESULTS = Path(__file__).parent / "results" / "attacks.json"
NEIGHBOURS = ("zero-out", "replace-one")
#: Windows of one stream.
WINDOWS = 8
Row = dict[str, str | float | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=80_000, help="of each release and neighbour")
    parser.add_argument("--streams", type=int, default=500, help="of each stream and neighbour")
    parser.add_argument("--chains", type=int, default=40_000, help="of each kind and neighbour")
    parser.add_argument("--only-chains", action="store_true", help="attack nothing else")
    parser.add_argument("--seed", type=int, default=0, help="of the stand-in for a generator")
    parser.add_argument("--secure", action="store_true", help="noise from the real generator")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the results file")
    parser.add_argument("--markdown", action="store_true", help="print the results file and end")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.output.read_text())), end="")
        return
    began = time.perf_counter()
    seeded = SeededStream if not options.secure else lambda _: SecureStream()
    attacks = Attacks(options.draws, options.streams, lambda n: seeded(1000 * options.seed + n))
    if options.only_chains:
        result = json.loads(options.output.read_text())
    else:
        attacks.run()
        result = {
            "draws": options.draws,
            "streams": options.streams,
            "windows": WINDOWS,
            "alarm": ALARM,
            "generator": "secure" if options.secure else f"seed {options.seed}",
            "rows": attacks.rows,
        }
    # apart from the numbers of all others, of which there are fewer
    result["chains"] = chains(options.chains, lambda n: seeded(10**6 * (options.seed + 1) + n))
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    count = len(attacks.rows) + len(result["chains"]["rows"])
    print(f"\n{count} attacks in {time.perf_counter() - began:.0f} s")
    above = [row for row in attacks.rows if row["right"] and _above(row)]
    above += [r for r in result["chains"]["rows"] if r["right"] and r["least"] > r["promised"]]
    if above:
        sys.exit(f"above the claim: {above}")


def chains(count: int, generator: Streams) -> dict[str, Any]:
    """Attack so many chains of releases for either neighbour, and those with faults; mu each."""
    rows = []
    for fault in (None, *remembered.FAULTS):
        found = remembered.measure_chains(count, generator, fault)
        row = {
            "attack": fault.name if fault else "one record",
            "promised": round(found.promised, 3),
            "measured": round(found.measured, 3),
            "least": round(found.least, 3),
            "right": fault is None,
        }
        rows.append(row)
        print(
            f"chain: {row['attack']:42} mu {row['promised']:.3f}, measured {row['measured']:.3f}, "
            f"at least {row['least']:.3f}"
        )
    return {
        "chains": count,
        "windows": remembered.WINDOWS,
        "alarm": remembered.ALARM,
        "rows": rows,
    }


class Attacks:
    """All attacks, one row of results for each."""

    def __init__(self, draws: int, streams: int, generator: Streams) -> None:
        self.rows: list[Row] = []
        self._draws, self._streams, self._generator = draws, streams, generator

    def run(self) -> None:
        print(f"{'attack':42} {'mechanism':18} {'neighbours':18} {'claimed':>12} {'by events':>10}"
              f" {'measured':>9}")  # fmt: skip
        for mechanism in BOTH:
            for neighbours in NEIGHBOURS:
                for name in RELEASES:
                    attack = attack_of(name, mechanism, neighbours)  # type: ignore[arg-type]
                    self._window("release", name, attack)
                for users in ("together", "spread"):
                    attack = attack_of("step", mechanism, neighbours, users=users)  # type: ignore[arg-type]
                    self._window("user", f"step, a user's records {users}", attack)
            for name in HOSTILE:
                self._window("hostile", name, hostile(name, mechanism))
            self._whole(mechanism)
        for bug in BUGS.values():
            for mechanism in bug.mechanisms:
                with bug.plant():
                    attack = bug.attack(bug.releases[0], mechanism)
                    self._window("fault", bug.name, attack, right=bug.harmless)
        self.sites()
        self._copies()
        found = measure_simulation(self._streams)
        task = attack_of("start", "discrete-gaussian", "zero-out").task
        self._note("fault", "a simulation whose seed is known", task, found, right=False)

    def _window(self, kind: str, name: str, attack: Attack, *, right: bool = True) -> None:
        # a client makes zero of what a hostile model makes no number; NumPy says so on the way
        with np.errstate(invalid="ignore") if kind == "hostile" else nullcontext():
            found = measure(attack, self._draws, self._generator)
        self._note(kind, name, attack.task, found, right=right)

    def sites(self) -> None:
        """Attack the noised sums of a site, and those with faults."""
        for mechanism in BOTH:
            for neighbours in NEIGHBOURS:
                for kind in sites.KINDS:
                    attack = sites.attack_of(kind, mechanism, neighbours)  # type: ignore[arg-type]
                    self._window("release", f"{kind} of a site", attack)
        for fault in sites.FAULTS:
            with fault.plant():
                self._window("fault", fault.name, fault.attack(), right=False)

    def _copies(self) -> None:
        # each draw is a call of its own: fewer of them take as long
        draws = self._draws // 8
        for loss in ("linear", "logistic"):
            for neighbours in NEIGHBOURS:
                found = copied.measure_copies(loss, draws, self._generator, neighbours=neighbours)
                task = copied.task_of(loss, neighbours)
                self._note("release", f"copies, {loss}", task, found, right=True)
        for fault in copied.FAULTS:
            with fault.plant():
                task = copied.task_of(fault.loss)
                found = copied.measure_copies(fault.loss, draws, self._generator)
            self._note("fault", fault.name, task, found, right=False)

    def _whole(self, mechanism: Mechanism) -> None:
        undisturbed: list[whole.Sighting] = []
        for change in ("zero-out", "replace-one", "add-remove"):
            attack = whole.stream_attack(change, mechanism, WINDOWS)
            if change == "zero-out":
                undisturbed = whole.sightings(
                    attack.task, attack.left, self._streams, self._generator(0)
                )
            found = whole.measure_stream(
                attack,
                self._streams,
                self._generator,
                () if change == "replace-one" else undisturbed,
            )
            right = change != "add-remove"
            for name, part in (("all", found.everything), ("last estimate", found.estimate)):
                self._note(f"stream, {name}", change, attack.task, part, right=right)

    def _note(self, kind: str, name: str, task: Task, found: Finding, *, right: bool) -> None:
        privacy = task.study.privacy
        row: Row = {
            "kind": kind,
            "attack": name,
            "mechanism": privacy.mechanism,
            "neighbours": privacy.neighbours,
            "unit": "record" if privacy.records is None else f"user of {privacy.records}",
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "measured": round(found.claimed, 3),
            "events": round(found.events, 3),
            "right": right,
        }
        self.rows.append(row)
        claim = f"{privacy.epsilon:g}" + (f" ({privacy.delta:g})" if privacy.delta else "")
        print(
            f"{kind + ': ' + name:42} {privacy.mechanism:18} {privacy.neighbours:18} {claim:>12} "
            f"{found.events:10.2f} {found.claimed:9.2f}{' above' if _above(row) else ''}",
            flush=True,
        )


def markdown(result: dict[str, Any]) -> str:
    """Return the results as the tables of the document."""
    rows: list[Row] = result["rows"]
    cells = {
        (r["kind"], r["attack"], r["mechanism"], r["neighbours"]): f"{r['measured']:.2f}"
        for r in rows
    }
    claims = {r["mechanism"]: _claim(r) for r in rows if r["kind"] == "release"}
    streams = {r["mechanism"]: _claim(r) for r in rows if str(r["kind"]).startswith("stream")}

    def table(title: str, heads: list[str], lines: list[list[str]]) -> list[str]:
        body = [f"| {' | '.join(line)} |" for line in [[title, *heads], *lines]]
        return [body[0], "|---|" + "---|" * len(heads), *body[1:], ""]

    def names(*kinds: str) -> list[tuple[str, str]]:
        return list(
            dict.fromkeys((str(r["kind"]), str(r["attack"])) for r in rows if r["kind"] in kinds)
        )

    def line(kind: str, name: str, neighbours: tuple[str, ...]) -> list[str]:
        return [name, *(cells.get((kind, name, m, n), "") for m in BOTH for n in neighbours)]

    heads = [f"{_short(m)} {claims[m]}, {n}" for m in BOTH for n in NEIGHBOURS]
    single = [f"{_short(m)} {claims[m]}" for m in BOTH]
    lines = table(
        "release", heads, [line(kind, name, NEIGHBOURS) for kind, name in names("release", "user")]
    )
    kinds = ["stream, all", "stream, last estimate"]
    heads = [f"{_short(m)} {streams[m]}, {k.removeprefix('stream, ')}" for m in BOTH for k in kinds]
    changes = [(name, name if name != "add-remove" else "zero-out") for _, name in names(kinds[0])]
    lines += table(
        "change in a whole stream",
        heads,
        [[name, *(cells[k, name, m, n] for m in BOTH for k in kinds)] for name, n in changes],
    )
    lines += table(
        "planted fault", single, [line(k, name, ("zero-out",)) for k, name in names("fault")]
    )
    told = ("promised", "measured", "least")
    lines += table(
        "chain of 24 releases: mu of a record in the third",
        ["promised", "measured", "at least"],
        [[r["attack"], *(f"{r[name]:.3f}" for name in told)] for r in result["chains"]["rows"]],
    )
    lines += table(
        "hostile model", single, [line(k, name, ("zero-out",)) for k, name in names("hostile")]
    )
    return "\n".join(lines)


def _above(row: Row) -> bool:
    return float(row["measured"] or 0) > float(row["epsilon"] or 0)


def _claim(row: Row) -> str:
    return f"({row['epsilon']:g}, {row['delta']:g})" if row["delta"] else f"{row['epsilon']:g}"


def _short(mechanism: str) -> str:
    return mechanism.removeprefix("discrete-").capitalize()


if __name__ == "__main__":
    main()
