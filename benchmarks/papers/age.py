"""Print the figures of paper age beside what an independent implementation found.

`python -m benchmarks.papers.age [--full]`

Gated are figures that follow from printed inputs, to a relative 1e-3 or their last digit. The laws
of the paper's clients and the values of their states are not printed, so that the losses of Figures
2 and 3 are those of stand-ins (`age_tables.py`): shown with [the printed figure], and not gated.
Random schedules have their Monte Carlo error in brackets. The last line counts; the exit code is 1
if a gated cell lies outside.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.papers import age_tables
from benchmarks.papers.age_drawing import draw_ages, draw_schemes
from benchmarks.papers.cells import Cell, show, write

RESULTS = Path(__file__).parent.parent / "results" / "age.json"
TITLES = {
    "stated": "From printed inputs",
    "figure 2": "Figure 2: best age of each client alone, epsilon 0.055",
    "figure 3": "Figure 3: expected loss in Wh^2 by epsilon",
}


def main() -> None:
    """Compute, print, draw and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more draws")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    begun = time.monotonic()
    epsilons = age_tables.EPSILONS
    curves, ages = age_tables.curves()
    draw_ages(curves)
    schemes = age_tables.schemes(epsilons, 200 if options.full else 50)
    draw_schemes(schemes, epsilons, age_tables.noises(epsilons))
    cells: list[Cell] = [*age_tables.stated(), *ages, *schemes]
    for name, title in TITLES.items():
        own = [cell for cell in cells if cell.table == name]
        if name == "stated":
            for cell in own:
                verdict = f" [{cell.reference} {'ok' if cell.within else 'NO'}]"
                print(f"{cell.row}, {cell.column}: {cell.ours:.4f}{verdict if cell.gated else ''}")
        else:
            print("\n" + show(own, title=title, errors=True))
    write(cells, options.out)
    gated = [cell for cell in cells if cell.gated]
    wrong = [cell for cell in gated if not cell.within]
    print(f"\n{len(gated) - len(wrong)} of {len(gated)} gated cells agree; "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
