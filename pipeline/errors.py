"""Everything that can go wrong, who must act, and the exit code that says so.

::

    VeilstreamError                      exit
      x ConfigError      the operator    10   a study file or a setting is wrong
      x DataError        the data owner  20   a source cannot be read as the study says
      x RecordError      the data owner  21   one record is bad: set aside, the stream goes on
      x PayloadError     the sender      22   one message is bad: it becomes a dead letter
      x NumericError     the analyst     25   an estimate cannot be formed from what has come so far
      x WaitTimeout      the operator    26   what a command waits for has not come in time
      x PrivacyError     the operator    30   a release would break the policy
        x BudgetExceeded                 31   the ledger has no budget left for this release
      x StateError       the operator    40   stored state cannot be used as it is
        x StaleSnapshot                  41   another worker has moved this partition on
        x OffsetGap                      42   the log does not continue where the state ends
        x AlreadyRunning                 43   another process holds this client or this folder
        x LedgerBehind                   44   a client's database is older than what it has sent
      x BrokerError      the operator    50   Kafka is out of reach or refuses
      x StoreError       the operator    60   Redis is out of reach or refuses
      x LocalStoreError  the operator    61   the client's database or an output cannot be written
      x RuntimeSetupError the operator   70   the local Kafka or Redis cannot be set up

Messages name the field, the allowed values and who must act. They never hold data: an error
travels to logs and consoles that the privacy policy does not cover.
"""

from __future__ import annotations

from typing import ClassVar


class VeilstreamError(Exception):
    """Base of all errors that this project raises on purpose."""

    exit_code: ClassVar[int] = 1


class ConfigError(VeilstreamError):
    """A study file or a setting is wrong; the operator must correct it."""

    exit_code = 10


class NoTopic(ConfigError):
    """A topic that is to be read is not there."""


class DataError(VeilstreamError):
    """A source cannot be read as the study says; the data owner must correct it."""

    exit_code = 20


class RecordError(VeilstreamError):
    """One record is bad; it is set aside and its slot stays empty."""

    exit_code = 21


class PayloadError(VeilstreamError):
    """One message is bad; it becomes a dead letter.

    reason: A short stable code, such as ``wrong-revision``: the label of a metric.
    detail: One sentence for the operator, free of payload contents.
    """

    exit_code = 22

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class NumericError(VeilstreamError):
    """An estimate cannot be formed from what has come so far."""

    exit_code = 25


class WaitTimeout(VeilstreamError):
    """What a command waits for has not come within its --timeout."""

    exit_code = 26


class PrivacyError(VeilstreamError):
    """A release would break the policy; nothing was spent and nothing was sent."""

    exit_code = 30


class BudgetExceeded(PrivacyError):
    """The ledger has no budget left for this release."""

    exit_code = 31


class StateError(VeilstreamError):
    """Stored state cannot be used as it is."""

    exit_code = 40


class StaleSnapshot(StateError):
    """Another worker has moved this partition on; this one must not write."""

    exit_code = 41


class OffsetGap(StateError):
    """The log does not continue where the state ends."""

    exit_code = 42


class AlreadyRunning(StateError):
    """Another process holds this client or this folder."""

    exit_code = 43


class LedgerBehind(StateError):
    """A client's database is older than what the releases topic has from it."""

    exit_code = 44


class BrokerError(VeilstreamError):
    """Kafka is out of reach or refuses."""

    exit_code = 50


class StoreError(VeilstreamError):
    """Redis is out of reach or refuses."""

    exit_code = 60


class LocalStoreError(VeilstreamError):
    """The client's own database, or a file of output, cannot be written."""

    exit_code = 61


class RuntimeSetupError(VeilstreamError):
    """The local Kafka or Redis cannot be set up."""

    exit_code = 70


class VeilstreamWarning(UserWarning):
    """Base of all warnings that programs and notebooks get; they name features, never data."""


class DataWarning(VeilstreamWarning):
    """Some records could not be used; their slots stayed empty."""


class RangeWarning(VeilstreamWarning):
    """Values do not fit the public ranges: they lie outside, or use only a sliver of them.

    A scaler in front of a learner does that: the model then learns in the wrong unit.
    """


class NotReadyWarning(VeilstreamWarning):
    """A model predicts whose estimate is not ready: its coefficients are not determined yet."""
