"""Sites by their registered names: who is asked, and who is sent nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfedlora_flwr import config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.flower_compat import be_task
from pfedlora_flwr.federation.roster import Roster
from pfedlora_flwr.site.egress import NEUTRAL
from pfedlora_flwr.site.log import Log
from scripts.certificates import make as make_certificates
from tests.deployment.processes import Federation
from tests.federation.test_roster import Grid, client


def named(names: dict[int, str], **nodes: Any) -> Any:
    be_task(1, 1)
    grid: Any = Grid(**nodes)
    grid.get_nodes = lambda: [SimpleNamespace(node_id=n, name=t) for n, t in names.items()]
    return grid


def roster_of(grid: Any, folder: Path, *sites: str) -> Roster:
    memory = folder / "numbers.json"
    return Roster(grid, 2, memory, None, lambda _: None, 0.0, classes=3, sites=sites)


def test_only_the_nodes_that_a_run_names_are_asked(tmp_path: Path) -> None:
    names = {10: "north", 11: "south", 12: "west"}
    grid = named(names, n10=client(0), n11=client(1), n12=client(1))
    found = roster_of(grid, tmp_path, "north", "west")
    found.refresh()
    assert found.node_of == {0: 10, 1: 12}
    assert 11 not in grid.asked
    assert found.away == []
    del names[12], grid.nodes[12]
    found.refresh()
    assert found.node_of == {0: 10}
    assert found.away == ["west"]


def test_names_that_tell_no_nodes_apart_are_refused(tmp_path: Path) -> None:
    twice = named({10: "a", 11: "a"}, n10=client(0), n11=client(1))
    with pytest.raises(UserError, match="two connected nodes are registered as site 'a'"):
        roster_of(twice, tmp_path, "a", "b").refresh()
    without = named({10: "", 11: ""}, n10=client(0), n11=client(1))
    with pytest.raises(UserError, match="sites is a,b, and no connected node has a name"):
        roster_of(without, tmp_path, "a", "b").refresh()
    assert not without.asked
    for sites in ("a,a", "a", "a,b,c"):
        with pytest.raises(UserError, match="allowed: as many different names as clients, which"):
            config.run_config({"clients": 2, "sites": sites})


@pytest.mark.deployment
@pytest.mark.timeout(900)
def test_three_sites_with_three_policies_train_and_a_fourth_that_is_connected_sees_nothing(
    tmp_path: Path,
) -> None:
    """Then one of them changes its policy, and takes part in no more."""
    tls, names = tmp_path / "tls", ("north", "south", "east", "west")
    make_certificates(tls, ["localhost", "127.0.0.1"], nodes=4, days=2, renew=False)
    docs = Path(__file__).parents[2] / "docs" / "policies"
    for name, policy in zip(names, ("research", "plant", "hospital", "research"), strict=True):
        shutil.copy(docs / f"{policy}.toml", tmp_path / f"{name}.toml")
    text = (tmp_path / "east.toml").read_text()
    text = text.replace("min-sites = 5", "min-sites = 3").replace('hours = "19-6"', "")
    (tmp_path / "east.toml").write_text(text)
    keys = {
        "clients": 3,
        "sites": "north,south,east",
        "rounds": 2,
        "method": "fedavg",
        "dataset": "synthetic:900",
        "setting": "homogeneous",
        "partition.kind": "iid",
        "secagg.enabled": "true",
        "secagg.max-samples": 1000,
    }
    with Federation(tmp_path / "federation", tls=tls) as federation:
        federation.start_superlink()
        for node, name in enumerate(names):
            key = str(tls / f"node{node}.pub")
            federation.flwr("supernode", "register", "--name", name, key)
            place = {"partition_id": min(node, 2), "policy": str(tmp_path / f"{name}.toml")}
            federation.start_node(node, num_partitions=3, **place)
        assert federation.run(keys) == 0, federation.log("submit")
        (tmp_path / "south.toml").write_text('methods = ["fedrep"]')
        again = keys | {"output": federation.folder / "again", "node-timeout": 30}
        assert federation.run(again) == 1
        said = federation.log("submit")
    logs = [[*Log(federation.folder / f"state{node}").lines()] for node in range(4)]
    assert logs[3] == [], "the fourth was asked something"
    assert [sum(line.get("upload", False) for line in log) for log in logs[:3]] == [2, 2, 2]
    assert f"1 turned away: {NEUTRAL}" in said.replace("\n", " ")
    assert "methods here are fedrep" in logs[1][-1]["refused"]
    assert "fedrep" not in said
    assert len({line["policy"] for line in logs[1]}) == 2
