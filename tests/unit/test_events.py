"""Privacy events: a closed set, one form for each, and what is at least as costly as two."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PrivacyError
from pipeline.privacy.accounting import Unit, total_epsilon, total_mu
from pipeline.privacy.events import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    Pure,
    Renyi,
    Repeated,
    TotalVariation,
    compose,
    decode,
    encode,
    group,
    worse,
)

CURVE = Renyi((2.0, 4.0, 8.0), (0.1, 0.2, 0.4))
SINGLE = st.one_of(
    st.sampled_from([0.1, 0.3, 1.0]).map(Gaussian),
    st.sampled_from([0.1, 0.3, 1.0]).map(Pure),
    st.sampled_from([1e-9, 3e-8]).map(TotalVariation),
    st.sampled_from([CURVE, Renyi((2.0, 4.0, 8.0), (0.2, 0.3, 0.3))]),
)
EVENTS = st.lists(SINGLE, min_size=1, max_size=6).map(compose)


@given(EVENTS)
def test_what_is_written_is_read(event: Event) -> None:
    assert decode(encode(event)) == event


@given(st.lists(SINGLE, min_size=1, max_size=5))
def test_several_events_have_one_form_in_any_order_and_any_nesting(events: list[Event]) -> None:
    whole = compose(events)
    for order in itertools.islice(itertools.permutations(events), 6):
        assert compose(order) == whole
        assert compose([compose(order[:1]), *([compose(order[1:])] if order[1:] else [])]) == whole
    assert compose([*events, *events]) == compose({whole: 2})


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"kind": "gaussian/1"}', '{"kind": "gaussian/2", "mu": 1.0}',
        '{"kind": "sampled/1", "mu": 1.0}', '{"kind": "gaussian/1", "mu": 0.0}',
        '{"kind": "gaussian/1", "mu": -1.0}', '{"kind": "pure/1", "epsilon": "1"}',
        '{"kind": "gaussian/1", "mu": 1.0, "rate": 0.1}', '{"kind": "composed/1"}',
        '{"kind": "renyi/1", "orders": [2.0], "epsilons": []}',
        '{"kind": "renyi/1", "orders": [], "epsilons": []}',
        '{"kind": "renyi/1", "orders": [4.0, 2.0], "epsilons": [0.1, 0.2]}',
        '{"kind": "renyi/1", "orders": [2.0, 4.0], "epsilons": [0.2, 0.1]}',
        '{"kind": "renyi/1", "orders": [1.0], "epsilons": [0.1]}',
        '{"kind": "composed/1", "parts": [{"event": {"kind": "non-private/1"}, "times": 0}]}',
        '{"kind": "composed/1", "parts": [{"event": {"kind": "sampled/1"}, "times": 1}]}',
        '{"kind": "composed/1", "parts": []}',
        '{"kind": "total-variation/1", "distance": 0.0}',
        '{"kind": "total-variation/1", "distance": 1.1}',
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(PrivacyError, match="use the version"):
        decode(text)


def test_the_form_of_each_kind_is_what_ledgers_hold() -> None:
    """A change of these lines is a new version of a kind: old ledgers hold them for ever."""
    assert json.loads(encode(Gaussian(0.5))) == {"kind": "gaussian/1", "mu": 0.5}
    assert json.loads(encode(Pure(0.5))) == {"kind": "pure/1", "epsilon": 0.5}
    assert json.loads(encode(TotalVariation(1e-9))) == {
        "kind": "total-variation/1", "distance": 1e-9,
    }  # fmt: skip
    assert json.loads(encode(NonPrivate())) == {"kind": "non-private/1"}
    assert json.loads(encode(CURVE)) == {
        "kind": "renyi/1", "orders": [2.0, 4.0, 8.0], "epsilons": [0.1, 0.2, 0.4],
    }  # fmt: skip
    assert json.loads(encode(compose([Pure(0.5), Pure(0.5)]))) == {
        "kind": "composed/1",
        "parts": [{"event": {"kind": "pure/1", "epsilon": 0.5}, "times": 2}],
    }


@given(EVENTS, EVENTS, EVENTS)
def test_the_worse_of_two_is_no_lower_than_either_however_often_it_is_taken(
    one: Event, two: Event, three: Event
) -> None:
    both = worse(one, two)
    for delta in (0.0, 1e-6):
        for each in (one, two):
            assert total_epsilon([both], delta) >= total_epsilon([each], delta) * (1 - 1e-12)
    assert both == worse(two, one)
    assert worse(both, one) == worse(both, two) == both == worse(both, both)
    assert worse(worse(one, two), three) == worse(one, worse(two, three))
    # no more than both together, so that the same spend told twice is paid once
    assert total_mu([both]) <= total_mu([one, two])


def test_the_larger_of_two_costs_of_a_kind_is_the_worse() -> None:
    assert worse(Gaussian(0.3), Gaussian(0.5)) == Gaussian(0.5)
    assert worse(Pure(0.3), Pure(0.5)) == Pure(0.5)
    few, many = compose({Pure(0.3): 2, Pure(0.1): 1}), compose({Pure(0.2): 4})
    assert worse(few, many) == compose({Pure(0.3): 2, Pure(0.2): 2})
    assert worse(NonPrivate(), Gaussian(0.3)) == NonPrivate() == worse(Pure(9.0), NonPrivate())


def test_a_curve_that_another_machine_finds_a_hair_apart_is_not_paid_twice() -> None:
    hair = Renyi(CURVE.orders, tuple(math.nextafter(one, 0) for one in CURVE.epsilons))
    assert worse(CURVE, hair) == worse(hair, CURVE) == CURVE
    crossing = Renyi(CURVE.orders, (0.05, 0.2, 0.6))
    assert worse(CURVE, crossing) == Renyi(CURVE.orders, (0.1, 0.2, 0.6))
    drawn, others = (compose([one, TotalVariation(t)]) for one, t in ((CURVE, 1e-9), (hair, 2e-9)))
    assert worse(drawn, others) == compose([CURVE, TotalVariation(2e-9)])
    # of several, each order has its own largest
    twice, lower = compose({CURVE: 2, hair: 1}), Renyi(CURVE.orders, (0.09, 0.2, 0.6))
    assert worse(twice, lower) == compose(
        [Renyi(CURVE.orders, (0.1, 0.2, 0.6)), CURVE, hair]
    )  # fmt: skip
    apart = Renyi((3.0,), (0.1,))
    assert worse(CURVE, apart) == compose([CURVE, apart])


def test_releases_of_which_one_protects_nobody_protect_nobody() -> None:
    for events in ([NonPrivate()] * 2, [Gaussian(1.0), NonPrivate()], {NonPrivate(): 2**60}):
        assert compose(events) == NonPrivate()
    twice = Composed((Repeated(NonPrivate(), 2),))
    assert worse(twice, Gaussian(1.0)) == worse(Gaussian(1.0), twice) == NonPrivate()
    assert decode(encode(twice)) == NonPrivate()


@pytest.mark.parametrize("single", [Gaussian(1.0), Pure(1.0), CURVE])
def test_a_cost_that_is_written_in_two_parts_counts_as_one(single: Gaussian | Pure | Renyi) -> None:
    parts = Composed((Repeated(single, 3), Repeated(single, 1)))
    assert worse(parts, parts) == worse(parts, single) == worse(single, parts)
    assert worse(parts, parts) == decode(encode(parts)) == compose({single: 4})
    assert decode(encode(Composed((Repeated(single, 1),)))) == single


def test_what_could_not_be_read_again_is_not_made() -> None:
    for count in (0, 2**53 + 1):
        with pytest.raises(PrivacyError, match="2\\^53"):
            compose({Pure(0.1): count})
    with pytest.raises(PrivacyError, match="at least one"):
        compose([])
    largest = compose({Gaussian(0.5): 2**53, Pure(0.5): 1})
    assert decode(encode(group(largest, 2 * 10**9))) == group(largest, 2 * 10**9)
    for event in (Gaussian(0.5), Pure(0.5), compose({Gaussian(0.5): 2**53})):
        with pytest.raises(PrivacyError, match="unit of fewer records"):
            group(event, 2 * 10**9 + 1)
    with pytest.raises(PrivacyError, match="unit of fewer records"):
        group(Renyi((8.0,), (0.5e9,)), 2)


def test_a_group_pays_for_each_single_event() -> None:
    whole = compose({Gaussian(0.3): 2, Pure(0.1): 3})
    assert group(whole, 4) == compose({Gaussian(1.2): 2, Pure(0.4): 3})
    assert group(whole, 1) == whole
    assert group(compose([whole, NonPrivate()]), 4) == NonPrivate()
    # Mironov 2017, proposition 2: of two records, order 8 says something of order 4
    assert group(CURVE, 2) == Renyi((2.0, 4.0), (3 * 0.2, 3 * 0.4))
    assert group(compose({CURVE: 5}), 2) == compose({group(CURVE, 2): 5})
    with pytest.raises(PrivacyError, match="larger orders"):
        group(CURVE, 5)


def test_two_curves_that_a_group_makes_one_are_both_counted() -> None:
    other = Renyi((3.0, 4.0, 8.0), (0.1, 0.2, 0.4))
    assert group(compose([CURVE, other]), 2) == compose({group(CURVE, 2): 2})


def test_a_unit_of_records_with_noise_of_their_own_pays_as_a_composition() -> None:
    unit = Unit(5, "zero-out")
    own = unit.convert(CURVE, "zero-out", noise_per_record=True)
    assert own == compose({CURVE: 5})
    assert isinstance(own, Composed)
    assert math.isinf(total_mu([own]))
    assert total_epsilon([own], 1e-6) < math.inf == total_epsilon([own], 0.0)


def test_a_curve_costs_what_its_best_order_says() -> None:
    """Canonne, Kamath and Steinke 2020, proposition 12, at each order by hand."""
    delta = 1e-6
    expected = min(
        e + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a, e in zip(CURVE.orders, CURVE.epsilons, strict=True)
    )
    assert total_epsilon([CURVE], delta) == pytest.approx(expected, rel=1e-14)
    # an order that one of them does not give is bounded by its next larger one
    sparse = Renyi((8.0,), (0.4,))
    assert total_epsilon([sparse, CURVE], delta) <= total_epsilon([sparse, sparse], delta)
    assert total_epsilon([CURVE, Pure(3.0)], delta) <= 3.0 + expected
