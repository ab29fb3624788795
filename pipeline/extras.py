"""Packages that only an extra brings, imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline.errors import ConfigError


def extra(module: str, wanted_by: str, named: str = "backtest") -> Any:
    """Import a module of an extra.

    wanted_by: What cannot go on without it, such as "--report" or "to_pandas".
    named: The extra that brings it.

    Raises ConfigError if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"{wanted_by} needs {module.partition('.')[0]}, which is not installed; the operator "
            f"must install veilstream[{named}]"
        ) from None
