"""The Redis connection from the one settings tree."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from pipeline.errors import ConfigError
from pipeline.settings import Settings


def redis_client(settings: Settings) -> redis.Redis:
    """Return a Redis client with bounded waits: a dead Redis must stop a worker, not hang it.

    ConfigError if its URL cannot be read.
    """
    credentials: dict[str, Any] = {}
    if settings.redis_username:
        credentials["username"] = settings.redis_username
    if settings.redis_password:
        credentials["password"] = settings.redis_password
    try:
        client = redis.Redis.from_url(
            settings.redis,
            protocol=2,
            decode_responses=False,
            socket_timeout=5.0,
            socket_connect_timeout=3.0,
            retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
            **credentials,
        )
        # an option that it does not know would come to light with the first command only
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        # its own words would show the password in the URL
        raise ConfigError(
            "VEILSTREAM_REDIS cannot be read: redis://HOST:PORT/NUMBER, rediss:// for TLS, or "
            "unix://PATH"
        ) from error
    return client
