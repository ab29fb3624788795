"""Every benchmark runs, tiny. `soak` and `newcomer` have tests of their own, which do so."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.papers.cells import RESULTS

#: What is run, {out}: a file for its results; and what it prints when it has come to its end.
RUNS = {
    "attacks --draws 400 --streams 4 --chains 40 --output {out}": "attacks in",
    "backtest --records 3000 --out {out}": "event time",
    "client parquet jsonl kafka duckdb --records 5000 --slopes 3 --rounds 1": '"duckdb"',
    "client --claims --records 2000 --slopes 3 --rounds 1 --rate 20": '"start_s"',
    "first_intervals --streams kink --draws 1 --out {out}": "logistic, epsilon 1",
    "fold --releases 3000 --rounds 1 --out {out}": "worker_over_bare",
    "fold --kind ldp-sgd --releases 1000 --rounds 1 --out {out}": "worker_over_bare",
    "latency --rate 5 --seconds 2 --out {out}": "the estimate's topic",
    "mutants --faults 4 --tests tests/unit/test_families.py": "faults are",
    "planted 'class counts outside of the shares'": "test_mechanisms.py",
    "plans few sgd-lax --streams 1": "sgd-lax",
    "real_coefficients plain --streams 1 --records 20000": "20,000",
    "real_coefficients poisson --streams 1 --records 10000 --former": "10,000",
    "sgd_intervals --streams 1 --rows linear": "AR(0.5)",
    "sites_copies --draws 2 --bounds 1": "1 to 12 windows",
    "sites_coverage --streams 1 --cells sites=4": "outside 93.0%",
    "storm --kills 2 --only planted": '"held": true',
    "timing --records 250 --rounds 2 --output {out}": "unreadable line",
    "papers.age --out {out}": "15 of 15 gated cells agree",
    "papers.dwd --tables 3 --runs 4 --out {out}": "of 18 gated cells agree",
    "papers.ldp_sgd --tables stale early local --runs 4 --out {out}": "of 27 gated cells agree",
    "papers.noisy_mle --runs 4 --out {out}": "of 24 gated cells agree",
}
#: So few runs may well put a cell outside its tolerance, or leave a fault to no test: that is 1.
CHANCE = ("papers.dwd", "papers.ldp_sgd", "papers.noisy_mle", "mutants")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.partition(" --")[0])
@pytest.mark.takes("runs a benchmark")
def test_a_benchmark_comes_to_its_end_and_leaves_what_is_stored(run: str, tmp_path: Path) -> None:
    stored = {file: file.read_bytes() for file in RESULTS.iterdir()}
    words = shlex.split(run.format(out=tmp_path / "out.json"))
    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ended.returncode in ((0, 1) if words[0] in CHANCE else (0,)), ended.stdout + ended.stderr
    assert RUNS[run] in ended.stdout
    assert not ("{out}" in run and not (tmp_path / "out.json").stat().st_size)
    assert stored == {file: file.read_bytes() for file in RESULTS.iterdir()}
