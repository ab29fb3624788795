"""A backtest as tables in the terminal, and its bins as a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.api.table import information_line, line, privacy_line, unit_lines, value
from pipeline.backtest import NOT_PRIVATE, BacktestResult
from pipeline.backtest.history import LINE
from pipeline.backtest.report import coefficients_of
from pipeline.backtest.scores import WORDS, Scores
from pipeline.errors import ConfigError
from pipeline.settings import extra
from pipeline.words import counted

#: Names of the scores for people.
SCORES = {**WORDS, "mean_absolute_error": "MAE", "root_mean_square_error": "RMSE"}
#: What the columns of the tables mean.
HELD = (
    "pooled fit, its own: the fit to all records at once without privacy, and its interval; "
    "inside: whether the private interval contains it"
)
OVER_TIME = (
    "width: median length of the intervals; covered: share of them that contain the pooled fit; "
    "status: warming means that there "
    "are no intervals yet"
)
#: The column of what privacy costs.
NOISE = "share of variance from noise"
#: Bins that a terminal shows, at most.
SHOWN = 12


def tables(result: BacktestResult) -> RenderableType:
    """Return coefficients, scores over time and in total, and what they rest on."""
    told = [Text(text) for text in _lines(result) if text]
    units = [Text(text) for text in unit_lines(result.estimate)]
    tail = [*told, beside_table(result), Text(NOT_PRIVATE, style="bold")]
    beside = () if result.pooled.coefficients is None else (Text(HELD),)
    over_time = _over_time(result), Text(OVER_TIME)
    return Group(_coefficients(result), *beside, *units, *over_time, *tail)


def check_file(path: Path, source: str, option: str, endings: tuple[str, ...]) -> None:
    """Refuse an output that cannot be written, before anything is computed.

    ConfigError, naming the option.
    """
    if path.suffix.lower() not in endings:
        raise ConfigError(f"{option}: it must end in {' or '.join(endings)}")
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise ConfigError(f"{option}: it is the input; the operator must name another file")
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: cannot write {path}: there is no folder {path.parent}")


def write_whole(path: Path, option: str, write: Callable[[BinaryIO], object]) -> None:
    """Write a file for its owner's eyes; it is there whole or not at all.

    ConfigError if it cannot be written.
    """
    draft: Path | None = None
    try:
        # a name that nothing else has, and for the owner alone from the start
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        draft = Path(name)
        with os.fdopen(handle, "wb") as out:
            write(out)
        draft.replace(path)
    except BaseException as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"{option}: cannot write {path}: {error.strerror}") from error
        raise


def write_series(result: BacktestResult, path: Path) -> None:
    """Write the bins, one row each; ConfigError if they cannot be written."""
    rows = result.rows()
    if path.suffix.lower() == ".parquet":
        parquet = extra("pyarrow.parquet", "--out as Parquet")
        table = extra("pyarrow", "--out").Table.from_pylist(rows)
        write_whole(path, "--out", lambda out: parquet.write_table(table, out))
        return
    lines = [json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows]
    write_whole(path, "--out", lambda out: out.writelines(lines))


def _coefficients(result: BacktestResult) -> RenderableType:
    message = result.estimate
    grid = Table(title=f"{result.study}: backtest, {result.mechanism}", expand=False)
    grid.add_column("coefficient")
    for name in ("estimate", f"{message.level:.0%} interval", "pooled fit", "its own", "inside"):
        grid.add_column(name, justify="right")
    for row in coefficients_of(result, partial(value, message), "[{:.4g}, {:.4g}]"):
        grid.add_row(*row)
    return grid


def _over_time(result: BacktestResult) -> RenderableType:
    # a terminal is narrow; `--out` and `--json` have every score
    main = result.main_score[0]
    names = [main, f"frozen_{main}"] if result.freeze is not None else [main]
    titles = ["updating", "frozen"] if result.freeze is not None else [SCORES[main]]
    step, count = _step(result), len(result.bins)
    some = f": {-(-count // step)} of {count} bins, the others are in --out" if step > 1 else ""
    grid = Table(title=f"{SCORES[main]} and intervals over time{some}", expand=False)
    grid.add_column("from", no_wrap=True)
    for name in ("records", *titles, "width", "covered", NOISE):
        grid.add_column(name, justify="right")
    grid.add_column("status")
    for row in _some(result):
        cells = [_when(row["start"]), str(row["records"]), *(_number(row[name]) for name in names)]
        cells += [_number(row["width"]), _share(row["coverage"]), _share(row["privacy_share"])]
        grid.add_row(*cells, row["status"])
    return grid


def _some(result: BacktestResult) -> list[dict[str, Any]]:
    """Return bins at equal distances, the last one among them."""
    rows = result.rows()
    return rows[len(rows) - 1 :: -_step(result)][::-1] if rows else []


def _step(result: BacktestResult) -> int:
    """Return which of the bins are shown: every one, every second, ..."""
    return max(-(-len(result.bins) // SHOWN), 1)


def _lines(result: BacktestResult) -> Iterator[str]:
    yield line(result.estimate)
    yield information_line(result.estimate)
    before = f"{counted(result.unscored, 'record')} came before any estimate"
    yield f"in total: {_scores(result.scores)}; {before}"
    if result.freeze is not None:
        since = result.to_dict()["freeze"]["since"]
        yield f"from {since} on, frozen: {_scores(result.freeze.frozen)}"
        yield f"from {since} on, updating: {_scores(result.freeze.updating)}"
    if known := [one for one in result.pooled.covered if one is not None]:
        yield (
            f"{sum(known)} of {len(known)} intervals contain the pooled fit, in this one draw of "
            "the noise; --draws says how often they do"
        )
    elif result.pooled.reason:
        yield f"no pooled fit: {result.pooled.reason}"
    clipped = {name: share for name, share in result.clipped.items() if share > 0}
    said = ", ".join(f"{name} {share:.2%}" for name, share in clipped.items()) or "nothing"
    yield f"clipped to the public range: {said}"
    fewest, median, most = result.budget.releases
    yield f"releases of a client: {fewest} to {most}, median {median:g}"
    if result.budget.epsilon is not None:
        budget = result.budget
        each = "" if budget.scope == "record" else "with each release, in all at most "
        yield (
            f"a live study would charge each of {counted(budget.clients, 'client')} {each}epsilon "
            f"{budget.epsilon:g}, delta {budget.delta:g} for each {budget.unit}"
        )
    why = f" ({said})" if (said := _faults(result.faults)) else ""
    for count, what in (
        (result.unusable, f"records could not be used; their slots stayed empty{why}"),
        (result.untimed, "of them had no readable time"),
        (result.late, "records were late; they count as arriving where they stand"),
        (result.failures, "times no estimate could be formed"),
    ):
        if count:
            yield f"{count} {what}"
    rate = result.records / result.seconds
    yield f"{counted(result.records, 'record')} in {result.seconds:.1f} s, {rate:.0f} a second"
    yield privacy_line(result.estimate)


def _faults(faults: Mapping[str, int]) -> str:
    """Return in how many records which columns hold no value that the study can use."""
    worst = sorted((name for name in faults if name != LINE), key=lambda name: -faults[name])
    said = [f"column {name!r}: {faults[name]}" for name in worst]
    if said:
        said[-1] += "; such values are missing, no number, or no declared level or class"
    return "; ".join(
        [*([f"lines that cannot be read: {faults[LINE]}"] if LINE in faults else []), *said]
    )


def _scores(scores: Scores) -> str:
    parts = [counted(scores.records, "record")]
    for name, said in SCORES.items():
        found = getattr(scores, name)
        if found is not None:
            parts.append(f"{said} {found:.4g}")
    return ", ".join(parts)


def _when(start: str | int) -> str:
    return str(start) if isinstance(start, int) else start[:16].replace("T", " ")


def _number(found: float | None) -> str:
    return "-" if found is None else f"{found:.4g}"


def _share(found: float | None) -> str:
    return "-" if found is None else f"{found:.0%}"


#: What the two columns mean.
HOW = (
    "before: each record is scored before it is learnt, as in a stream; in the end: all records "
    "are predicted by the last coefficients, which have seen them; -: the method has no such "
    "score"
)


def beside_table(result: BacktestResult) -> RenderableType:
    """Return scores of the methods beside the study's, and what each really keeps private."""
    if result.beside is None:
        return Group()
    score = result.main_score[0]
    grid = Table(title=f"beside other methods: {WORDS[score]}", expand=False)
    for name in ("method", "before", "in the end"):
        grid.add_column(name, justify="left" if name == "method" else "right")
    for row in result.beside.compared(score, result.scores):
        grid.add_row(*row)
    kept = [Text(f"{kinds}: {said}") for kinds, said in result.beside.said()]
    own = Text(f"this study: {result.estimate.privacy.guarantee}")
    return Group(grid, Text(HOW), own, *kept)
