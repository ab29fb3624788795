"""One replay of the benchmarks' topic; prints releases per second and its memory in MiB."""

from __future__ import annotations

import re
import resource
import subprocess
import sys


def main() -> None:
    """Replay it with one estimate at the end."""
    study, to = sys.argv[1:]
    command = [
        sys.executable,
        "-m",
        "pipeline.cli.main",
        "replay",
        study,
        "--every",
        "1d",
        "--json",
    ]
    done = subprocess.run(
        command + ([] if to == "None" else ["--to", to]), capture_output=True, text=True, check=True
    )
    [rate] = re.findall(r"\(([0-9]+)/s\)", done.stderr)
    print(rate, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
