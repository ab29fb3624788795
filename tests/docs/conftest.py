"""The end of a run says how many blocks of the documents were run."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the test of blocks has counted."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in getattr(report, "user_properties", []):
            if name == "snippets":
                terminalreporter.write_line(f"blocks of the documents: {value}")
