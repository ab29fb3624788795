"""Servers for all tests, and the time that a test may take."""

pytest_plugins = ["tests.services", "tests.durations"]
