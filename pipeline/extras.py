"""Packages that only an extra brings, imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline.errors import ConfigError


def extra(module: str, wanted_by: str) -> Any:
    """Import a module of the extra `backtest`.

    wanted_by: What cannot go on without it, such as "--report" or "to_pandas".

    Raises ConfigError if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"{wanted_by} needs {module.partition('.')[0]}, which is not installed; the operator "
            "must install veilstream[backtest]"
        ) from None
