"""Servers for all tests, and the time that a test may take."""

import gc
import os

# Every process of a run computes on one core, as do those that it starts: two threads that share a
# small matrix wait for each other most of the time, at the cost of the tests beside them. Numerical
# libraries read this when they are loaded, which is later.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

pytest_plugins = ["tests.services", "tests.durations", "tests.descriptors", "tests.browser"]

# thousands of modules and tests are made before the first one runs: none of it is garbage
gc.disable()


def pytest_collection_finish() -> None:
    """Collect what tests leave, and never look through what was there before."""
    gc.freeze()
    gc.enable()
