"""The Redis connection from the one settings tree, and its faults in words of ours.

- 60: it is away, is loading, follows another, has no memory or no disk: starting again helps.
- 10: a setting names the wrong server, or a user who may not: starting again does not help.
- 40: what is stored under this study's keys is not its state.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import redis
from redis import exceptions as faults
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from pipeline.errors import ConfigError, StaleSnapshot, StateError, StoreError, VeilstreamError
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


Answer = TypeVar("Answer")


class WrongType(StateError):
    """A key holds another type of value than this project keeps there."""


class Known(NamedTuple):
    """A fault, by its class or by words of the answer, of which one is enough.

    A script's faults come as words alone.
    """

    kind: type[Exception] | None
    words: tuple[str, ...]
    ours: type[VeilstreamError]
    advice: str


#: The first that fits counts.
KNOWN = (
    Known(faults.WatchError, (), StaleSnapshot,
          "a worker of this study is running; stop it first"),
    Known(None, ("STALE ",), StaleSnapshot,
          "somebody else has moved this state on ({said}); this worker stops, and the next one "
          "reads the state anew"),
    Known(None, ("WRONGTYPE ",), WrongType,
          "a key of this study in Redis holds another type of value"),
    # also of a script's commands, in the words of Redis 6 and 7
    Known(faults.NoPermissionError,
          ("NOPERM ", "can't run this command", "ACL failure in script", "EXEC without MULTI"),
          ConfigError,
          "Redis does not permit this: the operator of Redis must allow VEILSTREAM_REDIS_USERNAME "
          "the keys veil:*, and the commands of hashes, sets, transactions and scripts: "
          "`veilstream study acls` prints them"),
    Known(faults.AuthenticationError, ("NOAUTH ",), ConfigError,
          "Redis refuses the user or the password: see to VEILSTREAM_REDIS_USERNAME and "
          "VEILSTREAM_REDIS_PASSWORD"),
    Known(None, ("DENIED ",), ConfigError,
          "Redis is in protected mode: its operator must give it a password, and "
          "VEILSTREAM_REDIS_PASSWORD the same"),
    Known(faults.MovedError, ("MOVED ",), ConfigError,
          "VEILSTREAM_REDIS names one of several nodes: it must name a Redis that has all keys"),
    Known(None, ("DB index",), ConfigError,
          "Redis has no database of the number at the end of VEILSTREAM_REDIS"),
    Known(None, ("unknown command",), ConfigError,
          "the Redis of VEILSTREAM_REDIS lacks a command of hashes, sets, transactions or scripts"),
    Known(faults.InvalidResponse, (), ConfigError,
          "VEILSTREAM_REDIS names a server that does not answer as a Redis does"),
    Known(ssl.SSLError, (), ConfigError,
          "the TLS connection to Redis fails: VEILSTREAM_REDIS must begin with redis:// for a "
          "server without TLS, and end with ?ssl_ca_certs=FILE for a certificate that this system "
          "does not know"),
    Known(faults.OutOfMemoryError, ("OOM ",), StoreError,
          "Redis is at its maxmemory: its operator must give it more; nothing is lost"),
    Known(None, ("MISCONF ",), StoreError,
          "Redis cannot write to its disk: its operator must repair that; nothing is lost"),
    Known(faults.ReadOnlyError, ("READONLY ",), StoreError,
          "Redis follows another one: VEILSTREAM_REDIS must name the one that takes writes, unless "
          "this one takes over just now"),
    Known(faults.BusyLoadingError, ("LOADING ",), StoreError,
          "Redis is still reading its data; start again in a while"),
    Known(None, ("max number of clients",), StoreError,
          "Redis has no connection left: its operator must raise maxclients"),
)  # fmt: skip


def ask(call: Callable[[], Answer]) -> Answer:
    """Make a call, with Redis's faults turned into ours.

    Raises StaleSnapshot if another worker was faster; WrongType if a key holds something else than
    this project keeps there; ConfigError if a setting is wrong; StoreError if Redis is out of reach
    or refuses.
    """
    try:
        return call()
    except redis.RedisError as error:
        raise _told(error) from error


def _told(error: redis.RedisError) -> VeilstreamError:
    chain = _causes(error)
    for kind, words, ours, advice in KNOWN:
        if kind is not None and any(isinstance(cause, kind) for cause in chain):
            return ours(advice)
        if any(word in str(error) for word in words):
            return ours(advice.format(said=error))
    if isinstance(error, redis.ResponseError):
        return StoreError(f"Redis refuses: {error}")
    return StoreError(
        f"Redis is out of reach ({type(error).__name__}): is `veilstream up` running, or "
        "VEILSTREAM_REDIS right?"
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
