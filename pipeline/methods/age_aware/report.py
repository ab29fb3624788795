"""What an estimate of a round says to who watches: round, who is late, what no data give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pipeline.methods.age_aware.spec import Spec, clients_of, spec_of
from pipeline.methods.base import Report
from pipeline.study.model import Study
from pipeline.words import counted

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Size = Annotated[float, Meta(ge=0)]


class Said(msgspec.Struct, frozen=True):
    """What is read of an estimate's details; in an open study anybody may have written them."""

    round: _Count
    clients_used: _Count
    clients_missing: _Count
    missing: list[str]
    expected_loss: _Size
    loss_without_data: _Size | None
    value_without_data: float | None
    data_help: bool | None
    epsilon_now: _Size
    epsilon_when_collected: _Size
    epsilon_at_any_time: _Size
    epsilon_of_all_rounds: _Size
    behind: _Count = 0


class RoundReport(Report):
    """As `methods.base.Report`: round, who is late, what no data give."""

    def lines(self, study: Study, details: Mapping[str, Any]) -> list[str]:
        """As `Report.lines`; nothing of details that are none of a round."""
        return _lines(study, details)


def _lines(study: Study, details: Mapping[str, Any]) -> list[str]:
    try:
        said = msgspec.convert(dict(details), Said)
    except msgspec.ValidationError:
        return []
    spec = spec_of(study)
    last, following = (said.round + 1) * spec.slots - 1, said.round + 1
    of = clients_of(spec)
    without = "unknown: a card of constant mixing knows no level"
    if said.loss_without_data is not None and said.value_without_data is not None:
        alone = math.sqrt(said.loss_without_data)
        helped = "" if said.data_help else ": data do not help"
        without = f"{said.value_without_data:.5g}, error {alone:.4g}{helped}"
    due = (
        f"round {following} is due after slot {last + spec.slots} of each source; who reports "
        f"which slot: `veilstream schedule --round {following}`"
    )
    if all(_ended(spec, group, following) for group in spec.groups):
        due = (
            "no later round comes: all model cards have ended (last_round). Check them again, "
            "and start a study with a new name"
        )
    which = (
        f"round {said.round} (slots {last - spec.slots + 1} to {last} of each source): "
        f"{said.clients_used} of {len(of)} clients{_missing(spec, of, said)}"
    )
    error = (
        f"expected error {math.sqrt(said.expected_loss):.4g}; without any data the value would be "
        f"{without}"
    )
    spent = (
        f"epsilon of a round: {said.epsilon_now:.4g} about a value at its end, "
        f"{said.epsilon_when_collected:.4g} when it was collected; of all rounds: "
        f"{said.epsilon_at_any_time:.4g} about any one time, {said.epsilon_of_all_rounds:.4g} "
        "about the history"
    )
    return [which, error, due, spent]


def _missing(spec: Spec, of: Mapping[str, str], said: Said) -> str:
    """Return who has not reported, apart by whether that can still come."""
    more, names = said.clients_missing - len(said.missing), said.missing
    ended = [name for name in names if name in of and _ended(spec, of[name], said.round)]
    late = [repr(name) for name in names if name not in ended]
    late += [f"{more} more"] if more > 0 else []
    found = f"; not yet of {', '.join(late)}" if late else ""
    if ended:
        found += f"; no more of {', '.join(map(repr, ended))}, whose model card has ended"
    if said.behind:
        found += (
            f"; {counted(said.behind, 'client')} more than a round behind: a client that goes on "
            "pays for rounds that no longer count, so all sources must begin together"
        )
    return found


def _ended(spec: Spec, group: str, number: int) -> bool:
    last = spec.groups[group].last_round
    return last is not None and number > last
