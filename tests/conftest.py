"""Servers for all tests, and the time that a test may take."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# Every process of a run computes on one core, as do those that it starts: two threads that share a
# small matrix wait for each other most of the time, at the cost of the tests beside them. Numerical
# libraries read this when they are loaded, which is later.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

pytest_plugins = ["tests.services", "tests.durations", "tests.descriptors", "tests.browser"]

# How many examples a property has, unless it says a number: `make test-slow` tries many.
for profile, examples in (("some", 50), ("many", 300)):
    # how long one takes says nothing on a busy machine
    hypothesis.settings.register_profile(profile, max_examples=examples, deadline=None)
hypothesis.settings.load_profile("some")

# thousands of modules and tests are made before the first one runs: none of it is garbage
gc.disable()


@pytest.fixture(autouse=True, scope="session")
def _every_cell_has_a_column() -> Iterator[None]:
    """Where a table lacks a column, rich would print the cells of its rows without a title."""
    from rich.table import Table  # noqa: PLC0415

    add_row = Table.add_row

    def checked(table: Table, *cells: Any, **how: Any) -> None:
        assert len(cells) <= len(table.columns), "a cell of a table has no column"
        add_row(table, *cells, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "add_row", checked)
        yield


def pytest_collection_finish() -> None:
    """Collect what tests leave, and never look through what was there before."""
    gc.freeze()
    gc.enable()
