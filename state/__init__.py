"""Durable state of the workers, in Redis: snapshots by compare-and-set, and the newest model."""

from state.redis_store import Held, RedisStore

__all__ = ["Held", "RedisStore"]
