"""`veilstream doctor`: ask a study on simulated records, and whether it can run here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click
import numpy as np

from agents.preflight import Finding, findings, look
from infra.deploy import ROLES, Role
from infra.local import connected
from pipeline.api.planning import least_epsilon
from pipeline.api.sample import NOT_PRIVATE, like
from pipeline.cli.context import AS_JSON, FORMAT, STUDY, Group, live_task_of, put, say
from pipeline.cli.design import SAMPLE
from pipeline.errors import ConfigError
from pipeline.estimators.population import Population, Target, target_of
from pipeline.methods import method_of, task_of
from pipeline.methods.base import Plan
from pipeline.methods.plan_words import holds_for, told
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.simulate.coverage import (
    Coverage,
    Size,
    StreamResult,
    Verdict,
    judge,
    result_of,
    simulated,
    stream,
    sum_up,
)
from pipeline.study.model import Study
from pipeline.study.reference import law_of
from pipeline.study_file.load import load_study
from producers.source_check import look_at_source

#: What a plan says that `study check` prints.
ELSEWHERE = ("facts", "warnings", "remedies", "bias_remedies")
#: Streams by default, if they are done in so many seconds of processor time.
REPLICATIONS, SECONDS = 200, 90.0
#: After so many seconds of processor time it says what it knows so far, and again after twice that.
FIRST_SECONDS = 30.0
ASSUMED = {
    "uniform": "independent records, features uniform on their public ranges",
    "typical": "independent records, features about their typical values",
}
DRAWN = "records drawn from the sample"
TOGETHER = "all clients alike, and each window at the newest model"


@click.group(cls=Group)
def doctor() -> None:
    """Ask whether a study can run here, and whether its results can be trusted."""


@doctor.command()
@STUDY
@click.option(
    "--records", type=click.IntRange(1, 10**9), default=100_000, show_default=True,
    help="Number of records of all clients together.",
)  # fmt: skip
@click.option(
    "--clients", type=click.IntRange(1, 10**6), default=10, show_default=True,
    help=(
        "Number of clients that send side by side; the more there are, the older the models they "
        "use."
    ),
)  # fmt: skip
@click.option(
    "--replications", type=click.IntRange(2, 10**6),
    help=(
        f"Number of simulated streams; default: {REPLICATIONS}, or what {SECONDS:g} s of a "
        "processor allow."
    ),
)  # fmt: skip
@click.option(
    "--truth", help="True coefficients, as estimates print them, intercept first, such as 0.5,1,-1."
)
@click.option(
    "--residual-scale", type=float,
    help="Standard deviation of a number's residuals, in its unit.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**62), default=1, show_default=True)
@SAMPLE
@FORMAT
@AS_JSON
def coverage(
    study: Path, records: int, clients: int, replications: int | None, truth: str | None,
    residual_scale: float | None, seed: int, sample: str | None, form: str, as_json: bool,
) -> None:  # fmt: skip
    """Simulate STUDY at a size, and say whether its intervals cover as often as they promise.

    Without --sample no data are read: records are drawn from the public ranges of the study file,
    around the typical values that it declares. With it they are drawn from the file, each as often
    as any other, and its own fit is what intervals are to hold. They go through the study's noise,
    steps and estimator. The answer is the share of intervals that contain the true coefficients of
    the population, with its Monte Carlo error, beside the rule of thumb. It holds for records like
    the simulated ones. Real records that are correlated, drift or leave most of their range unused
    do worse.

    Defaults: classes with equal odds and a linear predictor of variance 1; numbers around the
    middle of their range, with a predictor of an eighth of it and residuals of residual_bound /
    1.345; counts with a mean of a quarter of the largest. --truth and --residual-scale replace
    them.
    """
    asked, seen = load_study(study), None
    if sample is not None:
        say(f"WARNING: --sample: {NOT_PRIVATE}")
        (asked, seen), _ = like(task_of(asked), sample, form)
    task = simulated(asked)
    size = Size(records, clients)
    size.windows(task)
    population = Population.of(task, _numbers(truth), residual_scale, seen)
    target = target_of(population, seed)
    # the formulas are asked for the study as it stands, not for its simulation
    real = task_of(asked)
    plan = method_of(asked).outlook(real, records, clients, seen)
    epsilon = least_epsilon(asked, records, clients, seen) if plan.usual > records else None
    thumb = _thumb(plan, asked, size, epsilon)

    def judged(results: list[StreamResult]) -> tuple[Coverage, Verdict]:
        found = sum_up(task, results, target.coefficients)
        return found, judge(real, found, plan, records, epsilon)

    say(f"rule of thumb: {thumb}")
    results = _run(population, size, seed, replications, lambda so_far: _tell(*judged(so_far)))
    found, verdict = judged(results)
    if as_json:
        facts = _facts(population, size, seed, target, found, verdict)
        own = {name: value for name, value in asdict(plan).items() if name not in ELSEWHERE}
        said = {"plan": own, "epsilon_for_intervals": epsilon}
        put({**facts, **said, "holds_for": holds_for(plan, records)})
    else:
        _show(population, size, target, found, thumb, verdict)
        click.echo(f"  for other records: {holds_for(plan, records)}")


def _numbers(truth: str | None) -> np.ndarray | None:
    if truth is None:
        return None
    try:
        return np.array([float(part) for part in truth.split(",")])
    except ValueError:
        raise ConfigError("--truth: numbers with commas between them, such as 0.5,1,-1") from None


def _run(
    population: Population,
    size: Size,
    seed: int,
    replications: int | None,
    tell: Callable[[list[StreamResult]], None],
) -> list[StreamResult]:
    """Run streams until there are enough, or the time is up; two at least."""
    begun, due = time.process_time(), FIRST_SECONDS
    wanted, results = replications or REPLICATIONS, list[StreamResult]()
    while len(results) < wanted:
        results.append(result_of(population.task, stream(population, size, seed, len(results))))
        spent = time.process_time() - begun
        if spent >= due and 1 < len(results) < wanted:
            tell(results)
            due = 2 * spent
        # the next one must fit, too
        if replications is None and len(results) >= 2 and spent * (1 + 1 / len(results)) > SECONDS:
            say(f"stopped after {len(results)} streams; --replications asks for more")
            break
    return results


def _tell(found: Coverage, verdict: Verdict) -> None:
    """Say what is known so far."""
    covered = "".join(
        f", intervals cover {part.coverage:.1%} (+-{part.error:.1%})"
        for part in found.intervals[:1]
    )
    say(
        f"after {found.replications} streams: {verdict.verdict}; ready {found.ready:.0%} "
        f"(+-{found.ready_error:.1%}), intervals for {found.given:.0%} of the coefficients"
        f"{covered}; going on"
    )


def _assumed(population: Population) -> str:
    task = population.task
    law = ASSUMED[law_of(task.encoding)] if population.seen is None else DRAWN
    said = f"{law}, {TOGETHER}"
    if task.study.data.response.kind == "number" and population.seen is None:
        scale = population.residual * task.response_scale[1]
        said += f"; residuals with a standard deviation of {scale:.3g}"
    return said + ("; levels of privacy in equal shares" if len(task.budget.levels) > 1 else "")


def _facts(
    population: Population, size: Size, seed: int, target: Target, found: Coverage,
    verdict: Verdict,
) -> dict[str, object]:  # fmt: skip
    task = population.task
    return {
        "study": task.study.name,
        "kind": task.study.estimator.kind,
        "assumed": _assumed(population),
        "records": size.windows(task) * task.slots,
        "clients": size.clients,
        "seed": seed,
        "truth": task.in_units(population.truth).tolist(),
        "residual_scale": population.residual * task.response_scale[1]
        if task.study.data.response.kind == "number"
        else None,
        "target": task.in_units(target.coefficients).tolist(),
        "target_error": target.error * task.response_scale[1],
        "coverage": asdict(found),
        "verdict": asdict(verdict),
    }


def _show(
    population: Population, size: Size, target: Target, found: Coverage, thumb: str,
    verdict: Verdict,
) -> None:  # fmt: skip
    task = population.task
    records = size.windows(task) * task.slots
    truth = ", ".join(f"{value:.4g}" for value in task.in_units(population.truth)[:12])
    more = ", ..." if task.size > 12 else ""
    known = f"{target.error * task.response_scale[1]:.1g}"
    click.echo(
        f"{task.study.name} ({task.study.estimator.kind}, {task.study.estimator.loss}): "
        f"{found.replications} simulated streams of {records:,} records, {size.clients} clients"
    )
    click.echo(f"assumed: {_assumed(population)}")
    click.echo(f"coefficients: {truth}{more}; the target is known to {known}")
    click.echo(
        f"ready: {found.ready:.0%} of the streams (+-{found.ready_error:.1%}); intervals: "
        f"{found.given:.0%} of the coefficients (+-{found.given_error:.1%}), "
        f"{found.rarest!r} least, {found.rarest_given:.0%}"
    )
    click.echo(
        f"bias: {found.bias:.2f} of its standard deviations (+-{found.bias_error:.2f}) for "
        f"{found.biased!r}, the coefficient that is furthest off"
    )
    for part in found.intervals:
        click.echo(
            f"{found.level:.0%} intervals, {part.method}: cover {part.coverage:.1%} "
            f"(+-{part.error:.1%}), {part.worst!r} least, {part.worst_coverage:.1%} "
            f"(+-{part.worst_error:.1%}); mean length {part.length:.4g}"
        )
    click.echo(f"rule of thumb: {thumb}")
    click.echo(f"can intervals be trusted here, if records are as assumed? {verdict.verdict}")
    click.echo(f"  because {verdict.reason}")
    click.echo(f"  to change: {verdict.advice}")


def _thumb(plan: Plan, study: Study, size: Size, epsilon: float | None) -> str:
    said = told(plan, study, size.records, size.clients)
    parts = [f"intervals come {said['come']}"]
    parts += [said[name] for name in ("half", "exact") if name in said]
    if epsilon is not None:
        parts.append(f"or from epsilon {epsilon:.2g} on at this size")
    if plan.slope_error:
        parts.append(f"standard error of a slope from the noise alone {plan.slope_error:.3g}")
    if plan.cloud:
        parts.append(
            f"relative variance of linear predictors from the noise {plan.cloud:.2g} (the "
            "formulas hold below 1)"
        )
    if plan.relative_bias:
        parts.append(f"coefficients come out {plan.relative_bias:.1%} too large")
    return "; ".join(parts)


@doctor.command()
@STUDY
@click.option(
    "--source",
    help=("Also check the first records of this source, written as for `veilstream produce`."),
)
@click.option(
    "--event-time", metavar="COLUMN",
    help="With --source: the column of a history's times, as for `veilstream produce`; also checks "
    "that the study's topic keeps releases so old.",
)  # fmt: skip
@click.option(
    "--role", type=click.Choice(list(ROLES)),
    help=(
        "Whose rights to check; default: those of a client and of a worker. A client needs no "
        "Redis."
    ),
)  # fmt: skip
@AS_JSON
def connect(
    study: Path, source: str | None, event_time: str | None, role: str | None, as_json: bool
) -> None:
    """Check whether STUDY can run here: Kafka, topics and rights, Redis, clock, disk, a source.

    Prints one line for each, with what is wrong and who must act. Nothing is spent, made or sent.
    A WARNING can run, and somebody should act before. The exit code is that of the first fault, or
    0.
    """
    if event_time is not None and source is None:
        raise ConfigError("--event-time: it is a column of a source: give --source, too")
    task = live_task_of(study, "`veilstream doctor connect`")
    roles = cast("list[Role]", [role] if role else ["client", "worker"])
    settings = connected(Settings.read(), redis="worker" in roles)
    code, told = 0, []
    for found in _findings(task, settings, roles, source, event_time):
        code = code or (found.fault.exit_code if found.fault else 0)
        if as_json:
            known = {"ok": found.word == "ok", "warning": found.warning}
            told.append({"part": found.part, **known, "said": found.said})
        else:
            click.echo(f"{found.word:8}{found.part}: {found.said}")
    if as_json:
        put({"study": task.study.name, "exit_code": code, "found": told})
    click.get_current_context().exit(code)


def _findings(
    task: Task, settings: Settings, roles: list[Role], source: str | None, event_time: str | None
) -> Iterator[Finding]:
    yield from findings(task, settings, roles)
    if source is not None:
        yield look("source", lambda: look_at_source(task, settings, source, event_time))
