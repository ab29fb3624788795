"""The privacy ledger: what studies on one source cost together, and what a limit allows of it.

Costs are computed here once more, from the formulas that the ledger stands on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from pipeline.errors import BudgetExceeded, ConfigError
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import report
from producers.budget import Limit
from producers.store import NO_LIMIT, ClientStore, Outgoing, Tally
from tests.databases import rows, sqlite_file
from tests.sgd import study_text as sgd_text
from tests.stage import OPEN, study_text

SOURCE = "csv:data.csv"
NORMAL = NormalDist()
#: Calibration takes discrete noise and the table's slack off the budget: at most a millionth.
CALIBRATION = 2e-6


@dataclass(frozen=True)
class Case:
    """A study as its author declares it; delta None: Laplace noise."""

    epsilon: float = 1.0
    delta: float | None = 1e-5
    records: int | None = None
    neighbours: str = "zero-out"

    def task(self, name: str) -> Task:
        lines = [
            f'mechanism = "discrete-{"gaussian" if self.delta else "laplace"}"',
            f'epsilon = {self.epsilon}\nneighbours = "{self.neighbours}"',
        ]
        if self.delta:
            lines.append(f"delta = {self.delta}")
        if self.records:
            lines.append(f'unit = "user"\nrecords = {self.records}')
        return task_of(parse_study(study_text(name, privacy="\n".join(lines))))

    def cost(self, of: Case) -> tuple[float, float | None]:
        """Return mu and pure epsilon for the unit and neighbours of another study."""
        doubled = 2 if of.neighbours == "replace-one" and self.neighbours == "zero-out" else 1
        times, records = (of.records or 1) * doubled, self.records or 1
        if self.delta is not None:
            return times * mu_at(self.epsilon, self.delta) / records, None
        pure = times * self.epsilon / records
        return -2 * NORMAL.inv_cdf(1 / (1 + math.exp(pure))), pure


def delta_at(mu: float, epsilon: float) -> float:
    """Return delta of a mu-GDP mechanism; Dong, Roth and Su (2022), corollary 1."""
    low, high = NORMAL.cdf(-epsilon / mu - mu / 2), NORMAL.cdf(-epsilon / mu + mu / 2)
    return high - math.exp(epsilon) * low


def bisect(rises: Any, target: float) -> float:
    """Return where a rising function reaches a target, by halving [0, 64]."""
    low, high = 0.0, 64.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < target else (low, middle)
    return high


def mu_at(epsilon: float, delta: float) -> float:
    return bisect(lambda mu: delta_at(mu, epsilon) if mu else 0.0, delta)


def epsilon_at(mu: float, delta: float) -> float:
    return bisect(lambda epsilon: -delta_at(mu, epsilon), -delta) if mu else 0.0


def bounds(costs: list[tuple[float, float | None]], delta: float) -> dict[str, float]:
    """Return every epsilon that holds at `delta` for all costs together, by its argument."""
    mixed = [mu for mu, pure in costs if pure is None]
    plain = sum(pure for _, pure in costs if pure is not None)
    found = {} if mixed else {"pure": plain}
    if delta:
        found["mu"] = epsilon_at(math.hypot(*(mu for mu, _ in costs)), delta)
    if delta and mixed:
        found["gaussian by mu, others pure"] = plain + epsilon_at(math.hypot(*mixed), delta)
    return found


def together(costs: list[tuple[float, float | None]], delta: float) -> float:
    return min(bounds(costs, delta).values())


def contents(path: Path) -> list[Any]:
    """Return everything that is stored but the refusals, and the sum of all tables."""
    apart = ('INSERT INTO "refusals"', 'INSERT INTO "identity"')
    with sqlite_file(f"file:{path}?mode=ro", uri=True) as db:
        rows = [line for line in db.iterdump() if not line.startswith(apart)]
        return rows + db.execute("SELECT client, ledger, created_at FROM identity").fetchall()


def start(store: ClientStore, task: Task, limit: Limit = NO_LIMIT, source: str = SOURCE) -> None:
    """Open a study and release once."""
    seq = store.open_stream(task, source, limit).next_seq
    store.release(
        task, source, [Outgoing(seq, b"bytes", [])], position=b"p%d" % seq,
        tally=Tally(20, {"a reason": 2}, 1), now=1e9,
    )  # fmt: skip


def refused(store: ClientStore, task: Task, path: Path, source: str = SOURCE) -> str:
    """Check that a release is refused, spends nothing, moves nothing, and is noted."""
    study = task.study.name
    before = store.open_stream(task, source)
    kept = contents(path)
    noted = rows(path, "SELECT reason FROM refusals WHERE study = ?", study)
    with pytest.raises(BudgetExceeded) as error:
        start(store, task, source=source)
    assert store.open_stream(task, source) == before
    assert contents(path) == kept
    after = rows(path, "SELECT reason FROM refusals WHERE study = ?", study)
    assert after == [*noted, (str(error.value),)]
    return str(error.value)


RECORD, USER = Case(), Case(epsilon=2.0, records=5)
PAIRS = {
    "gaussian + gaussian": (RECORD, Case(0.7, 1e-6), 1e-5),
    "gaussian + laplace": (RECORD, Case(0.5, None), 1e-5),
    "small gaussian + large laplace": (Case(0.1), Case(2.0, None), 1e-5),
    "laplace + gaussian": (Case(0.5, None), RECORD, 1e-6),
    "laplace + laplace": (Case(1.0, None), Case(0.5, None), 0.0),
    "laplace + laplace, with a delta": (Case(1.0, None), Case(0.5, None), 1e-2),
    "user + record": (USER, Case(0.1), 1e-5),
    "user + larger user": (USER, Case(0.5, 1e-6, records=20), 1e-5),
    "record + user": (RECORD, USER, 1e-5),
    "user laplace + record laplace": (Case(1.0, None, records=5), Case(0.2, None), 0.0),
    "replace-one + zero-out": (Case(neighbours="replace-one"), Case(0.4), 1e-5),
    "zero-out + replace-one": (RECORD, Case(0.4, neighbours="replace-one"), 1e-5),
    "user, replace-one + record, zero-out": (
        Case(2.0, records=5, neighbours="replace-one"), Case(0.05), 1e-5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_two_studies_are_allowed_from_what_they_cost_together(path: Path, name: str) -> None:
    first, second, delta = PAIRS[name]
    cost = [case.cost(of=first) for case in (first, second)]
    needed = together(cost, delta)
    alone = together(cost[:1], delta)
    with ClientStore(path, "site") as store:
        start(store, first.task("one"), Limit(needed * (1 - 2 * CALIBRATION), delta or None))
        assert f"reach epsilon {needed:.4g}" in refused(store, second.task("two"), path)
        [account] = report.ledger(path).values()
        assert account["spent"]["epsilon"] == pytest.approx(alone, rel=CALIBRATION)
        start(store, second.task("two"), Limit(needed * (1 + CALIBRATION)))
    [account] = report.ledger(path).values()
    assert account["spent"]["epsilon"] == pytest.approx(needed, rel=CALIBRATION)
    assert account["spent"]["mu"] == pytest.approx(math.hypot(cost[0][0], cost[1][0]), rel=1e-5)
    assert account["remaining"]["epsilon"] == pytest.approx(0, abs=4 * CALIBRATION * needed)
    assert account["protects"].endswith(f"({first.neighbours})")


def test_each_of_the_three_bounds_is_the_smallest_for_some_pair() -> None:
    found = set()
    for first, second, delta in PAIRS.values():
        all_bounds = bounds([case.cost(of=first) for case in (first, second)], delta)
        found.add(min(all_bounds, key=all_bounds.__getitem__))
    assert found == {"pure", "mu", "gaussian by mu, others pure"}


def test_a_study_may_release_its_own_budget_for_ever_and_is_charged_once(path: Path) -> None:
    for i, case in enumerate([RECORD, Case(1.0, None), USER, Case(20.0, 1e-9), Case(1e-4, 1e-4)]):
        task, source = case.task(f"s{i}"), f"csv:{i}.csv"
        with ClientStore(path, "site") as store:
            for _ in range(20):
                start(store, task, source=source)
    assert rows(path, "SELECT study, count(*) FROM spends GROUP BY study") == [
        (f"s{i}", 1) for i in range(5)
    ]
    assert rows(path, "SELECT count(*) FROM ledger") == [(100,)]


def test_a_third_study_finds_what_two_have_left(path: Path) -> None:
    one, two, three = Case(1.0), Case(0.5, None), Case(0.3)
    needed = together([case.cost(of=one) for case in (one, two, three)], 1e-5)
    with ClientStore(path, "site") as store:
        start(store, one.task("one"), Limit(needed * 0.999))
        start(store, two.task("two"))
        refused(store, three.task("three"), path)
        start(store, three.task("three"), Limit(needed * 1.001))


def test_a_gaussian_study_needs_a_delta_where_laplace_opened_the_source(path: Path) -> None:
    pure, gaussian = Case(1.0, None), Case(0.5, 1e-6)
    with ClientStore(path, "site") as store:
        start(store, pure.task("pure"))
        said = refused(store, gaussian.task("two"), path)
        assert "raise it with --delta-limit 1e-06 and --epsilon-limit" in said
        # however large the epsilon, without a delta there is no answer
        store.open_stream(gaussian.task("two"), SOURCE, Limit(epsilon=1e6))
        said = refused(store, gaussian.task("two"), path)
        assert "delta is used up; raise it with --delta-limit 1e-06 if the data owner" in said
        start(store, gaussian.task("two"), Limit(delta=1e-6))
        # and what has a delta once can never again be had without
        with pytest.raises(ConfigError, match="--epsilon-limit: 1 at delta 1e-06 is below"):
            store.open_stream(pure.task("pure"), SOURCE, Limit(1.0))


def test_limits_move_both_ways_but_never_below_what_is_spent(path: Path) -> None:
    task = RECORD.task("one")
    limit = "SELECT epsilon, delta FROM sources"
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE)
        assert rows(path, limit) == [(1.0, 1e-5)]
        # nothing is spent yet: the data owner may be stricter than the study, which then waits
        store.open_stream(task, SOURCE, Limit(0.5))
        refused(store, task, path)
        start(store, task, Limit(2.0))
        assert rows(path, limit) == [(2.0, 1e-5)]
        store.open_stream(task, SOURCE, Limit(1.0))
        assert rows(path, limit) == [(1.0, 1e-5)]
        for low in (Limit(0.99), Limit(delta=9e-6), Limit(0.5, 1e-5)):
            with pytest.raises(ConfigError, match="that studies have spent on source"):
                store.open_stream(task, SOURCE, low)
            assert rows(path, limit) == [(1.0, 1e-5)]
        store.open_stream(task, SOURCE, Limit(delta=1e-4))
        start(store, task)
        assert rows(path, limit) == [(1.0, 1e-4)]


def test_no_study_after_the_first_changes_the_limit_by_being_there(path: Path) -> None:
    with ClientStore(path, "site") as store:
        start(store, RECORD.task("one"))
        for name, case in {"two": Case(5.0), "three": USER, "four": Case(3.0, None)}.items():
            refused(store, case.task(name), path)
    assert rows(path, "SELECT * FROM sources") == [(SOURCE, 1.0, 1e-5, 1, "zero-out")]


UNPROTECTED = {
    "none": OPEN,
    "simulation": 'mechanism = "insecure-simulation"\nepsilon = 1.0\ndelta = 1e-5\nseed = 1',
}


def unprotected(name: str, kind: str) -> Task:
    return task_of(parse_study(study_text(name, privacy=UNPROTECTED[kind])))


@pytest.mark.parametrize("kind", UNPROTECTED)
def test_a_study_without_privacy_cannot_read_a_limited_source(path: Path, kind: str) -> None:
    with ClientStore(path, "site") as store:
        store.open_stream(RECORD.task("one"), SOURCE, Limit(1e9, 0.5))
        # already before the private study has spent anything
        assert "without privacy cannot" in refused(store, unprotected("bare", kind), path)
        start(store, RECORD.task("one"))
        refused(store, unprotected("bare", kind), path)


@pytest.mark.parametrize("kind", UNPROTECTED)
def test_no_limit_holds_where_a_study_without_privacy_has_released(path: Path, kind: str) -> None:
    with ClientStore(path, "site") as store:
        start(store, unprotected("bare", kind))
        for name in ("one", "two", "three"):
            start(store, RECORD.task(name))
        with pytest.raises(ConfigError, match="no limit holds for it any more"):
            store.open_stream(RECORD.task("one"), SOURCE, Limit(1.0))
    [account] = report.ledger(path).values()
    assert (account["limit"], account["spent"], account["remaining"]) == (None, None, None)
    assert [study["mu"] is None for study in account["studies"]] == [True, False, False, False]


@pytest.mark.parametrize("kind", UNPROTECTED)
def test_a_study_without_privacy_that_never_released_lifts_no_limit(path: Path, kind: str) -> None:
    with ClientStore(path, "site") as store:
        store.open_stream(unprotected("bare", kind), SOURCE)
        for name in ("one", "two"):
            store.open_stream(USER.task(name), SOURCE)
        start(store, USER.task("one"))
        refused(store, USER.task("two"), path)
        refused(store, unprotected("bare", kind), path)
    # the source is protected as the first private study asks, not as the one that came before it
    assert rows(path, "SELECT * FROM sources") == [(SOURCE, 2.0, 1e-5, 5, "zero-out")]


def test_one_file_has_one_name(path: Path) -> None:
    task, other = RECORD.task("one"), RECORD.task("two")
    with ClientStore(path, "site") as store:
        store.open_stream(task, SOURCE, location="/data.csv")
        start(store, task)
        with pytest.raises(ConfigError, match=r"knows the file as source 'csv:data\.csv'"):
            store.open_stream(other, "alias", location="/data.csv")
        # nothing of the refused name stays behind
        assert rows(path, "SELECT source FROM sources") == [(SOURCE,)]
        assert rows(path, "SELECT study FROM streams") == [("one",)]
        # several files may share a name, and then share its budget
        store.open_stream(other, SOURCE, location="/more.csv")
        refused(store, other, path)
        # of a file nothing was released from, a name that was refused says nothing
        store.open_stream(other, "more", location="/more.csv", rebind=True)
        start(store, other, source="more")
        with pytest.raises(ConfigError, match="knows the file as source 'more'"):
            store.open_stream(RECORD.task("three"), SOURCE, location="/more.csv")


def test_sources_and_clients_have_budgets_of_their_own(path: Path) -> None:
    with ClientStore(path, "site") as store:
        start(store, RECORD.task("one"))
        refused(store, RECORD.task("two"), path)
        start(store, RECORD.task("three"), source="csv:other.csv")
    with ClientStore(path.with_name("b.db"), "b") as store:
        start(store, RECORD.task("two"))
    spent = {name: facts["spent"]["epsilon"] for name, facts in report.ledger(path).items()}
    assert spent == {name: pytest.approx(1, rel=CALIBRATION) for name in (SOURCE, "csv:other.csv")}


def gradients(name: str, records: int, epsilon: float = 2.0) -> Task:
    """Return a study of gradients of single records, for users of so many."""
    user = f'neighbours = "replace-one"\nunit = "user"\nrecords = {records}'
    text = sgd_text(name=name, epsilon=epsilon).replace('neighbours = "replace-one"', user)
    return task_of(parse_study(text))


def test_gradients_of_a_users_records_compose(path: Path) -> None:
    with ClientStore(path, "site") as store:
        start(store, gradients("one", 9))
        # the limit is the first study's budget for 9 records; one for 36 costs those half as much
        store.open_stream(gradients("two", 36), SOURCE, Limit(epsilon=2.5))
        start(store, gradients("two", 36))
        assert refused(store, gradients("three", 9), path)
    found = report.ledger(path)[SOURCE]["spent"]
    mu = mu_at(2.0, 1e-6)
    assert found["mu"] == pytest.approx(math.hypot(mu, mu / 2), rel=CALIBRATION)


def personal(level: str | None) -> Task:
    """Return a study with levels, as a client sees it whose records may have one of them."""
    levels = 'personal = { column = "c", levels = { strict = 0.5, normal = 2.0 } }'
    text = sgd_text(name="levels", epsilon=2.0).replace("[window]", f"{levels}\n[window]")
    return task_of(parse_study(text), level)


def test_a_client_is_charged_the_loosest_level_that_its_records_may_have(path: Path) -> None:
    def spent() -> tuple[float, float]:
        facts = report.ledger(path)[SOURCE]
        [study] = facts["studies"]
        return facts["spent"]["epsilon"], study["epsilon"]

    with ClientStore(path, "site") as store:
        start(store, personal("strict"))
        assert spent() == (pytest.approx(0.5, rel=CALIBRATION), 0.5)
        # the limit is what the first client asked for: a looser level needs the owner's word
        assert "the limit is 0.5" in refused(store, personal(None), path)
        store.open_stream(personal(None), SOURCE, Limit(epsilon=2.0))
        start(store, personal(None))
        assert spent() == (pytest.approx(2.0, rel=CALIBRATION), 2.0)
        # what has left stays spent
        start(store, personal("strict"))
        assert spent() == (pytest.approx(2.0, rel=CALIBRATION), 2.0)


def test_lost_releases_are_charged_at_the_loosest_level(path: Path) -> None:
    with ClientStore(path, "site") as store:
        store.open_stream(personal("strict"), SOURCE)
        store.charge_lost(personal("strict"), SOURCE, range(3), owed=0, now=1e9)
    assert report.ledger(path)[SOURCE]["spent"]["epsilon"] == pytest.approx(2.0, rel=CALIBRATION)


def test_noise_that_shows_an_empty_slot_is_refused_where_absences_are_limited(path: Path) -> None:
    with ClientStore(path, "site") as store:
        start(store, Case(neighbours="zero-out").task("first"), Limit(epsilon=15.0))
        assert "privacy.personal.column" in refused(store, personal("normal"), path)
        assert "privacy.personal.column" in refused(store, personal(None), path)
        # empty slots have the strictest noise, and so have all others
        start(store, personal("strict"))
    with ClientStore(path.with_name("other"), "other") as store:
        start(store, Case(neighbours="replace-one").task("first"), Limit(epsilon=15.0))
        start(store, personal("normal"))
