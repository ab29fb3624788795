"""A test that waits for what cannot come any more fails at once, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stage import Stage, study_text


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Yield a stage that no server stands behind, with a worker that fails."""
    with Stage(tmp_path, "127.0.0.1:9", "redis://127.0.0.1:9/0", study_text()) as made:
        made.start("w0", "worker", tmp_path / "none.toml")
        yield made


def never() -> bool:
    return False


def test_a_wait_ends_with_a_process_that_has_failed(stage: Stage) -> None:
    with pytest.raises(AssertionError, match=r"(?s)w0 ended with 10: .*none\.toml"):
        stage.until(never, "what a worker does")


def test_a_failure_that_the_test_knows_of_ends_no_wait_but_that_for_a_worker(stage: Stage) -> None:
    assert stage.code("w0") == 10
    with pytest.raises(AssertionError, match=r"not within 0\.1 s"):
        stage.until(never, "what others do", 0.1)
    with pytest.raises(AssertionError, match="no worker is left"):
        stage.until(never, "what a worker does", workers=True)
    # one that is started as users start it is one as well
    stage.start("w1", "worker", stage.study, env=stage.environment)
    with pytest.raises(AssertionError, match=r"not within 0\.1 s"):
        stage.until(never, "what a worker does", 0.1, workers=True)
