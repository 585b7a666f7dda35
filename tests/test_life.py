"""The life of a federation of sites with data of their own: one joins, one leaves, one comes back
on an empty disk, one's file gets another name, one brings a new class and is then forgotten; at
last the others' data have grown. Every visit has the bits of the same visit in the plain
federation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import forget
from pfedlora_flwr.features.membership.without import Without
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.runs.directory import RunDirectory
from tests.test_joining import OwnData, places, serve, sites

__all__ = ["sites"]


def with_a_new_class(node: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The last site's node-config with its data and an eleventh digit."""
    shared = datasets.load("digits")
    labels = shared.labels[180:240].copy()
    labels[:6] = 10
    np.savez(folder / "more.npz", images=shared.inputs[180:240], labels=labels)
    return node | {"dataset": f"npz:{folder}/more.npz"}


@pytest.mark.slow
def test_a_federation_through_its_life(
    tmp_path: Path, sites: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    run, keys = RunDirectory(tmp_path / "run"), {"participation": 1.0}
    serve(run.path, sites[:3], **keys)
    joined = serve(run.path, sites, resume=True, rounds=4, **keys)
    data = places(run.path, sites)
    of = {place: number for number, place in data.items()}
    leaver, returner, stayer, changer = (of[node["dataset"]] for node in sites)

    empty = sites[1] | {"state-path": str(tmp_path / "empty")}
    Path(sites[2]["dataset"].removeprefix("npz:")).rename(tmp_path / "renamed.npz")
    renamed = sites[2] | {"dataset": f"npz:{tmp_path}/renamed.npz"}
    data[stayer] = renamed["dataset"]
    there = [empty, renamed, sites[3]]
    MODELS.take(run.token, returner, 4)  # this process's memory, which a new machine has not
    keys |= {"resume": True, "clients": 4}
    left = serve(run.path, there, rounds=5, clients_left=leaver, node_timeout=6, **keys)

    there[2] = with_a_new_class(sites[3], tmp_path)
    more = {"rounds": 6, "min_clients": 2, "min_success": 0.6, "node_timeout": 300}
    with caplog.at_level(logging.WARNING):
        last = serve(run.path, there, **more, **keys)
    refused = "turned away: dataset 'npz:more.npz' has 11 classes, the run 10: restore its classes"
    assert f"round 6: client {changer}: {refused}, or begin a new run" in caplog.text

    assert joined["joined"] == {"3": 2}
    assert (left["left"], left["lost"]) == ({str(leaver): 4}, 1)
    rows, visits = run.rounds(), list(run.visits())
    assert rows[4]["admitted"] == sorted([returner, stayer, changer])
    assert rows[5]["admitted"] == sorted([returner, stayer])
    assert rows[5]["seconds"] < 60  # nothing waits for whom it has turned away
    assert [(v["round"], v["client"]) for v in visits if v["status"] == "ok" and v["lost"]] == [
        (5, returner)
    ]
    assert [(v["round"], v["client"]) for v in visits if v["status"] != "ok"] == [(6, changer)]

    plain = OwnData(data, clients=4, rounds=6, participation=1.0)
    for row in rows:
        if row["round"] == 5:
            del plain.models[returner]
        plain.play(row["admitted"])
    assert last["shared_sha256"] == tensors_sha256(plain.state)
    state = run.checkpoints.load()
    assert state is not None
    assert state.models == {k: tensors_sha256(tensors_of(m)) for k, m in plain.models.items()}

    anew = Without.of(run, changer, RunDirectory(tmp_path / "anew"))
    anew.claim()
    rest = [empty, renamed]
    keys |= {"min_success": 0.5, "node_timeout": 6}
    result = serve(anew.run.path, rest, rounds=6, **keys, min_clients=2)
    assert result["begun_from"] == [{"run": str(run.path), "without": changer, "round": 2}]
    assert str(changer) in result["left"]

    with np.load(tmp_path / "renamed.npz") as held:
        more = {name: np.concatenate([array, array[:20][::-1]]) for name, array in held.items()}
    np.savez(tmp_path / "renamed.npz", **more)
    forget()
    next_ = {"start_from": str(anew.run.path), "rounds": 8, "participation": 1.0, "clients": 4}
    gone = f"{leaver},{changer}"
    renewed = serve(tmp_path / "next", rest, **next_, clients_left=gone, node_timeout=6)
    assert (renewed["status"], renewed["lost"]) == ("completed", 0)
    assert renewed["started_from"]["shared_sha256"] == result["shared_sha256"]
