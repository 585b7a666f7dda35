"""Sites by their registered names: who is asked, who is sent nothing, and where names stand for
numbers."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pfedlora_flwr import config
from pfedlora_flwr.commands.start_run import start
from pfedlora_flwr.commands.status import show
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.flower_compat import be_task
from pfedlora_flwr.federation.roster import Roster
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.report.write import write_report
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.site_names import client_of, names_told
from pfedlora_flwr.runs.status import find_status
from pfedlora_flwr.runs.trained import load_trained
from pfedlora_flwr.site.egress import NEUTRAL
from pfedlora_flwr.site.log import Log
from scripts.certificates import make as make_certificates
from tests.deployment.processes import Federation
from tests.federation.test_roster import Grid, client
from tests.report.made import make_run
from tests.test_joining import serve, sites

__all__ = ["sites"]  # a fixture
EVIL = "](http://x) <b>\x1b[31m|"
"""A name under which anyone could register a node."""


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
    for named_sites in ("a,a", "a", "a,b,c"):
        with pytest.raises(UserError, match="allowed: as many different names as clients, which"):
            config.run_config({"clients": 2, "sites": named_sites})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("2", 2),
        ("north", 0),
        ("nort", "'nort' is no site of .*; did you mean 'north'"),
        ("x", "'x' is no site of .*; allowed: a client's number, or 'north', '0', 'west', 'west'"),
        ("0", "'0' means client 0 and client 1 of"),
        ("west", "'west' means client 2 and client 3 of"),
        ("", "'' is no site of"),
    ],
)
def test_a_name_or_a_number_means_one_client_or_a_line(
    said: str, found: int | str, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    run.server.mkdir()
    run.sites_file.write_text('{"names": {"0": "north", "1": "0", "2": "west", "3": "west"}}')
    if isinstance(found, int):
        assert client_of(run, said) == found
        return
    with pytest.raises(UserError, match=found) as failure:
        client_of(run, said)
    assert "\n" not in str(failure.value)


class Named(LocalGrid):
    """Its nodes are registered by the names of their state-paths; one is called EVIL."""

    def get_nodes(self) -> Any:
        of = {n: Path(str(c.node_config["state-path"])).name for n, c in self._contexts.items()}
        return [
            SimpleNamespace(node_id=n, name=EVIL if name == "state0" else name)
            for n, name in of.items()
        ]


def shown(run: RunDirectory) -> str:
    """`pfedlora status`."""
    out = Console(file=io.StringIO(), width=200)
    show(find_status(run), out, as_json=False)
    return str(out.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_names_stand_for_numbers_where_sites_leave_and_in_status_and_report(
    tmp_path: Path, sites: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.test_joining.LocalGrid", Named)
    run, keys = RunDirectory(tmp_path / "run"), {"participation": 1.0}
    serve(run.path, sites[:3], **keys)
    serve(run.path, sites, resume=True, rounds=3, **keys)
    names = names_told(run)
    assert [*sorted(names.values())] == ["](http://x) <b> [31m|", "state1", "state2", "state3"]
    [one, last] = (k for k, name in names.items() if name in ("state1", "state3"))
    again = {"resume": True, "clients": 4, "rounds": 5, **keys}
    for wrong, line in (
        ("state9", "did you mean 'state"),
        (f"state1,{one}", "each of the clients"),
    ):
        with pytest.raises(UserError, match=line):
            serve(run.path, sites, **again | {"clients_left": wrong})
    there = [sites[k] for k in (0, 2, 3)]
    result = serve(run.path, there, **again | {"clients_left": "state1"})
    assert (result["joined"], result["left"]) == ({str(last): 2}, {str(one): 3})
    assert str(run.experiment().members.left) == f"3:{one}", "numbers stay underneath"
    assert load_trained(tmp_path / "state3", last).experiment.rounds == 5, (
        "a node's model is readable"
    )

    assert "state2" in shown(run)
    assert "\x1b" not in shown(run)
    report = tmp_path / "report"
    write_report([run.path], report)
    rows = (report / "clients.csv").read_text().splitlines()
    assert rows[0].startswith("site,client,model")
    assert rows[0].endswith("accuracy,joined after round,left after round")
    assert [row.split(",")[-2:] for row in rows if row.startswith("state3")] == [["2", "–"]]
    assert [row.split(",")[-2:] for row in rows if row.startswith("state1")] == [["–", "3"]]
    for file in ("report.html", "report.md"):
        text = (report / file).read_text()
        assert "&lt;b" in text
        assert "<b> [31m" not in text
        assert "](http" not in text or file.endswith("html")

    out, options = Console(file=io.StringIO(), width=300), ["resume=true", f"output={run.path}-2"]
    assert start(str(run.path), options, out, out, dry_run=True, without="state3") == 0
    assert f"client {last} first took part in round 3" in out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_run_that_hides_its_clients_keeps_and_tells_no_name(
    tmp_path: Path,
    sites: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tests.test_joining.LocalGrid", Named)
    caplog.set_level("INFO", "pfedlora_flwr")
    masks = {"method": "fedavg", "secagg.enabled": True, "secagg.max-samples": 100}
    names = {"sites": "state1,state2,state3", "participation": 1.0}
    serve(tmp_path / "hidden", sites[1:], **masks, **names)
    serve(tmp_path / "open", sites[1:], rounds=1, **names)
    files = [f for f in (tmp_path / "hidden").rglob("*") if f.is_file() and f.suffix != ".yaml"]
    assert not [f for f in files if b"state1" in f.read_bytes()]
    assert names_told(RunDirectory(tmp_path / "hidden")) == {}
    assert caplog.text.count("is site state1") == 1, "in the open run alone"


@pytest.mark.slow
def test_rows_of_a_comparison_and_its_sentence_name_sites(tmp_path: Path) -> None:
    for seed in range(3):
        for method, scores in (("standalone", [0.5, 0.6]), ("fedavg", [0.7, 0.4 + seed / 100])):
            keys = {"method": method, "seed": seed, "models": "cnn5", "partition": "own"}
            run = RunDirectory(tmp_path / f"{method}-{seed}")
            make_run(run.path, [0.1, 0.6], scores, **keys)
            run.server.mkdir()
            run.sites_file.write_text(json.dumps({"own": [0, 1], "names": {"0": "n", "1": EVIL}}))
    written = write_report([tmp_path], tmp_path / "report")
    assert (written.folder / "sites.csv").read_text().splitlines()[1].startswith("n,")
    assert "the worst one then is ](http://x) <b> [31m|, with" in written.verdict
    for name in ("report.md", "report.html"):
        text = (written.folder / name).read_text()
        assert ("](http://x)" in text, "<b> [" in text) == (name.endswith("html"), False)


@pytest.mark.deployment
@pytest.mark.timeout(900)
def test_three_sites_with_three_policies_train_and_a_fourth_that_is_connected_sees_nothing(
    tmp_path: Path,
) -> None:
    """Then one of them changes its policy, and takes part in no more; where there are no masks,
    another does not, either."""
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
        again["secagg.enabled"] = "false"
        assert federation.run(again) == 1
        said = federation.log("submit")
    logs = [[*Log(federation.folder / f"state{node}").lines()] for node in range(4)]
    assert logs[3] == [], "the fourth was asked something"
    assert [sum(line.get("upload", False) for line in log) for log in logs[:3]] == [2, 2, 2]
    assert names_told(RunDirectory(federation.output)) == {}, "masks hide who is who"
    assert names_told(RunDirectory(federation.folder / "again")) == {0: "north"}
    assert f"2 turned away: {NEUTRAL}" in said.replace("\n", " ")
    assert "methods here are fedrep" in logs[1][-1]["refused"]
    assert "fedrep" not in said
    assert len({line["policy"] for line in logs[1]}) == 2
