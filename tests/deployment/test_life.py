"""The life of a federation by real processes: a SuperLink, and a SuperNode for each site with data
of its own. `tests/test_life.py` tells the same in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import named_keys, result_of
from tests.deployment.paced import GATES
from tests.deployment.processes import PATIENCE, Federation, wait
from tests.test_joining import KEYS, OwnData, places, sites
from tests.test_life import with_a_new_class
from tests.test_renew import own

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

    def anew(self, without: int, output: Path, *words: str) -> list[str]:
        """The run trained anew without this client; what the command said."""
        told, name = ["run", str(self.output), "--resume", "--without", str(without)], words[0]
        run = self.spawn(name, "pfedlora", *told, "-o", f"output={output}", *words)
        code, said = run.wait(2 * PATIENCE), self.log(name)
        print(said)
        assert code == 0, said
        return said.splitlines()

    def go(
        self, *words: str, meanwhile: Callable[[Popen[bytes]], None] | None = None, **keys: object
    ) -> dict[str, Any]:
        """A run to its end, and what happens meanwhile; its result."""
        named = named_keys(keys)
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


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file, by its path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_federation_through_its_life(tmp_path: Path, sites: list[dict[str, Any]]) -> None:
    """The first site's node is still up when it has left. In the place of the second's comes one
    with an empty state-path. The fourth's is started with a new class while round 5 ends."""
    with Life(tmp_path) as federation:
        run = RunDirectory(federation.output)
        federation.start_superlink()
        for site in range(3):
            federation.start_node(site, **sites[site])
        federation.go(clients=3)
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
        )
        said, its_log = federation.said, federation.log("node3")
    assert joined["joined"] == last["joined"] == {"3": 2}
    assert (last["left"], last["lost"]) == ({str(leaver): 4}, 1)
    assert f"client {leaver} has left (clients-left); stop its node" in said
    assert f"client {returner} had lost its model" in said
    refused = "dataset 'npz:%smore.npz' has 11 classes, the run 10: restore its classes, or begin"
    assert f"round 6: client {changer}: turned away: {refused % ''}" in said
    assert refused % f"{tmp_path}/" in its_log, "where its data lies, its own log alone says"
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


def test_a_federation_is_trained_anew_without_a_site(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    """It joined after round 1, and its node is still up."""
    with Life(tmp_path) as federation:
        run, new = RunDirectory(federation.output), RunDirectory(tmp_path / "new")
        federation.start_superlink()
        for site in range(2):
            federation.start_node(site, **sites[site])
        federation.go(clients=2, rounds=1)
        federation.start_node(2, **sites[2])
        federation.go("--resume", clients=3, rounds=3)
        data, old = places(run.path, sites[:3]), contents(run.path)
        planned = federation.anew(2, new.path, "--dry-run")
        assert not new.path.exists()
        said = "\n".join(federation.anew(2, new.path, "--superlink", "test"))
    assert data[2] == sites[2]["dataset"]
    cost = sum(row["seconds"] for row in run.rounds() if row["round"] > 1)
    assert planned == [
        "client 2 first took part in round 2; the state after round 1 is kept, and the run begins"
        " there",
        f"rounds to repeat: 2 with 6 visits, which took {cost:.0f} s",
        f"it would run in {new.path}; nothing was started",
    ]
    assert "client 2 has left (clients-left); stop its node" in said
    assert contents(run.path) == old, "the old run is as it was"

    result = result_of(new.path)
    assert result["begun_from"] == [{"run": str(run.path), "without": 2, "round": 1}]
    assert (result["left"], result["lost"]) == ({"2": 1}, 0)
    assert result["per_client"].keys() == {"0", "1"}
    assert [row["sampled"] for row in new.rounds()] == [[0, 1]] * 3
    assert {visit["client"] for visit in new.visits()} == {0, 1}
    assert not (Path(sites[2]["state-path"]) / new.token).exists()

    plain = OwnData(data, clients=2, rounds=3, participation=1.0)
    plain.train(3)
    assert result["shared_sha256"] == tensors_sha256(plain.state)
    for node in sites[:2]:
        [client] = [client for client, place in data.items() if place == node["dataset"]]
        held = load_trained(Path(node["state-path"]) / new.token, client).sha256
        assert held == tensors_sha256(tensors_of(plain.models[client])), f"client {client}"


def test_a_federation_is_renewed_twice_under_masks(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    """Its data grow, and one site moves to another machine with its state-path."""
    told: list[dict[str, Any]] = []
    with Life(tmp_path) as federation:
        federation.start_superlink()
        nodes, keys = sites[:3], {"method": "fedavg", "secagg.enabled": True, "clients": 3}
        for month in range(3):
            for place, node in enumerate(nodes):
                own(node, 60 + 20 * month, first=400 * place)
                if not month:
                    federation.start_node(place, **node)
            federation.output = tmp_path / f"month{month}"
            more = {"start-from": tmp_path / f"month{month - 1}"} if month else {}
            told.append(federation.go(rounds=2 * month + 2, **keys, **more))
            if not month:
                federation.stop_node(1)
                moved = tmp_path / "moved"
                Path(nodes[1]["state-path"]).rename(moved)
                nodes[1] = nodes[1] | {"state-path": str(moved)}
                federation.start_node(1, **nodes[1])
        federation.output = tmp_path / "anew"
        anew = federation.go(rounds=2, **keys)
    for before, after in pairwise(told):
        assert after["started_from"]["shared_sha256"] == before["shared_sha256"]
        assert after["started_from"]["round"] == before["rounds"]
        assert after["lost"] == 0
    renewed, fresh = (result["accuracy"]["final"] for result in (told[-1], anew))
    print(f"accuracy: renewed twice {renewed:.3f}, anew with as many rounds a month {fresh:.3f}")
    assert renewed > fresh
    tokens = [RunDirectory(tmp_path / f"month{month}").token for month in range(3)]
    for node in nodes:
        [*kept] = [p.name for p in Path(node["state-path"]).iterdir() if p.name in tokens]
        assert sorted(kept) == sorted(tokens), "no site began anew"
