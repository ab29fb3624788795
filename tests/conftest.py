"""Servers for all tests, and the time that a test may take."""

import gc

pytest_plugins = ["tests.services", "tests.durations", "tests.browser"]

# thousands of modules and tests are made before the first one runs: none of it is garbage
gc.disable()


def pytest_collection_finish() -> None:
    """Collect what tests leave, and never look through what was there before."""
    gc.freeze()
    gc.enable()
