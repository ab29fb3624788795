"""The published JSON Schemas of topics, results and the model file, generated from their types.

`python -m pipeline.messages.schemas` writes them anew; a test keeps files and types in step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from pipeline.messages.admission import StudyMessage
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model import ModelMessage
from pipeline.messages.model_file import ModelFile
from pipeline.messages.results import FitMessage, GridMessage
from pipeline.messages.spend import SpendsMessage

TYPES: dict[str, type[msgspec.Struct]] = {
    "estimate.v1": EstimateMessage,
    "fit.v1": FitMessage,
    "backtest-grid.v1": GridMessage,
    "model.v2": ModelMessage,
    "model-file.v1": ModelFile,
    "study.v1": StudyMessage,
    "spends.v2": SpendsMessage,
}
FOLDER = Path(__file__).parent


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a message type."""
    found = msgspec.json.schema(TYPES[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **found}


def text(name: str) -> str:
    """Return the schema as its file holds it."""
    return json.dumps(schema(name), indent=2, sort_keys=True) + "\n"


def write() -> None:
    """Write all schema files."""
    for name in TYPES:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")
