"""`pfedlora compare --superlink`: a comparison on sites with data of their own."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.runs.directory import RunDirectory
from tests.deployment.paced import GATES
from tests.deployment.processes import PATIENCE, Federation, wait
from tests.test_joining import KEYS, OwnData, places, sites

__all__ = ["sites"]
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1500)]
PACED = "tests.deployment.paced:Paced"
WHOLE = {
    "base": {**KEYS, "clients": 3, "participation": 1.0},
    "methods": ["standalone", PACED],
    "seeds": [0, 1],
    "axes": {"sharing": ["mean", "none"]},
}


def models_of(keys: dict[str, Any], where: dict[int, str]) -> str:
    """The hash of the models of a plain federation; under `sharing=none` each client is one."""
    keys = keys | {"method": keys["method"].replace(PACED, "pfedlora")}
    found, lines = keys.pop("sharing"), ""
    for client in range(3):
        plain = OwnData(where, **keys)
        plain.train(2, alone=client if found == "none" else None)
        lines += f"{client}:{tensors_sha256(tensors_of(plain.models[client]))}\n"
    return hashlib.sha256(lines.encode()).hexdigest()


def test_a_comparison_outlives_its_launcher_and_a_replaced_node(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    """The launcher is killed and a site moves to another host while a run's second round goes
    on."""
    gates, conf, place = tmp_path / "gates", tmp_path / "who.yaml", tmp_path / "here" / "who"
    gates.mkdir()
    (gates / "close-training-0-2").touch()
    conf.write_text(yaml.safe_dump(WHOLE))
    words = ["pfedlora", "compare", str(conf), "--superlink", "test", "--output", str(place)]
    with Federation(tmp_path / "federation", **{GATES: str(gates)}) as federation:
        federation.start_superlink()
        for site in range(3):
            federation.start_node(site, **sites[site], runs_cap=6)
        launcher = federation.spawn("killed", *words)
        wait((gates / "training-0-2").exists, launcher)
        launcher.kill()
        launcher.wait()
        federation.stop_node(1)
        moved = sites[1] | {"state-path": str(tmp_path / "moved")}
        no_worker = shutil.ignore_patterns("worker")  # its socket is no file to copy
        shutil.copytree(sites[1]["state-path"], moved["state-path"], ignore=no_worker)
        federation.start_node(1, **moved, runs_cap=6)
        (gates / "close-training-0-2").unlink()
        again = federation.spawn("again", *words)
        assert again.wait(4 * PATIENCE) == 0, federation.log("again")
        said = federation.log("again")
        print(federation.log("killed"), said)
        before = federation.flwr("list")
        assert federation.spawn("done", *words).wait(PATIENCE) == 0, federation.log("done")
        assert federation.flwr("list").count("finished") == before.count("finished"), "run again"
    runs = {run.parent: RunDirectory(run.parent) for run in place.rglob("result.json")}
    assert len(runs) == 6
    where = places(next(iter(runs)), sites[:3])
    for path, run in runs.items():
        assert places(path, sites[:3]) == where, "a client is another site in another run"
        e, result = run.experiment(), run.result()
        assert result is not None
        keys = {"clients": 3, "participation": 1.0, "method": e.method, "seed": e.seed}
        wanted = models_of(keys | {"sharing": e.sharing}, where)
        assert (result["status"], result["models_sha256"]) == ("completed", wanted), path
        assert [row["round"] for row in run.rounds()] == [1, 2]
    assert "runs on test, one after the other: about" in federation.log("killed")
    page = (place / "report" / "report.html").read_text()
    assert "own data of 3 sites" in page
    assert "Gain by site" in page
    assert json.loads((place / "plan.json").read_text())["said"]
