"""`python -m tests.producers.dying_client POINT CALLS ...` is `veilstream ...` that dies by itself.

It is killed by SIGKILL at one point of its work: before or after a call of one of its parts, the
time that this call is made. So a kill falls where one at a random time seldom would, such as
between the storing of a record and its acknowledgement.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any, NamedTuple

from pipeline.cli import main as program


class Point(NamedTuple):
    """Where a client dies.

    call: Module, class and method.
    after: Whether the call is made first.
    """

    call: str
    after: bool


LEDGER, INBOX, SPOOL = (
    "producers.store:ClientStore", "producers.sources.push:Inbox",
    "producers.sources.stdin:Spool",
)  # fmt: skip
#: Of every source: around the transaction of a release, and around that of its acknowledgement.
POINTS = {
    "releasing": Point(f"{LEDGER}.release", after=False),
    "released": Point(f"{LEDGER}.release", after=True),
    "acknowledged": Point(f"{LEDGER}.sent", after=False),
    "dropped": Point(f"{LEDGER}.sent", after=True),
}
#: Of what is kept on disk, too: before it is stored, and between that and the answer to its sender.
ALL = POINTS | {
    f"{kept}-{name}": Point(f"{owner}.{call}", after)
    for kept, owner, put in (("inbox", INBOX, "put"), ("spool", SPOOL, "_append"))
    for name, call, after in (("storing", put, False), ("stored", put, True),
                              ("forgetting", "forget", True))
}  # fmt: skip


def arm(point: Point, calls: int) -> None:
    """Have this process die at that call of a point, counted from 1."""
    module, _, path = point.call.partition(":")
    owner, _, name = path.partition(".")
    kind = getattr(importlib.import_module(module), owner)
    whole, made = getattr(kind, name), 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal made
        made += 1
        if made == calls and not point.after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = whole(*arguments, **named)
        if made == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(kind, name, call)


def main() -> None:
    """Take point and calls from the command line, and be the program."""
    chosen, count = sys.argv[1:3]
    del sys.argv[1:3]
    if chosen != "never":
        arm(ALL[chosen], int(count))
    program.main()


if __name__ == "__main__":
    main()
