"""What an estimate of a round says to who watches: round, who is late, what no data give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipeline.methods.age_aware.spec import clients_of, spec_of
from pipeline.study import Study


def told(study: Study, details: Mapping[str, Any]) -> list[str]:
    """As `Method.told`."""
    if "value_without_data" not in details:
        return []
    number, spec = int(details["round"]), spec_of(study)
    last = (number + 1) * spec.slots - 1
    late = ", ".join(map(repr, details["missing"]))
    more = details["clients_missing"] - len(details["missing"])
    used = f"{details['clients_used']} of {len(clients_of(spec))} clients"
    missing = f"; not yet of {late}" + (f" and {more} more" if more > 0 else "") if late else ""
    error, alone = math.sqrt(details["expected_loss"]), details["loss_without_data"]
    without = (
        "unknown: a card of constant mixing knows no level"
        if alone is None
        else f"{details['value_without_data']:.5g}, error {math.sqrt(alone):.4g}"
        + ("" if details["data_help"] else ": data do not help")
    )
    due = (
        f"round {number + 1} is due after slot {last + spec.slots} of each source; who reports "
        f"which slot: `veilstream schedule --round {number + 1}`"
    )
    spent = (
        f"epsilon {details['epsilon_now']:.4g} of a round about a value at its end, "
        f"{details['epsilon_when_collected']:.4g} when it was collected; of all rounds "
        f"{details['epsilon_at_any_time']:.4g} about any one time, "
        f"{details['epsilon_of_all_rounds']:.4g} about the history"
    )
    return [
        f"round {number} (slots {last - spec.slots + 1} to {last} of each source): {used}{missing}",
        f"expected error {error:.4g}; without any data the value would be {without}",
        due,
        spent,
    ]
