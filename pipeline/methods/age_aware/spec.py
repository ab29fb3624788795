"""What a study of this method says of its own: `[estimator.method]` and its model cards."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.markov import Chain, birth_death, check_law, cyclic
from pipeline.study.data import Strict, key
from pipeline.study.model import Study
from pipeline.study.tables import RULE, is_plain, strict

#: Most clients of a study: a plan has a cost for each of them in each slot.
MOST_CLIENTS = 10_000
_RANGE = re.compile(r"(.*)\{(\d{1,6})\.\.(\d{1,6})\}(.*)")
#: What each way of mixing is described by.
_KEYS = {
    "cyclic": {"states", "q"},
    "birth-death": {"states", "q"},
    "matrix": {"states", "matrix"},
    "constant": {"rate", "spread"},
}
_Number = Annotated[float, Meta(ge=-1e12, le=1e12)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class Group(Strict, frozen=True, kw_only=True):
    """`[estimator.method.groups.NAME]`: some clients and the model card of their records."""

    clients: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=200)]],
        key(
            "ids of clients; meter-{1..30} stands for thirty of them",
            ["meter-{1..30}"],
            min_length=1,
            max_length=MOST_CLIENTS,
        ),
    ]
    mixing: Annotated[
        Literal["cyclic", "birth-death", "matrix", "constant"],
        key(
            'how a record changes from slot to slot: "cyclic" or "birth-death" with '
            'states and q, "matrix" with states and matrix, "constant" with rate and spread',
            "cyclic",
        ),
    ]
    states: Annotated[
        list[_Number] | None,
        key("values of a record in its own unit", [0, 60, 120, 180]),
    ] = None
    q: Annotated[_Share | None, key("probability of a step", 0.3)] = None
    matrix: Annotated[
        list[list[_Share]] | None,
        key("probability of each step, one row for each state, that sum to 1"),
    ] = None
    rate: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        key(
            "a promise: after one slot no value is more than (2 - rate) / rate times "
            "as likely after one value as after another; rate 0.1: 19 times",
            0.1,
        ),
    ] = None
    spread: Annotated[
        Annotated[float, Meta(gt=0, le=1e12)] | None,
        key("about the standard deviation of a record, public", 40.0),
    ] = None
    law: Annotated[
        list[_Share] | None,
        key("law of a record in the first slot of a round; default: stationary"),
    ] = None
    error: Annotated[
        float,
        key(
            "most that a row of matrix may be from the true one, as a "
            "total variation distance: `veilstream schedule card` says it",
            ge=0,
            lt=1,
        ),
    ] = 0.0
    card_epsilon: Annotated[
        float,
        key("what it cost to estimate the card from these records", ge=0, le=20),
    ] = 0.0
    last_round: Annotated[
        Annotated[int, Meta(ge=0, le=2**40)] | None,
        key("last round in which the card holds; default: no end", 364),
    ] = None


class Spec(Strict, frozen=True, kw_only=True):
    """`[estimator.method]` of age-aware collection."""

    slots: Annotated[int, key("slots of a round", 48, ge=1, le=10_000)]
    epsilon_now: Annotated[
        float,
        key("of one round, about a record's present value", 0.1, ge=1e-4, le=20),
    ]
    groups: Annotated[dict[str, Group], key("tables of clients with a model card", min_length=1)]
    cap: Annotated[
        float,
        key("most epsilon of one round about the value collected", 1.0, ge=1e-4, le=20),
    ] = 1.0
    delta: Annotated[
        Literal["prior-free", "stationary", "spectral"],
        key(
            'whose knowledge the promise holds against: "prior-free" (default) '
            'anybody\'s; "stationary", and its bound "spectral", that of the long-run law alone'
        ),
    ] = "prior-free"
    use: Annotated[
        Literal["debiased", "wiener"],
        key(
            '"debiased" adds the drift that the cards expect; "wiener" weighs upload '
            "and card, whose level must be known"
        ),
    ] = "debiased"
    capacity: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_CLIENTS)] | None,
        key("most clients of one slot; default: any number", 1),
    ] = None
    closed: Annotated[
        list[Annotated[int, Meta(ge=0)]],
        key("slots in which nobody collects, from 0", [0, 1]),
    ] = msgspec.field(default_factory=list)


def spec_of(study: Study) -> Spec:
    """Return the table of a study; ConfigError if it has a key or a value that is not allowed."""
    return strict(study.estimator.method or {}, Spec, at="estimator.method")


def check(study: Study) -> None:
    """Refuse what does not go with the method; ConfigError, with key, allowed and way out."""
    estimator, privacy, spec = study.estimator, study.privacy, spec_of(study)
    if privacy.mechanism != "discrete-laplace":
        raise ConfigError(
            'privacy.mechanism: kind = "age-aware" turns pure epsilons into noise; set '
            'mechanism = "discrete-laplace"'
        )
    if privacy.neighbours != "replace-one" or privacy.unit != "record":
        raise ConfigError(
            'privacy.neighbours: kind = "age-aware" hides one value of one record; set '
            'neighbours = "replace-one" and unit = "record"'
        )
    for absent in ("forgetting", "norm_bound", "residual_bound", "noise_scale", "class_weights"):
        if getattr(estimator, absent) is not None:
            raise ConfigError(f'estimator.{absent}: kind = "age-aware" has no such key; remove it')
    if study.largest_share is not None:
        raise ConfigError(
            'trust.largest_share: with kind = "age-aware" each client counts once in a round, as '
            "all others do; remove it"
        )
    if study.study.before:
        raise ConfigError(
            'study.follows: rounds of kind = "age-aware" are counted from the beginning of each '
            "client's source, and clients end the earlier study at different rounds; remove it, "
            "and begin all sources anew at one time"
        )
    if study.data.features:
        raise ConfigError(
            'data.features: kind = "age-aware" collects the response alone; set features = {}'
        )
    if study.window.seconds is not None:
        raise ConfigError(
            "window.seconds: a round that is not over would be sent fresher than planned; remove it"
        )
    if study.window.records % spec.slots:
        raise ConfigError(
            "window.records: a window is a round, with the same records in each slot; use a "
            f"multiple of estimator.method.slots, here {spec.slots}"
        )
    if not spec.epsilon_now <= spec.cap <= (privacy.epsilon or 0.0):
        raise ConfigError(
            "estimator.method.cap: must not be below epsilon_now, nor above privacy.epsilon"
        )
    for name, group in spec.groups.items():
        check_group(name, group, study)
        if group.card_epsilon + spec.epsilon_now > (privacy.epsilon or 0.0):
            raise ConfigError(
                f"estimator.method.groups.{name}.card_epsilon: with epsilon_now it is above "
                "privacy.epsilon, so that no round would ever be released; raise privacy.epsilon, "
                "or use a card that cost less"
            )


def check_group(name: str, group: Group, study: Study) -> None:
    """Refuse a model card that says too little, or something that cannot be; ConfigError."""
    at, spec = f"estimator.method.groups.{name}", spec_of(study)
    needed = _KEYS[group.mixing]
    for given in ("states", "q", "matrix", "rate", "spread"):
        if (getattr(group, given) is not None) != (given in needed):
            wants = " and ".join(sorted(needed))
            raise ConfigError(f'{at}.{given}: mixing = "{group.mixing}" has {wants}, and no others')
    if group.error and (group.mixing != "matrix" or spec.delta != "prior-free"):
        raise ConfigError(f'{at}.error: goes with mixing = "matrix" and delta = "prior-free"')
    if group.q == 0:
        raise ConfigError(
            f"{at}.q: must be above 0: with 0 a value never changes, age spares it no noise, and "
            "each round pays in full; use another kind of study for such records"
        )
    low, high = study.data.response.ends
    if group.states is not None and not low <= min(group.states) <= max(group.states) <= high:
        raise ConfigError(
            f"{at}.states: must lie in the range of data.response, {low:g} to {high:g}"
        )
    if group.spread is not None and group.spread > (high - low) / 2:
        raise ConfigError(f"{at}.spread: at most half the range of data.response")
    if group.mixing == "constant" and (spec.use == "wiener" or spec.delta != "prior-free"):
        raise ConfigError(
            f'{at}.mixing: "constant" bounds only how fast values change; set use = '
            '"debiased" and delta = "prior-free", or choose another mixing'
        )
    law = group.law
    if law is not None and (spec.delta != "prior-free" or np.count_nonzero(law) < 2):
        raise ConfigError(
            f'{at}.law: needs delta = "prior-free", and a probability above 0 for two '
            "states at least, as a law that knows the value leaves nothing to protect; "
            "remove or correct it"
        )
    try:
        chain = chain_of(group, (low, high))
        # a chain that falls apart has no one law in the long run
        check_law(chain, chain.stationary if law is None else np.array(law))
    except ConfigError as error:
        raise ConfigError(f"{at}: {error}") from None


def chain_of(group: Group, ends: tuple[float, float]) -> Chain:
    """Return how the records of a group change.

    Of a promise of speed alone: two values about the middle of the range, of all chains that keep
    it the slowest, with a correlation of (1 - rate)^t; its level says nothing.

    Raises ConfigError if it is no chain.
    """
    if group.mixing == "constant":
        middle, reach, rate = sum(ends) / 2, group.spread or 0.0, group.rate or 0.0
        other = np.array([[1 - rate / 2, rate / 2], [rate / 2, 1 - rate / 2]])
        return Chain(np.array([middle - reach, middle + reach]), other)
    states = np.array(group.states, dtype=np.float64)
    if group.mixing == "matrix":
        rows = group.matrix or []
        if any(len(row) != len(rows) for row in rows):
            raise ConfigError("matrix: give one number for each pair of states")
        return Chain(states, np.array(rows, dtype=np.float64))
    make = cyclic if group.mixing == "cyclic" else birth_death
    return make(states, group.q or 0.0)


def clients_of(spec: Spec) -> dict[str, str]:
    """Return the group of each client, in the order of the file.

    Raises ConfigError if one is in two groups, or there are too many.
    """
    found: dict[str, str] = {}
    for group, card in spec.groups.items():
        at = f"estimator.method.groups.{group}.clients"
        for client in _spelled(at, card):
            if not is_plain(client):
                raise ConfigError(f"{at}: no client can be called {client!r}: {RULE}")
            if client in found:
                raise ConfigError(f"{at}: {client!r} is named twice")
            found[client] = group
            if len(found) > MOST_CLIENTS:
                raise ConfigError(f"estimator.method.groups: at most {MOST_CLIENTS} clients")
    return found


def _spelled(at: str, card: Group) -> list[str]:
    names = []
    for text in card.clients:
        parts = _RANGE.fullmatch(text)
        if parts is None:
            names.append(text)
            continue
        before, first, last, after = parts.groups()
        if not 0 <= int(last) - int(first) < MOST_CLIENTS:
            raise ConfigError(
                f"{at}: {text!r} must count upwards, over {MOST_CLIENTS} names at most"
            )
        names += [f"{before}{number}{after}" for number in range(int(first), int(last) + 1)]
    return names
