"""The life of a federation by real processes: a SuperLink, and a SuperNode for each site with data
of its own. `tests/test_life.py` tells the same in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.deployment.paced import GATES
from tests.deployment.processes import PATIENCE, Federation, wait
from tests.test_joining import KEYS, OwnData, places, sites
from tests.test_life import with_a_new_class

__all__ = ["sites"]
pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]
ALL = KEYS | {"participation": 1.0, "method": "tests.deployment.paced:Paced"}


class Life(Federation):
    """Sites with data of their own. What a run said is in `said`, the seconds that it took in
    `seconds`."""

    def __init__(self, folder: Path) -> None:
        self.gates = folder / "gates"
        super().__init__(folder / "federation", **{GATES: str(self.gates)})
        self.gates.mkdir()
        self.said, self.seconds = "", 0.0

    def go(
        self, *words: str, meanwhile: Callable[[Popen[bytes]], None] | None = None, **keys: object
    ) -> dict[str, Any]:
        """A run to its end, and what happens meanwhile; its result."""
        named = {name.replace("_", "-"): value for name, value in keys.items()}
        log, began = self.folder / "submit.log", time.monotonic()
        before = log.stat().st_size if log.exists() else 0
        run = self.submit(ALL | named, *words)
        if meanwhile:
            meanwhile(run)
        code = run.wait(2 * PATIENCE)
        self.said, self.seconds = log.read_bytes()[before:].decode(), time.monotonic() - began
        print(f"{self.seconds:.0f} s: {keys}\n{self.said}")
        assert code == 0, self.said
        return self.result()


def rounds_kept(state_path: str) -> list[int]:
    """The rounds of which a site has its model."""
    files = Path(state_path).glob("*/*/round-*.safetensors")
    return sorted(int(path.stem.removeprefix("round-")) for path in files)


def test_a_federation_through_its_life(tmp_path: Path, sites: list[dict[str, Any]]) -> None:
    """The first site's node is still up when it has left. In the place of the second's comes one
    with an empty state-path. The fourth's is started with a new class while round 5 ends."""
    with Life(tmp_path) as federation:
        run = RunDirectory(federation.output)
        federation.start_superlink()
        for site in range(3):
            federation.start_node(site, **sites[site])
        federation.go(clients=3)
        waits = max(30.0, federation.seconds)  # for a node: as long as this machine needs
        federation.start_node(3, **sites[3])
        joined = federation.go("--resume", clients=4, rounds=4)
        data = places(run.path, sites)
        of = {place: number for number, place in data.items()}
        leaver, returner, stayer, changer = (of[node["dataset"]] for node in sites)

        federation.stop_node(1)
        empty = sites[1] | {"state-path": str(tmp_path / "empty")}
        federation.start_node(1, **empty)

        def bring_a_new_class(run: Popen[bytes]) -> None:
            wait((federation.gates / "aggregating-5").exists, run, patience=2 * PATIENCE)
            federation.stop_node(3)
            federation.start_node(3, **with_a_new_class(sites[3], tmp_path))
            (federation.gates / "close-aggregating-5").unlink()

        (federation.gates / "close-aggregating-5").touch()
        last = federation.go(
            "--resume",
            meanwhile=bring_a_new_class,
            clients=4,
            rounds=6,
            clients_left=leaver,
            min_success=0.6,
            node_timeout=waits,
        )
        said = federation.said
    assert joined["joined"] == last["joined"] == {"3": 2}
    assert (last["left"], last["lost"]) == ({str(leaver): 4}, 1)
    assert f"client {leaver} has left (clients-left); stop its node" in said
    assert f"client {returner} had lost its model" in said
    assert "has 11 classes, the run 10: restore its classes, or begin a new run" in said
    rows = run.rounds()
    assert [row["admitted"] for row in rows] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        sorted([returner, stayer, changer]),
        sorted([returner, stayer]),
    ]
    where = [sites[0], empty, sites[2], sites[3]]
    kept = [rounds_kept(node["state-path"]) for node in where]
    assert kept == [[2, 3, 4], [5, 6], [2, 4, 5, 6], [3, 4, 5]]

    plain = OwnData(data, clients=4, rounds=6, participation=1.0)
    for row in rows:
        if row["round"] == 5:
            del plain.models[returner]
        plain.play(row["admitted"])
    assert last["shared_sha256"] == tensors_sha256(plain.state)
    for node, client in zip(where, (leaver, returner, stayer, changer), strict=True):
        held = load_trained(Path(node["state-path"]), client).sha256
        assert held == tensors_sha256(tensors_of(plain.models[client])), f"client {client}"
