"""Names of the Redis keys; the braces keep a study on one slot of a Redis cluster."""

from __future__ import annotations


def snapshot(study: str, partition: int) -> str:
    """Hash of the sums and the watermark of one partition."""
    return f"veil:{{{study}}}:{partition}:state"


def clients(study: str, partition: int) -> str:
    """Hash from client id to progress, of one partition."""
    return f"veil:{{{study}}}:{partition}:clients"


def erased(study: str) -> str:
    """Set of the ids of erased clients, of all partitions."""
    return f"veil:{{{study}}}:erased"


def model(study: str) -> str:
    """Hash of the newest model: version and payload."""
    return f"veil:{{{study}}}:model"


def kinds(study: str, partitions: int) -> dict[str, bytes]:
    """Return every key of a study with the Redis type of its value."""
    found = {erased(study): b"set", model(study): b"hash"}
    for number in range(partitions):
        found |= {snapshot(study, number): b"hash", clients(study, number): b"hash"}
    return found
