"""What is on disk survives: a full disk, a damaged checkpoint, a client that lost its model."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import tensors_sha256
from tests.conftest import result_of
from tests.federation.malice import KEYS, simulate
from tests.plain import Plain

SMALL = {"clients": 3, "rounds": 2, "dataset": "synthetic:90"}
SMALL |= {"models": "tests.methods.narrow:Narrow"}


@pytest.mark.slow
def test_a_full_disk_and_a_damaged_checkpoint_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, without = (Plain(KEYS | SMALL) for _ in range(2))
    plain.train(2)
    without.train(1)
    del without.models[0]
    without.train(1)
    server = tmp_path / "run" / "server"

    def full(file: int) -> None:
        if "round-000002.checkpoint" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sync = os.fsync
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        simulate(tmp_path, **SMALL)
    monkeypatch.setattr(os, "fsync", sync)
    assert result_of(tmp_path / "run")["error"].startswith(
        "No space left on device: nothing that was written before is lost"
    )
    assert {path.name for path in server.glob("*round-*")} == {"round-000001.checkpoint"}

    output = simulate(tmp_path, **SMALL, resume=True)
    assert result_of(output)["shared_sha256"] == tensors_sha256(plain.state)

    last = server / "round-000002.checkpoint"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    shutil.rmtree(output / "clients" / "0")
    with caplog.at_level(logging.WARNING):
        simulate(tmp_path, **SMALL, resume=True)
    assert (
        "checkpoint round-000002.checkpoint is damaged (its checksum differs): falling back to the"
        " previous one" in caplog.text
    )
    assert "client 0 had lost its model" in caplog.text
    result = result_of(output)
    assert (result["status"], result["rounds"], result["lost"]) == ("completed", 2, 1)
    assert result["shared_sha256"] == tensors_sha256(without.state)

    models = sorted(output.glob("clients/*/round-*"))
    for path in server.glob("*.checkpoint"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"no checkpoint in .* can be read"):
        simulate(tmp_path, **SMALL, resume=True)
    assert sorted(output.glob("clients/*/round-*")) == models, (
        "nothing is begun anew over the clients' models"
    )
