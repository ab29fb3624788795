"""Why a release is not believed, and who must act: the faults that only authentication finds."""

from __future__ import annotations

from pipeline.errors import PayloadError

_FAULTS = {
    "not-admitted": "no admission of this client is in the log before it; the operator runs "
    "`veilstream client admit`, or `veilstream study recover` where this topic was made anew",
    "revoked": "this client was revoked before it; `veilstream client admit` takes it back",
    "old-key": "made under a key of the study that this worker has not, or that is retired: start "
    "the client again, or give the worker the newest key file",
    "wrong-partition": "it is in another partition than its client's id leads to",
    "forged": "its MAC is not that of the client whose name it bears",
    "unpublished-model": "its model was not published by this study",
    "share": "above this client's share of all releases at its model (trust.largest_share): its "
    "producer must be one that waits for others, as those of this version do",
}
FAULTS = {reason: PayloadError(reason, detail) for reason, detail in _FAULTS.items()}
