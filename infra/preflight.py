"""One short conversation with Kafka, before a client library has one: what is wrong, who acts.

The libraries try again for half a minute whatever the fault is, and then say that nobody answered.
Here each step has its own answer, within seconds. A fault that may pass is a `BrokerError`; one
that a setting makes, and that Kafka has given proof of, is a `ConfigError`.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from pipeline.errors import BrokerError, ConfigError, VeilstreamError
from pipeline.settings import Settings

#: How long a server may take for each answer.
PATIENCE_SECONDS = 5.0
#: After so long a silence Kafka is asked whether it is still there: a consumer waits for ever for
#: one that is gone, and so would its owner.
SILENCE_SECONDS = 60.0
#: What a handshake answers if it does not take a mechanism, or no user at all.
WRONG_MECHANISM, NO_USERS_HERE = 33, 34


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return a verifying TLS context, or None where Kafka is reached without TLS.

    ConfigError, naming the setting whose file is missing, or is none of its kind.
    """
    if not settings.kafka_security.endswith("SSL"):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.kafka_ca or None)
    except OSError as error:
        raise _unusable("VEILSTREAM_KAFKA_CA", settings.kafka_ca, error) from error
    if settings.kafka_certificate:
        try:
            # an encrypted key would ask the terminal for its password
            context.load_cert_chain(
                settings.kafka_certificate, settings.kafka_key or None, password=""
            )
        except OSError as error:
            names = "VEILSTREAM_KAFKA_CERTIFICATE or VEILSTREAM_KAFKA_KEY"
            files = f"{settings.kafka_certificate} and {settings.kafka_key or 'the same file'}"
            raise _unusable(names, files, error) from error
    return context


def _unusable(names: str, files: str, error: OSError) -> ConfigError:
    # an `ssl.SSLError` is an OSError, too: its text names functions of a library
    why = "no such PEM" if isinstance(error, ssl.SSLError) else (error.strerror or "unreadable")
    return ConfigError(
        f"{names}: {files} cannot be used ({why}): name PEM files that this user may read, a key "
        "without a password"
    )


class Hung(Exception):
    """The server closed the connection instead of an answer."""


class Silence:
    """How long a consumer has heard nothing, and whether Kafka is still there when that is long."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._since = settings, time.monotonic()

    def after(self, heard: object) -> None:
        """Note what a look at Kafka gave; raise as `check_servers` if it is gone."""
        if heard:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > SILENCE_SECONDS:
            check_servers(self._settings)
            self._since = time.monotonic()


def check_servers(settings: Settings) -> None:
    """Refuse servers none of which can be talked to with these settings.

    Raises ConfigError if a setting is wrong: its protocol, certificate, mechanism, user or
    password; BrokerError if no server is there, or answers.
    """
    faults: list[VeilstreamError] = []
    for server in settings.kafka.split(","):
        host, _, port = server.rpartition(":")
        try:
            _converse(settings, server, (host.strip("[]"), int(port)))
        except VeilstreamError as fault:
            faults.append(fault)
        else:
            return
    raise next((fault for fault in faults if isinstance(fault, ConfigError)), faults[0])


def _converse(settings: Settings, server: str, address: tuple[str, int]) -> None:
    tls, users = "SSL" in settings.kafka_security, settings.kafka_security.startswith("SASL")
    context = ssl_context(settings)
    try:
        with (
            _connected(server, address) as plain,
            _secured(plain, context, address[0], server) as link,
        ):
            _ask(link, ApiVersionsRequest(version=0))
            if users:
                _authenticate(settings, server, link)
            _ask(link, MetadataRequest(version=1, topics=[]))
    except (Hung, ssl.SSLError, ConnectionError) as error:
        if tls and _answers(server, address):
            raise _wrong(server, "speaks without TLS", "PLAINTEXT or SASL_PLAINTEXT") from error
        if tls and context is not None and _shakes(server, address):
            raise ConfigError(
                f"Kafka at {server} wants a certificate of this client: "
                "VEILSTREAM_KAFKA_CERTIFICATE and VEILSTREAM_KAFKA_KEY must name one that it knows"
            ) from error
        if not tls and _shakes(server, address):
            raise _wrong(server, "speaks TLS", "SSL or SASL_SSL") from error
        if not users and _takes_users(server, address, context):
            raise _wrong(server, "asks for a user", f"SASL_{settings.kafka_security}") from error
        raise BrokerError(
            f"Kafka at {server} closes the connection instead of an answer: it is just starting, "
            "or VEILSTREAM_KAFKA names something else"
        ) from error
    except TimeoutError as error:
        raise _silent(server) from error


def _connected(server: str, address: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_connection(address, timeout=PATIENCE_SECONDS)
    except (socket.gaierror, UnicodeError) as error:
        raise BrokerError(
            f"Kafka at {server}: the name {address[0]!r} is not known; VEILSTREAM_KAFKA must "
            "name a host that this machine can resolve"
        ) from error
    except ConnectionRefusedError as error:
        raise BrokerError(
            f"Kafka at {server} does not answer: nothing listens there; start it, for example with "
            "`veilstream up`, or set VEILSTREAM_KAFKA"
        ) from error
    except TimeoutError as error:
        raise _silent(server) from error
    except OSError as error:
        raise BrokerError(
            f"Kafka at {server} is out of reach ({error.strerror}): see to the network, or to "
            "VEILSTREAM_KAFKA"
        ) from error


def _secured(
    plain: socket.socket, context: ssl.SSLContext | None, host: str, server: str
) -> socket.socket:
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"the certificate of Kafka at {server} is refused ({error.verify_message}): "
            "VEILSTREAM_KAFKA_CA must name the PEM file of the authority that signed it, and "
            "VEILSTREAM_KAFKA the server as the certificate does"
        ) from error


def _authenticate(settings: Settings, server: str, link: socket.socket) -> None:
    name = settings.kafka_sasl
    found = _shaken(link, name)
    if found.error_code == NO_USERS_HERE:
        plain = settings.kafka_security.removeprefix("SASL_")
        raise _wrong(server, "takes no user", "PLAINTEXT" if plain == "PLAINTEXT" else "SSL")
    if found.error_code == WRONG_MECHANISM:
        raise ConfigError(
            f"Kafka at {server} does not take {name}: VEILSTREAM_KAFKA_SASL must be one of "
            f"{', '.join(sorted(found.mechanisms))}"
        )
    mechanism = get_sasl_mechanism(name)(
        sasl_mechanism=name,
        sasl_plain_username=settings.kafka_username,
        sasl_plain_password=settings.kafka_password,
    )
    while not mechanism.is_done():
        request = SaslAuthenticateRequest(version=0, auth_bytes=mechanism.auth_bytes())
        answer = SaslAuthenticateResponse.decode(_ask(link, request), version=0, header=True)
        # a server that does not prove that it knows the password is refused by the mechanism
        if answer.error_code or not _convinced(mechanism, answer.auth_bytes):
            raise ConfigError(
                f"Kafka at {server} refuses the user or the password: see to "
                "VEILSTREAM_KAFKA_USERNAME and VEILSTREAM_KAFKA_PASSWORD, which the operator of "
                "Kafka knows"
            )


def _convinced(mechanism: object, token: bytes) -> bool:
    try:
        mechanism.receive(token)  # type: ignore[attr-defined]
    except (ValueError, KeyError):
        return False
    return True


def _answers(server: str, address: tuple[str, int]) -> bool:
    """Whether it is a Kafka without TLS."""
    try:
        with _connected(server, address) as link:
            return bool(_ask(link, ApiVersionsRequest(version=0)))
    except (VeilstreamError, Hung, OSError):
        return False


def _shakes(server: str, address: tuple[str, int]) -> bool:
    """Whether it speaks TLS, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(server, address) as plain, context.wrap_socket(plain):
            return True
    except (VeilstreamError, OSError):
        return False


def _takes_users(server: str, address: tuple[str, int], context: ssl.SSLContext | None) -> bool:
    """Whether it asks who somebody is."""
    try:
        with (
            _connected(server, address) as plain,
            _secured(plain, context, address[0], server) as link,
        ):
            return bool(_shaken(link, "any").error_code == WRONG_MECHANISM)
    except (VeilstreamError, Hung, OSError):
        return False


def _shaken(link: socket.socket, mechanism: str) -> Any:
    """Return what a server says to a mechanism."""
    answer = _ask(link, SaslHandshakeRequest(version=1, mechanism=mechanism))
    return SaslHandshakeResponse.decode(answer, version=1, header=True)


def _ask(link: socket.socket, request: Any) -> bytes:
    """Send a request of kafka-python and return its answer, with the header."""
    request.with_header(correlation_id=1, client_id="veilstream")
    link.sendall(request.encode(header=True, framed=True))
    with link.makefile("rb") as stream:
        size = int.from_bytes(stream.read(4), signed=True)
        # the start of a TLS alert, or of some other protocol's answer, is a size beyond all sense
        if not 4 <= size < 2**24 or len(answer := stream.read(size)) < size:
            raise Hung
    return answer


def _wrong(server: str, does: str, allowed: str) -> ConfigError:
    return ConfigError(f"Kafka at {server} {does}: VEILSTREAM_KAFKA_SECURITY must be {allowed}")


def _silent(server: str) -> BrokerError:
    return BrokerError(
        f"Kafka at {server} does not answer within {PATIENCE_SECONDS:.0f} s: see to Kafka, or to "
        "VEILSTREAM_KAFKA"
    )
