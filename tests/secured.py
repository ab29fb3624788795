"""A Kafka with listeners that ask for TLS and for users, and a throwaway authority."""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from infra.local import LocalRuntime
from infra.local.download import ProgramPaths
from infra.local.processes import HOST, free_port
from infra.local.services import MEMORY, Kafka
from pipeline.settings import Settings

PASSWORD, LATE_PASSWORD = "right-password", "late-password"
#: Who may do everything; whom tests permit a part of it.
OWNER, READER, WORKER = "owner", "reader", "worker"
#: Users of SASL SCRAM over TLS, who may do nothing before a test permits it.
ROLES = ("client", "worker", "reader", "operator")


#: Under which each listener is known to Kafka, and how it wants to be talked to.
LISTENERS = {
    "users": "SASL_PLAINTEXT", "tls": "SSL", "mutual": "SSL", "scram": "SASL_SSL",
    "bare": "SASL_PLAINTEXT",
}  # fmt: skip


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


class SecuredKafka(Kafka):
    """The local Kafka with more listeners, users, and rights; `plain` is as it always is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ProgramPaths(), MEMORY)
        self._folder = folder

    @property
    def ports(self) -> dict[str, int]:
        """Where each listener is."""
        found: dict[str, int] = json.loads((self._folder / "ports.json").read_text())
        return found

    def _write_settings(self, port: int) -> None:
        super()._write_settings(port)
        lines = self._settings.read_text(encoding="ascii").splitlines()
        held = dict(line.split("=", 1) for line in lines if "=" in line)
        if not (self._folder / "ports.json").exists():
            self._prepare(int(held["listeners"].rsplit(":", 1)[1]), port)
        for name, protocol in LISTENERS.items():
            held["listeners"] += f",{name.upper()}://{HOST}:{self.ports[name]}"
            held["listener.security.protocol.map"] += f",{name.upper()}:{protocol}"
        module = "org.apache.kafka.common.security.{}LoginModule required"
        passwords = {OWNER: PASSWORD, **dict.fromkeys(ROLES, LATE_PASSWORD)}
        known = " ".join(f'user_{name}="{given}"' for name, given in passwords.items())
        held |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": (
                f"{module.format('plain.Plain')} {known};"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._folder / "ca.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{OWNER};User:CN=server",
        }
        for name in ("scram", "bare"):
            held[f"listener.name.{name}.sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
            held[f"listener.name.{name}.scram-sha-512.sasl.jaas.config"] = (
                f"{module.format('scram.Scram')};"
            )
        self._settings.write_text("".join(f"{k}={v}\n" for k, v in held.items()), encoding="ascii")

    def _prepare(self, *taken: int) -> None:
        authority, stranger = Authority("throwaway"), Authority("stranger")
        authority.write(self._folder / "ca.pem")
        stranger.write(self._folder / "other.pem")
        authority.issue(self._folder / "server.pem", HOST)
        ports: dict[str, int] = {}
        for name in LISTENERS:
            ports[name] = free_port(avoid={*taken, *ports.values()})
        (self._folder / "ports.json").write_text(json.dumps(ports))


class SecuredRuntime(LocalRuntime):
    """The local runtime with such a Kafka: one for all tests."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kafka = SecuredKafka(self.folder / "kafka")
        self._services[self._kafka.name] = self._kafka

    def listeners(self) -> Secured:
        """Add the users of SCRAM, and return each listener of the Kafka, which must be up."""
        folder = self.folder / "kafka"
        base = Settings(kafka=self.addresses().kafka, folder=str(self.folder / "home"))
        made = [
            UserScramCredentialUpsertion(role, ScramMechanism.SCRAM_SHA_512, LATE_PASSWORD.encode())
            for role in ROLES
        ]
        with KafkaAdminClient(bootstrap_servers=base.kafka) as admin:
            assert not any(admin.alter_user_scram_credentials(made).values())
        known = {"kafka_sasl": "SCRAM-SHA-512", "kafka_password": LATE_PASSWORD}
        owner = {
            "kafka_sasl": "PLAIN", "kafka_username": OWNER, "kafka_password": PASSWORD,
        }  # fmt: skip
        authority = {"kafka_ca": str(folder / "ca.pem")}
        more = {
            "users": owner, "tls": authority, "scram": known | authority, "bare": known,
            "mutual": authority | {"kafka_certificate": str(folder / "server.pem")},
        }  # fmt: skip
        found = {
            name: replace(base, kafka=f"{HOST}:{port}", kafka_security=protocol, **more[name])
            for (name, protocol), port in zip(
                LISTENERS.items(), self._kafka.ports.values(), strict=True
            )
        }
        return Secured(plain=base, **found, other_authority=str(folder / "other.pem"))


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
