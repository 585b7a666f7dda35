"""One Experiment in every way that it can be carried out, to the same bits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.federation.model_cache import MODELS
from tests.conftest import Cli, Done, key_words, run_locally

SAME = ("accuracy", "flops", "shared_sha256", "models_sha256")
"""Of a result: what does not depend on how a run was carried out."""


def ends_alike(
    name: str,
    keys: Mapping[str, Any],
    cli: Cli,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    flower: bool = False,
    lanes: int = 1,
) -> Path:
    """Asserts that a run of three rounds ends alike whole, extended from one round, and killed in
    round 2 and resumed, where every visit reads its model from disk. Held-out clients do, too, in
    each round. Returns the last one's directory.

    name: of its folder, which no other test has. flower: whether the killed one begins through
    Flower, with two actors. lanes: of the runs in parts; whole it has one process and one lane."""
    keys = {**keys, "rounds": 3}
    ended = [run_locally(folder / "whole", keys)]
    keys |= {"lanes": lanes}
    killed = _killed(f"{name}-killed", keys, cli, flower=flower)
    monkeypatch.setattr(MODELS, "take", lambda *_: None)
    assert run_locally(folder / "parts", keys | {"rounds": 1}).code == 0
    ended.append(run_locally(folder / "parts", keys | {"resume": True}))
    ended.append(run_locally(killed, keys | {"resume": True}))
    for done in ended:
        assert done.code == 0, done.stderr
        for what in SAME:
            assert ended[0].result.get(what) == done.result.get(what), (done.output, what)
        assert _held_out(ended[0]) == _held_out(done), done.output
    return killed


def _held_out(done: Done) -> list[dict[str, Any]]:
    """What a run tells of its held-out clients."""
    return done.rows("held_out.jsonl") if (done.output / "held_out.jsonl").exists() else []


def _killed(name: str, keys: Mapping[str, Any], cli: Cli, *, flower: bool) -> Path:
    """The directory of a run whose process was killed after a visit of round 2, before round 3."""
    how = ("-o", "actors=2") if flower else ("--engine", "local")
    words = key_words(keys)
    process = cli.start(name, *words, *how)
    output, deadline = cli.folder / name, time.monotonic() + 150
    while not [*output.glob("clients/*/round-000002.*")]:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    if flower:
        cli.kill(process)
    else:
        process.kill()
        process.communicate(timeout=10)
    assert len((output / "rounds.jsonl").read_text().splitlines()) < 4, "it was over"
    return output
