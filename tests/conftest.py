"""Servers for all tests, and the time that a test may take."""

import gc
import os

import hypothesis

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


def pytest_collection_finish() -> None:
    """Collect what tests leave, and never look through what was there before."""
    gc.freeze()
    gc.enable()
