"""Published methods beside a study, as a table in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.backtest import BacktestResult
from pipeline.backtest.advice import WORDS

#: What the two columns mean.
HOW = (
    "before: each record before it is learnt, as a stream has it; in the end: all records by the "
    "last coefficients, which have seen them; -: a method that has no such score"
)


def beside_table(result: BacktestResult) -> RenderableType:
    """Return scores of the methods beside the study's, and what each really keeps private."""
    if result.beside is None:
        return Group()
    score = result.ranking_score
    grid = Table(title=f"beside other methods: {WORDS[score]}", expand=False)
    for name in ("method", "before", "in the end"):
        grid.add_column(name, justify="left" if name == "method" else "right")
    for row in result.beside.compared(score, result.scores):
        grid.add_row(*row)
    kept = [Text(f"{kinds}: {said}") for kinds, said in result.beside.said()]
    own = Text(f"this study: {result.estimate.privacy.guarantee}")
    return Group(grid, Text(HOW), own, *kept)
