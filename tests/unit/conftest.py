"""Noise of the tests in one process: from a seed of each test, so that none fails by chance."""

from __future__ import annotations

import itertools
import zlib

import pytest

from tests.builders import SeededStream


@pytest.fixture(autouse=True)
def _noise_of_a_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    first = zlib.crc32(request.node.nodeid.encode()) << 32
    numbers = itertools.count(first)
    monkeypatch.setattr("pipeline.stream.release.SecureStream", lambda: SeededStream(next(numbers)))
