"""The accounts of all clients on one compacted topic: a folder that is lost is not forgotten.

A client reads its own account there before it spends, and writes it before the first release of a
study leaves. What another folder of the same client wrote is written again with it, as the newest
message of a key replaces the others. Whatever cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from infra.connection import read_all, write_one
from pipeline.errors import ConfigError
from pipeline.messages.spend import (
    NAME,
    SourceSpends,
    SpendsMessage,
    hide,
    merge,
    read_spends,
    write_spends,
)
from pipeline.settings import Settings
from producers.heritage import Heritage

#: How long Kafka may take nothing, in seconds.
PATIENCE = 60.0
#: Bytes of an account, at most: what Kafka takes by default, less what it adds.
MOST = 900_000
OTHERWISE = (
    f"If this client never had a newer version, somebody else has written to {NAME}: the operator "
    "must see to who may (`veilstream study acls`), and delete the topic: each client writes its "
    "account again when it starts. Until then VEILSTREAM_LEDGER_TOPIC=off lets this one go on"
)


class LedgerTopic:
    """One client's account on the topic; where it is switched off nothing is read or written.

    settings: Where Kafka is, and whether the topic is used.
    client, heritage: Whose account, and where it stands.
    say: Told of messages that are passed over.

    Raises BrokerError, ConfigError: by every method, if Kafka does not answer, or does not permit
    it.
    """

    def __init__(
        self, settings: Settings, client: str, heritage: Heritage, say: Callable[[str], None]
    ) -> None:
        self._settings, self._client, self._heritage, self._say = settings, client, heritage, say
        self._on = settings.ledger_topic == "on"
        self._there: Sequence[SpendsMessage] = ()
        self._newest: list[SourceSpends] | None = None

    def take_over(self, source: str, *, begun: bool, other_data: bool) -> None:
        """Charge what the topic says this client has spent on a source; see `Heritage.take_topic`.

        ConfigError if nobody can tell whether its records were released elsewhere.
        """
        if self._on:
            self._there = self._read()
            self._newest = _facts(self._there[-1]) if self._there else None
        changed = self._heritage.take_topic(source, self._there, begun=begun, other_data=other_data)
        if other_data and (excused := self._heritage.excused(source)):
            self._say(
                f"WARNING: {excused} spends of this client on source {source!r} that {NAME} has "
                "told do not count any more: --other-data says that they were for other records"
            )
        elif changed:
            self._say(
                f"WARNING: {NAME} has {changed} spends of this client on source {source!r} that "
                "this folder did not know; they count now"
            )

    def publish(self) -> None:
        """Write the account, if the topic's newest says something else.

        It must be there before a release leaves that it speaks of.
        """
        if not self._on:
            return
        own = hide(self._heritage.account())
        others = [entry for message in self._there for entry in message.sources]
        message = msgspec.structs.replace(own, sources=merge([*own.sources, *others]))
        if len(write_spends(message)) > MOST:
            self._say(
                f"WARNING: {NAME} holds too much under this client's id: own spends alone stay"
            )
            message = own
        if not message.sources or _facts(message) == self._newest:
            return
        write_one(
            self._settings, NAME, otherwise=_fault("written"), patience=PATIENCE,
            key=self._client.encode(), value=write_spends(message),
        )  # fmt: skip
        self._newest = _facts(message)

    def _read(self) -> list[SpendsMessage]:
        found, passed = list[SpendsMessage](), 0
        for key, payload in read_all(self._settings, NAME, _fault("read")):
            if key != self._client.encode() or payload is None:
                continue
            try:
                message = read_spends(payload)
            except (msgspec.DecodeError, UnicodeDecodeError):
                message = None
            except ConfigError as error:
                # nobody can tell whether the client itself has written it
                raise ConfigError(f"{error}. {OTHERWISE}") from None
            if message is None or message.client != self._client:
                passed += 1
            else:
                found.append(message)
        if passed:
            self._say(
                f"WARNING: {passed} messages under this client's id on {NAME} are no accounts of "
                "it and are passed over; the operator must see to who may write there"
            )
        return found


def _fault(done: str) -> str:
    return (
        f"topic {NAME} cannot be {done} ({{fault}}); nothing is lost: start this client again when "
        "Kafka answers, or set VEILSTREAM_LEDGER_TOPIC=off"
    )


def _facts(message: SpendsMessage) -> list[SourceSpends]:
    """Return what is worth another message: not that there are more releases."""
    return [
        msgspec.structs.replace(
            entry, spends=[msgspec.structs.replace(spend, releases=0) for spend in entry.spends]
        )
        for entry in message.sources
    ]
