"""Durable state of the workers, in Redis.

- `keys`: names of the keys. `redis_store`: snapshots by compare-and-set, and the newest model.
"""

from state.redis_store import RedisStore

__all__ = ["RedisStore"]
