"""Servers for all tests; see `tests.services`."""

pytest_plugins = ["tests.services"]
