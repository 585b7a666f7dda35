"""One Experiment in every way that it can be carried out, to the same bits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.federation.model_cache import MODELS
from tests.conftest import Cli, run_locally

SAME = ("accuracy", "flops", "shared_sha256", "models_sha256")
"""Of a result: what does not depend on how a run was carried out."""


def ends_alike(
    name: str, keys: Mapping[str, Any], cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Asserts that a run of three rounds ends alike whole, through Flower with one and two actors,
    extended from one round, and killed in round 2 and resumed, where every visit reads its model
    from disk. Returns the last one's directory.

    name: of its folders, which no other test has."""
    keys = {**keys, "rounds": 3}
    ended = [run_locally(folder / "whole", keys)]
    for actors in ("1", "2"):
        ended.append(cli.run(f"{name}-{actors}", *_words(keys | {"actors": actors})))
    killed = _killed(f"{name}-killed", keys, cli)
    monkeypatch.setattr(MODELS, "take", lambda *_: None)
    assert run_locally(folder / "parts", keys | {"rounds": 1}).code == 0
    ended.append(run_locally(folder / "parts", keys | {"resume": True}))
    ended.append(run_locally(killed, keys | {"resume": True}))
    assert [done.code for done in ended] == [0] * 5, [done.stderr for done in ended]
    first = ended[0].result
    for done in ended[1:]:
        for what in SAME:
            assert first[what] == done.result[what], (done.output, what)
    return killed


def _killed(name: str, keys: Mapping[str, Any], cli: Cli) -> Path:
    """The directory of a run whose process was killed after a visit of round 2, before round 3."""
    process = cli.start(name, *_words(keys), "--engine", "local")
    output, deadline = cli.folder / name, time.monotonic() + 150
    while not [*output.glob("clients/*/round-000002.*")]:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.kill()
    process.communicate(timeout=10)
    assert len((output / "rounds.jsonl").read_text().splitlines()) < 4, "it was over"
    return output


def _words(keys: Mapping[str, Any]) -> list[str]:
    return [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]
