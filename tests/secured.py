"""A Kafka with listeners that ask for TLS and for users, and a throwaway authority."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from infra.local.download import ProgramPaths
from infra.local.processes import HOST, free_port
from infra.local.services import MEMORY, Kafka
from pipeline.settings import Settings
from tests.stage import until_it_answers

PASSWORD, LATE_PASSWORD = "right-password", "late-password"
#: Who may do everything; whom tests permit a part of it.
OWNER, READER, WORKER = "owner", "reader", "worker"
#: Users of SASL SCRAM over TLS, who may do nothing before a test permits it.
ROLES = ("client", "worker", "reader", "operator")


@dataclass(frozen=True)
class Secured:
    """How to reach each listener as it wants to be reached; `bare` is `scram` without TLS."""

    plain: Settings
    users: Settings
    tls: Settings
    mutual: Settings
    scram: Settings
    bare: Settings
    other_authority: str
    pid: int


class SecuredKafka(Kafka):
    """The local Kafka with more listeners, users, and rights."""

    def __init__(self, folder: Path, extra: dict[str, str]) -> None:
        super().__init__(folder, ProgramPaths(), MEMORY)
        self._extra = extra

    def _write_settings(self, port: int) -> None:
        super()._write_settings(port)
        held = dict(
            line.split("=", 1) for line in self._settings.read_text(encoding="ascii").splitlines()
        )
        held["listeners"] += self._extra["listeners"]
        held["listener.security.protocol.map"] += self._extra["listener.security.protocol.map"]
        held |= {k: v for k, v in self._extra.items() if k not in held}
        self._settings.write_text("".join(f"{k}={v}\n" for k, v in held.items()), encoding="ascii")


@contextmanager
def secured_kafka(folder: Path) -> Iterator[Secured]:
    """Yield a Kafka with a listener of each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, stranger = Authority("throwaway"), Authority("stranger")
    authority.write(folder / "ca.pem")
    stranger.write(folder / "other.pem")
    authority.issue(folder / "server.pem", HOST)
    ports: list[int] = []
    for _ in range(6):
        ports.append(free_port(avoid=set(ports)))
    plain, users, tls, mutual, scram, bare = ports
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    known = f'user_{OWNER}="{PASSWORD}" user_{READER}="{LATE_PASSWORD}" '
    known += f'user_{WORKER}="{LATE_PASSWORD}"'
    extra = {
        "listeners": f",USERS://{HOST}:{users},TLS://{HOST}:{tls},MUTUAL://{HOST}:{mutual}"
        f",SCRAM://{HOST}:{scram},BARE://{HOST}:{bare}",
        "listener.security.protocol.map": (
            ",USERS:SASL_PLAINTEXT,TLS:SSL,MUTUAL:SSL,SCRAM:SASL_SSL,BARE:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f"{jaas} {known};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{OWNER};User:CN=server",
    }
    for listener in ("scram", "bare"):
        extra[f"listener.name.{listener}.sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
        extra[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        )
    service = SecuredKafka(folder / "kafka", extra)
    service.log.parent.mkdir(parents=True)
    command = service.command(plain)
    with service.log.open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until_it_answers(process, lambda: service.answers(plain), service.log)
        base = Settings(kafka=f"{HOST}:{plain}", folder=str(folder / "home"))
        _add_users(base)
        checked = replace(base, kafka_sasl="SCRAM-SHA-512", kafka_password=LATE_PASSWORD)
        encrypted = replace(base, kafka_security="SSL", kafka_ca=str(folder / "ca.pem"))
        yield Secured(
            plain=base,
            users=replace(
                base,
                kafka=f"{HOST}:{users}",
                kafka_security="SASL_PLAINTEXT",
                kafka_sasl="PLAIN",
                kafka_username=OWNER,
                kafka_password=PASSWORD,
            ),
            tls=replace(encrypted, kafka=f"{HOST}:{tls}"),
            mutual=replace(
                encrypted,
                kafka=f"{HOST}:{mutual}",
                kafka_certificate=str(folder / "server.pem"),
            ),
            scram=replace(
                checked,
                kafka=f"{HOST}:{scram}",
                kafka_security="SASL_SSL",
                kafka_ca=str(folder / "ca.pem"),
            ),
            bare=replace(checked, kafka=f"{HOST}:{bare}", kafka_security="SASL_PLAINTEXT"),
            other_authority=str(folder / "other.pem"),
            pid=process.pid,
        )
    finally:
        process.kill()
        process.wait()


def _add_users(settings: Settings) -> None:
    made = [
        UserScramCredentialUpsertion(role, ScramMechanism.SCRAM_SHA_512, LATE_PASSWORD.encode())
        for role in ROLES
    ]
    with KafkaAdminClient(bootstrap_servers=settings.kafka) as admin:
        assert not any(admin.alter_user_scram_credentials(made).values())


class Authority:
    """Signs certificates that live for an hour."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._own = self._sign(self._name, self._key.public_key(), None)

    def write(self, path: Path) -> None:
        """Write the authority's own certificate."""
        path.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def issue(self, path: Path, address: str) -> None:
        """Write the key and the certificate of a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        signed = self._sign(name, key.public_key(), address)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(secret + signed.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, address: str | None
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=address is None, path_length=None), True)
        )
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            made = made.add_extension(names, False)
        return made.sign(self._key, hashes.SHA256())
