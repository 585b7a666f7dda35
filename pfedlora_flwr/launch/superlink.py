"""A connection in Flower's config.toml, looked at step by step: the address, the certificate, the
SuperLink's answer, its nodes. What Flower calls a network fault is named here."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import socket
import ssl
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from pfedlora_flwr.errors import UserError, brief, printable, some, wrong

CONNECTIONS = "config.toml"
"""The file of the connections, in Flower's home."""
_PLACE = re.compile(r"(?:https?://)?(?P<host>[^:/]+|\[[^\]]+\]):(?P<port>\d{1,5})/?")
_PATIENCE = 10.0
"""Seconds in which a SuperLink must answer a step."""
_SOON = 14
"""Days before its end from which a certificate is to be renewed."""


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it; empty: nothing.

    later: whether it works so far all the same."""

    what: str
    found: str
    fix: str = ""
    later: bool = False

    @property
    def bars(self) -> bool:
        """Whether nothing works before it is mended."""
        return bool(self.fix) and not self.later


@dataclass(frozen=True)
class Connection:
    """What Flower's config.toml says of a SuperLink. root: the file of the authorities that are
    trusted; None: the system's."""

    name: str
    address: str
    insecure: bool
    root: Path | None
    file: Path

    @property
    def place(self) -> tuple[str, int]:
        """Host and port. Raises UserError."""
        found = _PLACE.fullmatch(self.address)
        if not found:
            raise wrong(f"{self.file}: the address of {self.name!r}", self.address, "HOST:PORT")
        return found["host"].strip("[]"), int(found["port"])


def find_connection(name: str) -> Connection:
    """The connection of this name. Raises UserError, with those there are, if there is none."""
    file = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / CONNECTIONS
    try:
        known = tomllib.loads(file.read_text(encoding="utf-8")).get("superlink", {})
        there = {other: said for other, said in known.items() if isinstance(said, dict)}
    except FileNotFoundError:
        raise UserError(
            f"superlink is {name!r}, a connection in {file}, which is not there;"
            " docs/deployment.md has one"
        ) from None
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read as Flower's configuration ({error})") from None
    if name not in there:
        raise UserError(
            f"superlink is {name!r}; allowed, by {file}:"
            f" {', '.join(there) or 'none: it has no connection'}"
        )
    said, root = there[name], there[name].get("root-certificates")
    return Connection(
        name,
        str(said.get("address", "")),
        said.get("insecure") is True,
        Path(str(root)) if root else None,
        file,
    )


def why_unreachable(connection: Connection) -> str:
    """What stands between this machine and the SuperLink, with what to do; empty: nothing that is
    known."""
    if not _PLACE.fullmatch(connection.address):  # such as Flower's own `:local:`
        return ""
    bad = next((check for check in way_to(connection) if check.bars), None)
    return f"{bad.found}; {bad.fix}" if bad else ""


def way_to(connection: Connection) -> Iterator[Check]:
    """The steps to the SuperLink, until one is barred: its address, then TLS."""
    host, port = connection.place
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except socket.gaierror as error:
        fix = f"mend `address` in {connection.file}, or the name's entry in DNS or /etc/hosts"
        yield Check("address", f"the host {host!r} is not known ({error.strerror})", fix)
        return
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        fix = "start the SuperLink, open its port in the firewall, or mend `address` in"
        told = f"nothing answers at {host}:{port} ({why})"
        yield Check("address", told, f"{fix} {connection.file}")
        return
    yield Check("address", f"{host}:{port} answers")
    yield from _tls(connection, host, port)


def _tls(connection: Connection, host: str, port: int) -> Iterator[Check]:
    certificate = _certificate_at(host, port)
    if connection.insecure:
        told = "the SuperLink speaks TLS, and the connection says insecure = true"
        fix = f'write root-certificates = "/…/ca.crt" in its place in {connection.file}'
        yield Check("TLS", told, fix) if certificate else Check("TLS", "none, as insecure says")
        return
    if certificate is None:
        told = "the SuperLink speaks no TLS, and the connection asks for it"
        fix = "start the SuperLink with --ssl-ca-certfile, --ssl-certfile and --ssl-keyfile"
        yield Check("TLS", told, fix)
        return
    root = f"root-certificates, {connection.root},"
    if connection.root and not connection.root.is_absolute():
        told = f"{root} is no absolute path, and Flower takes no other"
        yield Check("authority", told, f"write the whole path in {connection.file}")
        return
    if connection.root and not connection.root.is_file():
        yield Check(
            "authority", f"{root} is no file", "copy the ca.crt of the SuperLink's operator there"
        )
        return
    yield _validity(certificate, datetime.now(UTC))
    yield _authority(connection, certificate, host, port)
    yield _host_name(certificate, host)


def _certificate_at(host: str, port: int) -> x509.Certificate | None:
    """The server's, whatever it is worth; None if there is no TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=_PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            found = secure.getpeercert(binary_form=True)
    except OSError:  # SSLError is one
        return None
    return x509.load_der_x509_certificate(found) if found else None


def _validity(certificate: x509.Certificate, now: datetime) -> Check:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    renew = "make a new one with certificates.py --renew, and restart the SuperLink"
    if now > end:
        found = f"the SuperLink's certificate expired on {end:%Y-%m-%d %H:%M} UTC"
        return Check("certificate", found, renew)
    if now < begin:
        return Check(
            "certificate",
            f"the SuperLink's certificate is valid from {begin:%Y-%m-%d %H:%M} UTC, and here it is"
            f" {now:%Y-%m-%d %H:%M}",
            "set this machine's clock, or the SuperLink's",
        )
    days = (end - now).days
    found = f"valid until {end:%Y-%m-%d %H:%M} UTC, {days} days"
    return Check("certificate", found, renew if days < _SOON else "", later=True)


def _authority(
    connection: Connection, certificate: x509.Certificate, host: str, port: int
) -> Check:
    """Whether one of the trusted authorities has signed it, whatever its dates and names."""
    trusted = str(connection.root) if connection.root else "the system's authorities"
    try:
        context = ssl.create_default_context(cafile=connection.root)
    except (OSError, ValueError) as error:
        told = f"root-certificates, {connection.root}, cannot be read ({error})"
        return Check("authority", told, "copy the ca.crt of the SuperLink's operator there")
    context.check_hostname = False
    try:
        with (
            socket.create_connection((host, port), timeout=_PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            signed = True
    except ssl.SSLCertVerificationError as error:
        signed = error.verify_code in (_EXPIRED, _NOT_YET) and _signed_by(connection, certificate)
    except OSError as error:
        return Check("authority", f"the handshake failed ({brief(error)})", "ask the operator")
    if signed:
        return Check("authority", f"signed by one of {trusted}")
    return Check(
        "authority",
        f"the SuperLink's certificate is signed by {certificate.issuer.rfc4514_string()}, and none"
        f" of {trusted} has",
        "ask the SuperLink's operator for its ca.crt, and name it as root-certificates"
        f" in {connection.file}",
    )


_EXPIRED, _NOT_YET = 10, 9
"""OpenSSL's codes, which come before those of the authority."""


def _signed_by(connection: Connection, certificate: x509.Certificate) -> bool:
    if connection.root is None:
        return True  # its dates alone are named
    for authority in x509.load_pem_x509_certificates(connection.root.read_bytes()):
        with contextlib.suppress(Exception):  # another key or kind of key than it was signed with
            certificate.verify_directly_issued_by(authority)
            return True
    return False


def _host_name(certificate: x509.Certificate, host: str) -> Check:
    names = _names_of(certificate)
    if any(_fits(name, host) for name in names):
        return Check("host name", f"the certificate is for {some(names)}")
    return Check(
        "host name",
        f"the SuperLink's certificate is for {some(names) or 'no host'}, and the address is {host}",
        "use one of these names in `address`, or make a certificate with --host"
        f" {host} (certificates.py --renew)",
    )


def _names_of(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return list(dict.fromkeys([*found.get_values_for_type(x509.DNSName), *addresses]))


def _fits(name: str, host: str) -> bool:
    first, _, rest = host.partition(".")
    return host.lower() in (name.lower(), name.lower().replace("*", first, 1) if rest else "")


@dataclass(frozen=True)
class Node:
    """A SuperNode as Flower knows it. name: as it is registered, empty where it has none. key: its
    fingerprint, as `ssh-keygen -lf` prints it."""

    number: int
    name: str
    status: str
    since: str
    key: str


def nodes_of(connection: Connection) -> list[Node]:
    """The nodes that the SuperLink knows. Raises whatever Flower does.

    `flwr supernode list` leaves the keys out, so its own client is asked."""
    # takes a second, which other commands need not spend
    from pfedlora_flwr.federation.flower_compat import nodes_known_to

    return [_node(node) for node in nodes_known_to(connection.name)]


def _node(node: Any) -> Node:
    since = {"online": node.last_activated_at, "offline": node.last_deactivated_at}
    when = datetime.fromisoformat(since.get(node.status) or node.registered_at)
    return Node(
        node.node_id,
        printable(node.name),
        node.status,
        f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        fingerprint(node.public_key),
    )


def fingerprint(key: bytes) -> str:
    """`SHA256:…` of a public key in PEM or as OpenSSH writes it; empty where it is none."""
    try:
        if key.startswith(b"-----"):
            loaded = load_pem_public_key(key)
        else:
            loaded = load_ssh_public_key(key)
        text = loaded.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except ValueError:
        return ""
    blob = base64.b64decode(text.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_keys(folders: Iterable[Path]) -> dict[str, str]:
    """By fingerprint, the names of the *.pub files in these folders."""
    files = (file for folder in folders for file in sorted(folder.glob("*.pub")))
    return {found: file.name for file in files if (found := fingerprint(file.read_bytes()))}
