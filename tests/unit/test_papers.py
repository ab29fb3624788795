"""The printing of papers' tables: tolerances, populations, rows, loaders."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.papers import six_figures
from benchmarks.papers.cells import Cell, Runs, cell_of, conditional_cell, judged
from benchmarks.papers.dwd import RESULTS
from benchmarks.papers.dwd_rows import METHODS, PRIVATE_ROWS, ROWS
from benchmarks.papers.dwd_runs import run_private_row, run_row
from benchmarks.papers.harth import FEATURES, read_folder
from benchmarks.papers.populations import Population, autoregressive, drawn_sites, same_sites

PLACE = ("1", "row", "column")


def alarms(rejected: int, trials: int) -> float:
    """Return the chance of so many rejections or more at the one in a hundred that is promised."""
    return float(stats.binom.sf(rejected - 1, trials, 0.01))


@pytest.mark.parametrize("spread", [0.0005, 0.02])
def test_a_gate_rejects_a_true_reproduction_once_in_a_hundred_printings(spread: float) -> None:
    rng, rejected = np.random.default_rng(1), 0
    for _ in range(2_000):
        ours = rng.normal(0.8, spread, 6)
        theirs = rng.normal(0.8, spread, 10)
        paper = 100 * np.mean(rng.binomial(10_000, theirs) / 10_000)
        cell = cell_of(PLACE, Runs(ours, ours), paper=paper, gated=True, draws=10)
        # without the allowance for printed digits, which here has nothing to allow for
        rejected += not judged([_exactly(cell)])[0].within
    assert alarms(rejected, 2_000) > 1e-4
    # and it is not so wide that it would never reject
    assert rejected > 0


@pytest.mark.parametrize(("spread", "runs"), [(0.01, 5), (1e-4, 10)])
def test_a_prediction_rejects_a_true_reproduction_once_in_a_hundred_printings(
    spread: float, runs: int
) -> None:
    rng, rejected = np.random.default_rng(2), 0
    for _ in range(2_000):
        x = rng.normal(0.85, 0.03, runs + 1)
        y = 0.1 + 0.8 * x + rng.normal(0, spread, runs + 1)
        tested = [100 * np.mean(rng.binomial(10_000, [v] * 10) / 10_000) for v in (x[0], y[0])]
        cell = conditional_cell(
            PLACE, Runs(y[1:], y[1:]), Runs(x[1:], x[1:]),
            paper=tested[1], paper_reference=tested[0], gated=True,
        )  # fmt: skip
        rejected += not judged([_exactly(cell)])[0].within
    assert alarms(rejected, 2_000) > 1e-4
    assert rejected > 0


def test_a_gate_finds_a_difference_of_five_errors_and_allows_for_printed_digits() -> None:
    runs = Runs([0.80, 0.801, 0.799, 0.80], [0.8] * 4)
    near = cell_of(PLACE, runs, paper=80.04, gated=True, draws=10)
    far = cell_of(PLACE, runs, paper=80 + 0.05 + 5 * near.mc_error, gated=True, draws=10)
    cells = judged([near, far])
    assert [cell.within for cell in cells] == [True, False]
    assert cells[0].tolerance is not None
    assert cells[0].tolerance > 0.05
    # more gated cells share the one false alarm, so each gets a wider tolerance
    assert judged([near] * 50)[0].tolerance > cells[0].tolerance  # type: ignore[operator]


def test_a_cell_without_a_figure_of_the_paper_is_never_gated() -> None:
    runs = Runs([0.9, 0.91], [0.9, 0.91])
    cell = judged([cell_of(PLACE, runs, paper=None, gated=True, draws=10)])[0]
    assert (cell.gated, cell.within, cell.tolerance) == (False, None, None)


def _exactly(cell: Cell) -> Cell:
    return replace(cell, rounding=0.0)


# --- populations and rows --------------------------------------------------------------------


@pytest.mark.parametrize(
    "population",
    [
        same_sites(4, 5),
        drawn_sites(np.random.default_rng(3), 0.0, 0.4, sites=5, features=3),
        autoregressive(3, 6),
    ],
    ids=["same", "drawn", "correlated"],
)
def test_exact_accuracies_are_those_of_drawn_records(population: Population) -> None:
    rng = np.random.default_rng(4)
    rule = np.concatenate([[0.3], rng.normal(0.5, 0.5, population.features)])
    batch = population.batch(rng, 20_000, 0.5)
    right = batch.responses * (batch.design @ rule) > 0
    exact = population.accuracy(rule)
    # four and a half binomial deviations
    assert abs(np.mean(right) - exact) < 4.5 * np.sqrt(exact * (1 - exact) / len(right))


def test_batches_hold_the_share_of_classes_that_they_should() -> None:
    batch = same_sites(3, 2).batch(np.random.default_rng(5), 100, 0.8)
    assert batch.class_counts() == (60, 240)
    assert np.all(batch.design[:, 0] == 1)


@pytest.mark.parametrize("p", [10, 50])
def test_the_correlated_population_s_best_accuracy_is_ninety_percent(p: int) -> None:
    population = autoregressive(2, p)
    best = np.linalg.solve(population.root @ population.root.T, population.mean)
    assert population.accuracy(np.append(0.0, best)) == pytest.approx(0.9)
    assert population.accuracy(np.append(0.0, population.mean)) < 0.8


@pytest.mark.slow  # a row of a paper; its numbers are recorded in test_published_golden
def test_a_run_gives_every_method_and_ours_do_not_disturb_the_paper_s() -> None:
    index = next(i for i, row in enumerate(ROWS) if row.table == "3" and row.ratio == "4:1")
    plain, full = run_row(index, 0, ours=False), run_row(index, 0, ours=True)
    assert list(plain) == list(METHODS)
    assert all(full[name] == plain[name] for name in METHODS)
    # on balanced tests of unbalanced training, weighted classes do better: far beyond noise
    assert full["weighted"][0] > full["OnWP"][0] + 0.05
    outcome = run_private_row(0, 0)
    assert outcome["no privacy"][0] > outcome["local 0.5"][0]
    assert PRIVATE_ROWS[0].features == 50


def test_the_stored_results_hold_the_paper_s_figures_and_no_others() -> None:
    known = {
        (row.table, row.label, method): figure
        for row in ROWS
        for method, figure in zip(METHODS, row.paper, strict=True)
    }
    rows = [row for row in json.loads(RESULTS.read_text()) if row["table"] in ("1", "2", "3")]
    stored = {(row["table"], row["row"], row["column"]): row["paper"] for row in rows}
    assert {key: figure for key, figure in stored.items() if figure is not None} == known
    for row in rows:
        assert row["gated"] == (
            row["paper"] is not None and not (row["table"] == "3" and row["column"] == "OffWP")
        )
        assert (row["within"] is None) == (row["paper"] is None)


# --- Table 4 ---------------------------------------------------------------------------------

GENERATED = "generated by a test: not a recording of anybody"


def write_person(
    path: Path, labels: list[int], *, columns: tuple[str, ...] = (), value: str = ""
) -> None:
    """Write a generated file in HARTH's layout, with other columns in front."""
    rng = np.random.default_rng(len(labels))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "timestamp", *FEATURES, "label"])
        for i, label in enumerate(labels):
            readings = [f"{x:.4f}" for x in rng.normal(label % 3, 1.0, 6)]
            if value and i == 1:
                readings[2] = value
            writer.writerow([*map(str, range(len(columns))), GENERATED, *readings, label])


def test_generated_recordings_are_read_by_person(tmp_path: Path) -> None:
    write_person(tmp_path / "S901.csv", [1, 6, 7, 140, 2])
    write_person(tmp_path / "S902.csv", [8, 3, 13], columns=("index", ""))
    people = read_folder(tmp_path)
    assert list(people) == ["S901", "S902"]
    features, responses = people["S901"]
    assert features.shape == (5, 6)
    assert responses.tolist() == [1, -1, -1, 1, 1]
    assert people["S902"][1].tolist() == [-1, 1, 1]
    rng = np.random.default_rng(5)
    wanted = np.round(rng.normal(1, 1.0, 6), 4) / 8
    assert features[0] == pytest.approx(np.clip(wanted, -1, 1))
    data = six_figures.pooled_people(people)
    assert (data.name, data.clients, len(data.responses)) == ("HARTH", 2, 8)


def test_the_six_figures_are_those_of_the_counts() -> None:
    # 3 hits, 1 false alarm, 2 misses, 4 correct rejections
    said = np.array([1, 1, 1, 1, -1, -1, -1, -1, -1, -1.0])
    true = np.array([1, 1, 1, -1, 1, 1, -1, -1, -1, -1.0])
    assert six_figures.rates(said, true) == pytest.approx((70, 75, 60, 200 / 3, 80))
    assert six_figures.rates(-np.ones(3), np.ones(3)) == (0, 0, 0, 0, 0)


def test_every_method_runs_on_generated_recordings(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    for name in ("S905", "S906"):
        write_person(tmp_path / f"{name}.csv", rng.choice([1, 6, 7, 14], 1_500).tolist())
    found = six_figures.one_split(six_figures.pooled_people(read_folder(tmp_path)), 0)
    assert {q for _, q in found} == set(six_figures.TAILS)
    assert set(six_figures.PAPER) <= found.keys()
    assert all(len(figures) == len(six_figures.FIGURES) for figures in found.values())
    # label 7 shifts all readings as label 1 does, so a linear rule cannot tell those two apart
    assert 60 < found["OffNP", 1.0][0] < 95


def test_copies_of_all_sites_are_never_worse_than_one_site_alone() -> None:
    """In the committed results: `make papers` makes them again."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in json.loads(RESULTS.with_name("noisy_mle.json").read_text()):
        found.setdefault((row["table"], row["row"]), {})[row["column"]] = row["ours"]
    both = [of for of in found.values() if {"INFEM", "Site1"} <= of.keys()]
    assert len(both) > 20
    for of in both:
        assert of["INFEM"] < of["Site1"]
