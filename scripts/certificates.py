"""Makes what a deployment with TLS and authenticated nodes needs, in one folder: a private CA, the
SuperLink's certificate, node keys.

    python scripts/certificates.py certs --host superlink.example.org --host 10.0.0.5 --nodes 3

ca.crt goes to everyone; server.pem and server.key stay with the SuperLink, node<K> with node K;
node<K>.pub is what the SuperLink registers. ca.key signs renewals: keep it offline. What exists is
kept: run it again with more nodes, or with --renew for a new server certificate under the same CA.
Needs the `cryptography` package, which Flower brings along."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CA_DAYS = 3650


def make(folder: Path, hosts: list[str], nodes: int, days: int, renew: bool) -> list[str]:
    """Makes what is missing; returns the names of the files made."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(os.listdir(folder)) - ({"server.pem", "server.key"} if renew else set())
    if "server.pem" in before:
        _check_hosts(folder / "server.pem", hosts)
    if "ca.crt" not in before:
        key = ec.generate_private_key(ec.SECP384R1())
        _write_private(folder / "ca.key", _pem(key))
        (folder / "ca.crt").write_bytes(_ca(key).public_bytes(Encoding.PEM))
    if "server.pem" not in before:
        if not (folder / "ca.key").exists():
            raise SystemExit(
                f"{folder / 'ca.key'} is not there, and only it can sign a server certificate:"
                " bring it back for this"
            )
        ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP384R1())
        _write_private(folder / "server.key", _pem(key))
        (folder / "server.pem").write_bytes(
            _server(key, ca, ca_key, hosts, days).public_bytes(Encoding.PEM)
        )
    for node in range(nodes):
        if f"node{node}" not in before:
            key = ec.generate_private_key(ec.SECP384R1())
            _write_private(
                folder / f"node{node}",
                key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
            )
            (folder / f"node{node}.pub").write_bytes(
                key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
            )
    return sorted(set(os.listdir(folder)) - before)


def _check_hosts(file: Path, hosts: list[str]) -> None:
    """Raises SystemExit unless the certificate is for all these hosts."""
    names = (
        x509.load_pem_x509_certificate(file.read_bytes())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    missing = [host for host in hosts if _alternative(host) not in names]
    if missing:
        raise SystemExit(
            f"{file} is there and is not for {', '.join(missing)}: --renew makes one that is, under"
            " the same CA"
        )


def _ca(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pfedlora CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = (
        _builder(name, name, key, _CA_DAYS)
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(usage, True)
    )
    return builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
    ).sign(key, hashes.SHA384())


def _server(
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    hosts: list[str],
    days: int,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    builder = _builder(name, ca.subject, key, days).add_extension(
        x509.SubjectAlternativeName([_alternative(h) for h in hosts]), False
    )
    builder = builder.add_extension(x509.BasicConstraints(False, None), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return builder.add_extension(authority, False).sign(ca_key, hashes.SHA384())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(
        now - datetime.timedelta(hours=1)
    )
    return builder.not_valid_after(now + datetime.timedelta(days=days))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--host",
        action="append",
        required=True,
        help="a name or address of the SuperLink; repeatable (localhost is added)",
    )
    parser.add_argument("--nodes", type=int, default=0, help="node keys to have: node0, node1 …")
    parser.add_argument(
        "--days", type=int, default=365, help="validity of the server certificate (default: 365)"
    )
    parser.add_argument(
        "--renew", action="store_true", help="replace the server certificate and its key"
    )
    a = parser.parse_args()
    if a.days < 1 or a.nodes < 0:
        parser.error(f"--days is {a.days}, --nodes {a.nodes}; allowed: at least 1, at least 0")
    made = make(a.folder, [*a.host, "localhost", "127.0.0.1"], a.nodes, a.days, a.renew)
    print(f"made in {a.folder}: {', '.join(made) or 'nothing, all is there'}")


if __name__ == "__main__":
    main()
