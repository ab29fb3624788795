"""`veilstream privacy`: calibrate noise, and read what clients have spent."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, get_args

import click

from pipeline.cli.context import AS_JSON, put, say
from pipeline.errors import PrivacyError
from pipeline.privacy.calibration import Answer, Name, Question, solve


@click.group()
def privacy() -> None:
    """Calibrate noise, and read what clients have spent."""


@privacy.command()
@click.option("--mechanism", type=click.Choice(get_args(Name)), required=True)
@click.option("--sensitivity", type=float, required=True, help="L2 (Gaussian) or L1 (Laplace).")
@click.option("--epsilon", type=float, help="Leave one of epsilon, delta and scale out.")
@click.option("--delta", type=float, help="Gaussian noise only.")
@click.option("--scale", type=float, help="Noise: sigma (Gaussian) or b (Laplace).")
@click.option("--dimension", type=int, default=1, show_default=True, help="Numbers in a release.")
@click.option("--records", type=int, default=1, show_default=True, help="Most records of a unit.")
@click.option("--releases", type=int, default=1, show_default=True, help="That a record enters.")
@click.option("--lattice", type=float, help="Unit of the lattice that values lie on.")
@click.option("--population", type=float, help="Records in all: warns of a delta above 1 / this.")
@AS_JSON
def calibrate(
    *, epsilon: float | None, delta: float | None, scale: float | None, population: float | None,
    as_json: bool, **question: Any,
) -> None:  # fmt: skip
    r"""Find the noise for a budget, or the budget of some noise.

    Give two of --epsilon, --delta and --scale; the third is found. Laplace noise has no delta.

    \b
      veilstream privacy calibrate --mechanism gaussian --sensitivity 1 --epsilon 1 --delta 1e-6
      veilstream privacy calibrate --mechanism laplace --sensitivity 1 --scale 2
    """
    if population is not None and not population >= 1:
        raise PrivacyError("population must be a number >= 1")
    answer = solve(Question(**question), epsilon=epsilon, delta=delta, scale=scale)
    if population is not None and answer.delta > 1 / population:
        say(
            f"WARNING: delta {answer.delta:.3g} is above 1 / {population:g}: it allows a mechanism "
            "to publish a random record as it is; use 1e-5 or less, and far below 1 / population"
        )
    facts = _facts(answer)
    if as_json:
        put(facts)
        return
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name}: {value}")


def _facts(answer: Answer) -> dict[str, Any]:
    facts = asdict(answer)
    question = facts.pop("question")
    del question["lattice"]
    deviation = answer.scale * (1.0 if answer.question.gaussian else math.sqrt(2))
    return {**question, **facts, "standard_deviation": deviation}
