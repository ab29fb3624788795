"""Private streaming estimation: the names that programs and notebooks use.

>>> import veilstream as vs
>>> result = vs.fit("study.toml", "readings.csv")  # doctest: +SKIP
>>> print(result.summary())  # doctest: +SKIP

A name is imported when it is first used, so that this module costs nothing: docs/python.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api.check import check_study
    from pipeline.api.feed import estimates, newest_estimate
    from pipeline.api.fitting import fit
    from pipeline.api.result import Result
    from pipeline.backtest import BacktestResult, backtest
    from pipeline.errors import (
        BrokerError,
        ConfigError,
        DataError,
        DataWarning,
        NotReadyWarning,
        NumericError,
        RangeWarning,
        VeilstreamError,
        VeilstreamWarning,
    )
    from pipeline.learning import (
        PrivateClassifier,
        PrivateRegressor,
        StreamClassifier,
        StreamRegressor,
    )
    from pipeline.prediction.estimators import LinearClassifier, LinearRegressor, load_model
    from pipeline.study.model import Study
    from pipeline.study.versions import without_privacy
    from pipeline.study_file.load import load_study, parse_study

__all__ = [
    "BacktestResult",
    "BrokerError",
    "ConfigError",
    "DataError",
    "DataWarning",
    "LinearClassifier",
    "LinearRegressor",
    "NotReadyWarning",
    "NumericError",
    "PrivateClassifier",
    "PrivateRegressor",
    "RangeWarning",
    "Result",
    "StreamClassifier",
    "StreamRegressor",
    "Study",
    "VeilstreamError",
    "VeilstreamWarning",
    "backtest",
    "check_study",
    "estimates",
    "fit",
    "load_model",
    "load_study",
    "newest_estimate",
    "parse_study",
    "without_privacy",
]

#: Modules with the names that they have.
_HOMES = {
    "pipeline.backtest": ("BacktestResult", "backtest"),
    "pipeline.errors": (
        "BrokerError", "ConfigError", "DataError", "DataWarning", "NotReadyWarning",
        "NumericError", "RangeWarning", "VeilstreamError", "VeilstreamWarning",
    ),
    "pipeline.learning": (
        "PrivateClassifier", "PrivateRegressor", "StreamClassifier", "StreamRegressor",
    ),
    "pipeline.api.check": ("check_study",),
    "pipeline.api.fitting": ("fit",),
    "pipeline.api.feed": ("estimates", "newest_estimate"),
    "pipeline.api.result": ("Result",),
    "pipeline.prediction.estimators": ("LinearClassifier", "LinearRegressor", "load_model"),
    "pipeline.study.model": ("Study",),
    "pipeline.study.versions": ("without_privacy",),
    "pipeline.study_file.load": ("load_study", "parse_study"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'veilstream' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
