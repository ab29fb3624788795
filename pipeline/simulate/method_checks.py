"""What every method must keep: the compliance suite, for methods of this project and of others.

Each check takes a `Case`, a study with records for it, and raises AssertionError where the method
breaks what the rest of the pipeline relies on. `CHECKS` has all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pipeline.errors import StateError
from pipeline.messages.estimate import Provenance, compose, write_estimate
from pipeline.messages.release import Decoder, Incoming, seal
from pipeline.methods import method_of, server_of, task_of
from pipeline.privacy.events import Event, Renyi, group, parts
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays, stack
from pipeline.release.layout import Rows, short
from pipeline.release.model import Model, round_model
from pipeline.release.privatise import disclose, privatise
from pipeline.release.query import LatticePart, Query
from pipeline.release.task import Task, form_of
from pipeline.study.model import Study
from pipeline.types import Vector

#: Neighbouring windows that are tried, and by how much rounding may pass the budget.
PAIRS, ROUNDING = 200, 1e-6


class Law(Protocol):
    """What the parts of a release are drawn by whose cost is a Renyi curve."""

    def divergences(self, other: Any, orders: Vector) -> Vector:
        """Return its Renyi divergences from another such law, exactly, of orders of shape (n,)."""


@runtime_checkable
class Drawn(Protocol):
    """A part of a query that is drawn by a law of a whole window."""

    @property
    def law(self) -> Law:
        """The law."""


@dataclass(frozen=True)
class Case:
    """A study and encoded records that fit it.

    windows: Full windows, each at most `window.records` long; at least six, of which two differ.
    """

    study: Study
    windows: Sequence[Arrays]

    @cached_property
    def task(self) -> Task:
        """The study's task, as the client whose windows these are has it."""
        return task_of(self.study).of_client("c")

    def models(self) -> list[Model]:
        """Return a model for each window: the public start first, then some that moved on."""
        task, rng = self.task, np.random.default_rng(7)
        found = []
        for number in range(len(self.windows)):
            version = max(0, number - 1)
            if not version:
                found.append(task.first_model)
                continue
            point = rng.normal(0.0, 0.2, task.size)
            found.append(round_model(version, point, (1.0, 1.0), watermark=number * task.slots))
        return found

    def payloads(self) -> list[bytes]:
        """Return the releases of all windows as they are sent; a simulation has the same again."""
        task, made = self.task, []
        for seq, (window, model) in enumerate(zip(self.windows, self.models(), strict=True)):
            if task.study.noised:
                shown = window if task.keeps_slots else window.sound
                answer = privatise(task, task.query(shown, model), SeededStream(3, "check", seq))
                payload = seal(task, answer, client="c", ledger="l", seq=seq)
            else:
                opened = disclose(task, task.open_query(window.sound, model))
                payload = seal(task, opened, client="c", ledger="l", seq=seq)
            made.append(payload)
        return made

    def rows(self) -> Rows:
        """Return the same as a worker reads them."""
        incoming = self.read(self.payloads())
        assert not incoming.faults, incoming.faults
        return incoming.rows

    def read(self, payloads: Sequence[bytes]) -> Incoming:
        """Read payloads as a worker does."""
        return Decoder(self.task).read(payloads, [b"c"] * len(payloads))


def splitting_changes_nothing(case: Case) -> None:
    """Folding a batch equals folding its releases one by one, bit for bit."""
    server, rows = server_of(case.task), case.rows()
    whole = _folded(server, [rows])
    for cut in (1, 2, len(rows) - 1):
        assert _folded(server, [rows[:cut], rows[cut:]]) == whole
    assert _folded(server, [rows[i : i + 1] for i in range(len(rows))]) == whole


def order_shows_only_where_it_is_said(case: Case) -> None:
    """Releases in any order give the same bits, unless the method says that order matters."""
    server, rows = server_of(case.task), case.rows()
    turned = _folded(server, [rows[::-1]])
    assert server.ordered or turned == _folded(server, [rows])


def merging_is_adding(case: Case) -> None:
    """Two partitions together say what one log of all releases says, where states add up."""
    server, rows = server_of(case.task), case.rows()
    half = len(rows) // 2
    one, two = _state(server, [rows[:half]]), _state(server, [rows[half:]])
    before = two.encode()
    one.add(two)
    assert two.encode() == before, "merging changes the state that is added"
    assert (one.releases, one.slots) == (len(rows), _state(server, [rows]).slots)
    if not server.ordered:
        assert one.encode() == _folded(server, [rows])


def states_survive_storage(case: Case) -> None:
    """States are read as they were stored; what is missing or unknown is refused."""
    server = server_of(case.task)
    for batches in ([], [case.rows()]):
        state = _state(server, batches)
        fields = state.encode()
        assert set(fields) == set(state.names)
        assert server.read(fields).encode() == fields
        for broken in ({}, {**fields, "unheard-of": b""}, {n: d[:-1] for n, d in fields.items()}):
            try:
                server.read(broken)
            except StateError:
                continue
            raise AssertionError("a damaged state is read as if it were whole")


def only_its_own_form_is_folded(case: Case) -> None:
    """Honest releases pass; one that is shorter, in other units or of another name is refused."""
    form, payloads = form_of(case.task), case.payloads()
    assert not case.read(payloads).faults
    for payload in payloads:
        other = np.frombuffer(payload, form.dtype).copy()
        other["layout"] = short(f"{form.layout.text},more:1:0")
        renamed = np.frombuffer(payload, form.dtype).copy()
        renamed["study"] = short(f"{case.study.name}-2")
        forged = [payload[:-1], payload[:-8], payload + bytes(8)]
        found = case.read([*forged, other.tobytes(), renamed.tobytes()])
        reasons = [found.faults[place].reason for place in sorted(found.faults)]
        assert reasons == [*["wrong-shape"] * 3, "wrong-unit", "wrong-study"]


def forged_numbers_are_out_of_range(case: Case) -> None:
    """Numbers that no honest client can send are found out before they are folded."""
    form, whole = form_of(case.task), np.frombuffer(case.payloads()[-1], form_of(case.task).dtype)
    largest = 2**62 if form.layout.number == "<i8" else 1e200
    for name in ("point", "sums"):
        for place in range(whole[name].shape[1]):
            for value in (largest, -largest):
                forged = whole.copy()
                forged[name][0, place] = value
                [fault] = case.read([forged.tobytes()]).faults.values()
                assert fault.reason == "out-of-range", (name, place)


def neighbours_cost_no_more_than_the_budget(case: Case) -> None:
    """Whatever one record is, all parts of its release together cost at most its budget."""
    task = case.task
    if not task.study.noised:
        return
    rng, models = np.random.default_rng(5), case.models()
    low, high = task.ends
    zero_out = task.study.privacy.neighbours == "zero-out"
    for number in range(PAIRS):
        window, model = case.windows[number % len(case.windows)], models[number % len(models)]
        features, responses = window.features.copy(), window.responses.copy()
        ends = [np.where(rng.random(len(low)) < 0.5, low, high), rng.choice(responses)]
        before = task.query(Arrays(features, responses), model)
        index = int(rng.integers(len(responses)))
        features[index], responses[index] = ends
        absent = zero_out and bool(number % 2)
        if absent:
            responses[index] = math.nan
        changed = Arrays(features, responses)
        after = task.query(changed if task.keeps_slots else changed.sound, model)
        # an exchange is two absences
        changes = 2 if zero_out and not absent else 1
        curves = [one for one, _ in parts(task.event(model)) if isinstance(one, Renyi)]
        if curves:
            _stay_below(group(curves[0], changes), before, after)
            continue
        cost = _cost(task, before, after)
        allowed = changes * task.budget.per_record
        assert cost <= allowed * (1 + ROUNDING), (cost, allowed)


def noise_has_no_seed(case: Case) -> None:
    """Noise of a study that keeps a guarantee is fresh, even if it is handed a seed."""
    pairs = zip(case.payloads(), case.payloads(), strict=True)
    assert not case.study.private or all(one != other for one, other in pairs)


def estimates_are_numbers_for_everybody(case: Case) -> None:
    """From nothing to all releases there is an estimate that JSON can hold, and always the same."""
    task = case.task
    server, rows = server_of(task), case.rows()
    for count in range(len(rows) + 1):
        state = _state(server, [rows[:count]] if count else [])
        begun = [0] if state.begun else []
        one, two = (server.estimate([(1.0, state)], begun) for _ in range(2))
        point, weights = server.next_point([(1.0, state)])
        assert np.array_equal(point, one.expansion)
        assert weights == one.weights
        where = Provenance(1, 0, 0, 0, None, [], None, "2026-01-01T00:00:00Z")
        message = write_estimate(compose(task, one, where))
        assert message == write_estimate(compose(task, two, where))
        assert json.loads(message)["status"] == one.status
        assert bool(one.reason) or one.status == "ready"
        assert (one.status == "empty") == (count == 0)


def it_says_what_it_is(case: Case) -> None:
    """Names, facts, warnings and sizes are there for people and programs."""
    method = method_of(case.study)
    plan = method.plan(case.task, 10_000, 4)
    assert method.spec.title
    assert method.spec.kind == case.study.estimator.kind
    assert case.study.estimator.loss in method.spec.losses
    assert json.dumps(dict(plan.facts))
    assert all(isinstance(words, str) for words in plan.warnings)
    assert plan.usual > 0


#: Every check.
CHECKS: tuple[Callable[[Case], None], ...] = (
    splitting_changes_nothing,
    order_shows_only_where_it_is_said,
    merging_is_adding,
    states_survive_storage,
    only_its_own_form_is_folded,
    forged_numbers_are_out_of_range,
    neighbours_cost_no_more_than_the_budget,
    noise_has_no_seed,
    estimates_are_numbers_for_everybody,
    it_says_what_it_is,
)


def windows_of(task: Task, rows: Arrays) -> list[Arrays]:
    """Cut records into full windows of a study."""
    size = task.slots
    return [
        stack(Arrays(rows.features[at : at + size], rows.responses[at : at + size]), task.size - 1)
        for at in range(0, len(rows.responses) - size + 1, size)
    ]


def _state(server: Any, batches: Iterable[Rows]) -> Any:
    state = server.empty()
    for batch in batches:
        server.fold(state, batch)
    return state


def _folded(server: Any, batches: Iterable[Rows]) -> dict[str, bytes]:
    fields: dict[str, bytes] = _state(server, batches).encode()
    return fields


def _stay_below(curve: Event, one: Query, two: Query) -> None:
    """Compare the divergences of two windows' copies with what a curve says, both ways."""
    assert isinstance(curve, Renyi)
    laws = [_law(query) for query in (one, two)]
    orders, allowed = np.array(curve.orders), np.array(curve.epsilons)
    for left, right in (laws, laws[::-1]):
        costs = left.divergences(right, orders)
        assert (costs <= allowed * (1 + ROUNDING)).all(), (orders, costs, allowed)


def _law(query: Query) -> Law:
    """Return the one law that all parts of a window are drawn by."""
    laws = [part.law for part in query.parts.values() if isinstance(part, Drawn)]
    assert len(laws) == len(query.parts)
    assert all(law is laws[0] for law in laws)
    return laws[0]


def _cost(task: Task, one: Query, two: Query) -> float:
    """Return what two windows that differ so cost, in the mechanism's own terms: mu or epsilon."""
    total, order = 0.0, task.budget.mechanism.order
    for name, part in one.parts.items():
        other = two.parts[name]
        assert isinstance(part, LatticePart)
        assert isinstance(other, LatticePart)
        for left, right in zip(part.pieces(), other.pieces(), strict=True):
            deviation = left.channel.noise.standard_deviation
            # a Laplace law's scale is its deviation over the root of two
            unit = deviation if order == 2 else deviation / math.sqrt(2)
            moved = np.abs(left.values - right.values) / unit
            total += float((moved**order).sum())
    return float(total ** (1 / order))
