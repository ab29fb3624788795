"""Durable state of the workers, in Redis.

- `keys`: names of the keys. `redis_store`: snapshots by compare-and-set, and the newest model.
- `stored`: their form, with checksums.
- `faults`: what Redis refuses, and who must act. `decoding`: what it gives back.
"""

from state.redis_store import Held, RedisStore

__all__ = ["Held", "RedisStore"]
