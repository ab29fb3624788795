"""Only what a mechanism made can be written as a release: by the type checker, and at run time.

Python cannot keep a program from forging an object that it is bent on forging: by `object.__new__`
and `object.__setattr__`, by a pickle that somebody has edited, by a subclass, by writing into the
arrays of sealed sums. That nobody does is shown in `test_callers.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import pipeline.messages
from pipeline.errors import PrivacyError
from pipeline.messages.release import seal
from pipeline.methods import task_of
from pipeline.methods.ldp_sgd import client as gradients
from pipeline.methods.ldp_sgd import client as records_client
from pipeline.methods.ldp_sgd.client import bounded_gradients, open_gradients
from pipeline.methods.renewable import client as summarise
from pipeline.methods.renewable.client import RenewableTask, open_query_of, query_of
from pipeline.privacy.randomness import SecureStream
from pipeline.records import blocks as windows
from pipeline.records import encoder as encode
from pipeline.records.encoder import Encoder, Row, stack
from pipeline.release import privatise, query
from pipeline.release.model import start_model
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import store as client_store
from tests import sgd
from tests.stage import OPEN, lines, study_text

ROOT = Path(__file__).parents[2]
PRIVATE, PLAIN = task_of(parse_study(study_text())), task_of(parse_study(study_text(privacy=OPEN)))
assert isinstance(PRIVATE, RenewableTask)
assert isinstance(PLAIN, RenewableTask)
IDENTITY = {"client": "c", "ledger": "l", "seq": 0}
NAMES = ("heat", "load", "failed")
ROWS: list[Row] = [
    Encoder(PRIVATE.study).encode(dict(zip(NAMES, line.strip().split(","), strict=True)))
    for line in lines(20)
]
MODEL = start_model(PRIVATE.size)
SUMS = summarise.summarise_bounded(PRIVATE, *stack(ROWS, 2)[:2], MODEL)
ASKED = query_of(PRIVATE, SUMS)
SUMMARY = summarise.summarise(PLAIN, *stack(ROWS, 2)[:2], MODEL.coefficients, (1.0, 1.0))
OPENLY = open_query_of(SUMMARY, MODEL)
PATH, OPEN_PATH = sgd.task_of(), sgd.task_of(mechanism="none")
RECORDS = sgd.rows_of(PATH, *sgd.drawn("linear", 20, 1))
SINGLE = bounded_gradients(PATH, *stack(RECORDS, 3)[:2], PATH.first_model)
SINGLE_ASKED = records_client.query_of(PATH, SINGLE)
SINGLE_OPEN = open_gradients(OPEN_PATH, *stack(RECORDS, 3)[:2], PATH.first_model)
SINGLE_OPENLY = OPEN_PATH.open_query(stack(RECORDS, 3), PATH.first_model)

# --- the type checker ------------------------------------------------------------------------

PREAMBLE = """\
from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from pipeline.records.encoder import Row
from pipeline.release.task import Task
from pipeline.release.privatise import Answer, OpenAnswer, Parts, disclose, privatise
from pipeline.release.query import Exact, MatrixPart, OpenQuery, Query, VectorPart
from pipeline.methods.ldp_sgd.client import RecordsPart
from pipeline.methods.ldp_sgd.client import OpenSums, RecordSums
from pipeline.methods.renewable.client import BoundedSums, Summary
from pipeline.records.blocks import Window
from pipeline.messages.release import seal
from pipeline.privacy.randomness import SecureStream
"""
#: Function, and a type that it must not take as its second argument.
REFUSED = [
    *(
        ("seal", kind)
        for kind in (
            "Summary", "BoundedSums", "RecordSums", "OpenSums", "Exact", "Query", "OpenQuery",
            "VectorPart", "MatrixPart", "RecordsPart", "Window", "Sequence[Row]",
            "dict[str, object]", "Parts[NDArray[np.int64]]", "Parts[NDArray[np.float64]]",
            "NDArray[np.int64]", "NDArray[np.float64]", "tuple[NDArray[np.int64], ...]", "bytes",
            "object", "SimpleNamespace", "None", "Answer | Summary", "Answer | Query",
            "OpenAnswer | BoundedSums", "OpenAnswer | OpenQuery",
        )
    ),
    *(
        ("privatise", kind)
        for kind in (
            "Summary", "BoundedSums", "RecordSums", "OpenQuery", "NDArray[np.int64]", "Answer",
            "object",
        )
    ),
    *(
        ("disclose", kind)
        for kind in (
            "BoundedSums", "Summary", "OpenSums", "Query", "NDArray[np.float64]", "Answer",
        )
    ),
]  # fmt: skip
REST = {
    "seal": ', client="c", ledger="l", seq=0', "privatise": ", SecureStream()", "disclose": "",
}  # fmt: skip
ACCEPTED = """\
def accepted(task: Task, asked: Query, openly: OpenQuery, stream: SecureStream) -> bytes:
    noised = seal(task, privatise(task, asked, stream), client="c", ledger="l", seq=0)
    return noised + seal(task, disclose(task, openly), client="c", ledger="l", seq=1)
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run mypy as the project does; return its errors by the function in which they are.

    It shares the cache of `make check`: without one it takes many seconds.
    """
    code = tmp_path_factory.mktemp("sealed") / "snippets.py"
    body = [
        f"def refused_{i}(task: Task, given: {kind}) -> object:\n"
        f"    return {function}(task, given{REST[function]})\n"
        for i, (function, kind) in enumerate(REFUSED)
    ]
    code.write_text("\n\n".join([PREAMBLE, *body, ACCEPTED]))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--no-pretty",
         code],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    written, errors = code.read_text().splitlines(), {}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            place, words = line.split(": error: ")
            number = int(place.rsplit(":", maxsplit=1)[1])
            errors[written[number - 2].removeprefix("def ").partition("(")[0]] = words
    return errors


def test_the_type_checker_refuses_nothing_else(checked: dict[str, str]) -> None:
    assert set(checked) == {f"refused_{i}" for i in range(len(REFUSED))}


@pytest.mark.parametrize("i", range(len(REFUSED)), ids=[f"{f} {kind}" for f, kind in REFUSED])
def test_the_type_checker_refuses_whatever_is_not_sealed(checked: dict[str, str], i: int) -> None:
    words = checked[f"refused_{i}"]
    assert f'Argument 2 to "{REFUSED[i][0]}" has incompatible type' in words
    assert words.endswith("[arg-type]")


# --- run time --------------------------------------------------------------------------------

LOOKALIKE = SimpleNamespace(
    model=MODEL, slots=20, expansion=SUMMARY.expansion, version=0, records=20,
    parts={"gradient": SUMS.gradient.integers, "counts": SUMS.counts.integers},
)  # fmt: skip
SUMMING = (query, summarise, gradients, records_client)
PARTS = [*ASKED.parts.values(), *SINGLE_ASKED.parts.values()]
SUMMED = [SUMMARY, SUMS, SINGLE, SINGLE_OPEN, ASKED, SINGLE_ASKED, OPENLY, SINGLE_OPENLY]
RAW = [*SUMMED, *PARTS, SUMS.gradient, ROWS, LOOKALIKE, dataclasses.asdict(SUMMARY),
       SUMMARY.gradient, SUMS.gradient.integers, SUMMARY.gradient.tobytes(), None]  # fmt: skip


@pytest.mark.parametrize("task", [PRIVATE, PLAIN], ids=["private", "plain"])
@pytest.mark.parametrize("raw", RAW, ids=[type(raw).__name__ for raw in RAW])
def test_raw_data_is_not_written(task: Task, raw: Any) -> None:
    with pytest.raises((TypeError, PrivacyError)):
        seal(task, raw, **IDENTITY)


def honest() -> privatise.Answer:
    return privatise.privatise(PRIVATE, ASKED, SecureStream())


@pytest.mark.parametrize("kind", [privatise.Answer, privatise.OpenAnswer])
@pytest.mark.parametrize("stamp", [None, True, object(), "seal", privatise])
def test_sealed_sums_are_not_made_by_hand(kind: Any, stamp: object) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    parts = privatise.Parts((("gradient", SUMS.gradient.integers),))
    for value in (SUMS.gradient.integers, parts):
        with pytest.raises((TypeError, PrivacyError)):
            kind(**dict.fromkeys(names, value), seal=stamp)
        with pytest.raises((TypeError, PrivacyError)):
            kind(**dict.fromkeys(names, value))


def opened() -> privatise.OpenAnswer:
    return privatise.disclose(PLAIN, OPENLY)


@pytest.mark.parametrize("made", [honest, opened])
def test_sealed_sums_do_not_change(made: Callable[[], Any]) -> None:
    sealed = made()
    for field in dataclasses.fields(sealed):
        with pytest.raises((TypeError, PrivacyError)):
            dataclasses.replace(sealed, **{field.name: SUMS.gradient.integers})
        with pytest.raises(AttributeError):
            setattr(sealed, field.name, SUMS.gradient.integers)
        with pytest.raises(AttributeError):
            delattr(sealed, field.name)
    with pytest.raises((AttributeError, TypeError)):
        sealed.raw = SUMS
    for name, array in sealed.parts.items():
        with pytest.raises(TypeError):
            sealed.parts[name] = SUMS.gradient.integers
        with pytest.raises(AttributeError):
            sealed.parts.pairs = ((name, SUMS.gradient.integers),)
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda sums: pickle.loads(pickle.dumps(sums))],  # noqa: S301
)
def test_a_copy_of_sealed_sums_is_the_same_release(copied: Any) -> None:
    sealed = honest()
    assert seal(PRIVATE, copied(sealed), **IDENTITY) == seal(PRIVATE, sealed, **IDENTITY)


def test_sums_of_one_policy_are_not_written_under_another() -> None:
    for task, sums in ((PRIVATE, opened()), (PLAIN, honest())):
        with pytest.raises(PrivacyError):
            seal(task, sums, **IDENTITY)
    with pytest.raises(PrivacyError, match="only leave with noise"):
        privatise.disclose(PRIVATE, OPENLY)
    with pytest.raises(PrivacyError, match="no noise"):
        privatise.privatise(PLAIN, ASKED, SecureStream())


# --- what a message can hold -----------------------------------------------------------------


def structs() -> Iterator[type[msgspec.Struct]]:
    """Yield every message type."""
    for found in pkgutil.iter_modules(pipeline.messages.__path__, "pipeline.messages."):
        for value in vars(importlib.import_module(found.name)).values():
            mine = isinstance(value, type) and value.__module__ == found.name
            if mine and issubclass(value, msgspec.Struct):
                yield value


def kinds(node: Any) -> Iterator[Any]:
    """Yield a type as msgspec sees it, and all that it is made of."""
    yield node
    for field in node.__struct_fields__:
        inner = getattr(node, field)
        for part in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(part, msgspec.inspect.Field):
                yield from kinds(part.type)
            elif isinstance(part, msgspec.inspect.Type):
                yield from kinds(part)


def test_no_message_can_hold_a_raw_summary() -> None:
    """Numbers, text, and lists of them: no field takes a class that is not a message."""
    found = [node for kind in structs() for node in kinds(msgspec.inspect.type_info(kind))]
    plain = "Bool Int Float Str Bytes Literal List Dict VarTuple Tuple None Union Struct"
    plain_types = {f"{name}Type" for name in plain.split()} | {"Metadata"}
    assert {type(node).__name__ for node in found} <= plain_types
    classes = {node.cls for node in found if isinstance(node, msgspec.inspect.StructType)}
    assert len(classes) > 8
    # what a study file or a policy declares is public
    public = {"pipeline.privacy.guarantee", "pipeline.privacy.events"}
    homes = {kind.__module__ for kind in classes} - public
    assert all(home.startswith(("pipeline.messages.", "pipeline.study.")) for home in homes), homes
    raw = {
        value
        for module in (*SUMMING, encode, windows, privatise, client_store)
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    }
    assert raw >= {type(one) for one in (*SUMMED, *PARTS, SUMS.gradient)} | {
        Row,
        client_store.Tally,
    }
    assert not raw & classes


@pytest.mark.parametrize("raw", [*SUMMED, *PARTS, SUMS.gradient, ROWS[0], ROWS])
@pytest.mark.parametrize("module", [msgspec.msgpack, msgspec.json])
def test_raw_data_has_no_encoder(module: Any, raw: object) -> None:
    with pytest.raises(TypeError, match="ndarray"):
        module.encode(raw)
