"""The way to a SuperLink: what is wrong with an address or a certificate is told apart, against
real TLS servers of this process."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from pfedlora_flwr.commands import doctor
from pfedlora_flwr.launch import superlink
from pfedlora_flwr.launch.superlink import (
    find_connection,
    fingerprint,
    known_keys,
    way_to,
    why_unreachable,
)
from scripts.certificates import make
from tests.conftest import Call


@contextmanager
def server(folder: Path | None) -> Iterator[int]:
    """Something that listens, with the certificate in this folder or without TLS; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if folder else None
    if folder and context:
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), plain:
                    if context:
                        context.wrap_socket(plain, server_side=True).close()
                    else:
                        plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make(folder / "good", ["127.0.0.1", "localhost"], nodes=2, days=30, renew=False)
    make(folder / "other", ["127.0.0.1"], nodes=0, days=30, renew=False)
    make(folder / "old", ["127.0.0.1"], nodes=0, days=0, renew=False)
    make(folder / "elsewhere", ["superlink.example.org"], nodes=0, days=30, renew=False)
    return folder


def test_a_certificate_for_other_hosts_is_not_taken_for_this_one(certificates: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        make(certificates / "good", ["localhost", "new.org"], nodes=0, days=30, renew=False)
    assert str(refused.value) == (
        f"{certificates}/good/server.pem is there and is not for new.org: --renew makes one that"
        " is, under the same CA"
    )


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path / "config.toml"


def connect(file: Path, address: str, *, root: Path | None = None) -> None:
    trust = f'root-certificates = "{root}"' if root else "insecure = true"
    file.write_text(f'[superlink.site]\naddress = "{address}"\n{trust}\n')


@pytest.mark.parametrize(
    ("serves", "trusts", "told"),
    [
        ("good", "good", ""),
        ("old", "old", "the SuperLink's certificate expired on 20"),
        ("old", "other", "the SuperLink's certificate expired on 20"),
        ("good", "other", "is signed by CN=pfedlora CA, and none of "),
        ("elsewhere", "elsewhere", "is for superlink.example.org, and the address is 127.0.0.1"),
        ("good", None, "the SuperLink speaks TLS, and the connection says insecure = true"),
        (None, "good", "the SuperLink speaks no TLS, and the connection asks for it"),
        (None, None, ""),
        ("good", "nowhere", "root-certificates, "),
    ],
)
def test_a_certificate_that_does_not_fit_is_named(
    certificates: Path, write: Path, serves: str | None, trusts: str | None, told: str
) -> None:
    with server(certificates / serves if serves else None) as port:
        root = certificates / trusts / "ca.crt" if trusts else None
        connect(write, f"127.0.0.1:{port}", root=root)
        found = why_unreachable(find_connection("site"))
        assert found.startswith(told) or told in found
        assert bool(found) == bool(told)
        if told == "" and root:
            assert [check.what for check in way_to(find_connection("site"))] == [
                "address",
                "certificate",
                "authority",
                "host name",
            ]


def test_expiry_authority_and_host_name_are_three_lines(certificates: Path, write: Path) -> None:
    with server(certificates / "old") as port:
        connect(write, f"localhost:{port}", root=certificates / "other" / "ca.crt")
        wrong = [check.what for check in way_to(find_connection("site")) if check.fix]
    assert wrong == ["certificate", "authority", "host name"]


def test_doctor_tells_a_certificate_that_ends_soon_and_nodes_that_are_offline(
    certificates: Path, write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the exit code of what is to be mended, and do not keep a run from starting."""
    monkeypatch.setattr(superlink, "_SOON", 60)
    found = [
        superlink.Node(k, "", status, "now", "") for k, status in enumerate(["online", "offline"])
    ]
    monkeypatch.setattr(doctor, "nodes_of", lambda connection: found)
    with server(certificates / "good") as port:
        connect(write, f"127.0.0.1:{port}", root=certificates / "good" / "ca.crt")
        assert why_unreachable(find_connection("site")) == ""
        checks = doctor._superlink(find_connection("site"))
        assert {check.what: check.fix for check in checks if check.fix} == {
            "certificate": "make a new one with certificates.py --renew, and restart the SuperLink",
            "nodes": "start the SuperNodes that are offline (1), or unregister them",
        }
        found.pop()
        monkeypatch.setattr(superlink, "_SOON", 14)
        assert not any(check.fix for check in doctor._superlink(find_connection("site")))


def test_doctor_names_what_bars_the_way(pfedlora: Call, write: Path, certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address, told in (
        (f"127.0.0.1:{port}", f"nothing answers at 127.0.0.1:{port} (Connection refused)"),
        ("no-such-host.invalid:9093", "the host 'no-such-host.invalid' is not known"),
    ):
        connect(write, address)
        code, out, _ = pfedlora("doctor", "--superlink", "site")
        assert code == 1
        assert told in " ".join(out.split())
        assert "1 to fix" in out
    connect(write, "somewhere")
    code, _, err = pfedlora("doctor", "--superlink", "site")
    assert code == 2
    assert "the address of 'site' is 'somewhere'; allowed: HOST:PORT" in err
    code, _, err = pfedlora("doctor", "--superlink", "sight")
    assert code == 2
    assert "--superlink is 'sight'; allowed, by " in err


def test_a_key_has_the_fingerprint_that_ssh_keygen_prints(certificates: Path) -> None:
    """And the same in PEM, as the SuperLink hands it on."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_public_key,
    )

    public = (certificates / "good" / "node0.pub").read_bytes()
    pem = load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert fingerprint(pem) == fingerprint(public)
    assert known_keys([certificates / "good"])[fingerprint(pem)] == "node0.pub"
    # as `ssh-keygen -lf` prints it for this key
    known = (
        b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl github"
    )
    assert fingerprint(known) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
    assert fingerprint(b"nonsense") == ""
