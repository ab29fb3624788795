"""Backtests: a raw history through the whole client side and the same fold, in one process.

Whoever runs one may see the raw data: scores and most other numbers of a result are not private.

- `run`: `backtest(study, history, **options)`, from a history to its result.
- `options`: how, when and how late records come, whose they are. `result`: what it says.
- `history`: records in batches, and when windows close. `engine`: the event loop.
- `scores`: prequential scores, in total and by bins of time, in constant memory.
- `grid`: several settings side by side. `report`: a result as a page.

A result (`BacktestResult`) holds: `scores` (a `Scores`: records, accuracy, balanced_accuracy, auc,
log_loss, mean_absolute_error, root_mean_square_error), `freeze` (since, frozen, updating), the last
`estimate` as a worker publishes it, `pooled` (coefficients, covered, coverage, reason), `clipped`
by feature, `shortened`, `budget`, `bins` (a list of `Bin`), and counts of records. `rows()` are the
bins as flat dictionaries with the same keys in each; `to_dict()` is everything as JSON has it, with
the `bins` in that form; `main_score` is a name and a number. `options` is a dictionary that
`Options` takes.
"""

from pipeline.backtest.options import Options
from pipeline.backtest.result import NOT_PRIVATE, BacktestResult
from pipeline.backtest.run import backtest, run_backtest

__all__ = ["NOT_PRIVATE", "BacktestResult", "Options", "backtest", "run_backtest"]
