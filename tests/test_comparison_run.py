"""A run of a comparison on real nodes, as its server takes it up and hands it back. Real server and
client code, with the local engine's grid in the place of SuperNodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr import client_app, config
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.comparison.work import Work
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.ops import decide as deciding
from pfedlora_flwr.ops import nodes as planning
from pfedlora_flwr.runs.comparison_run import keep, line_of
from pfedlora_flwr.runs.completed import Run, read_run
from pfedlora_flwr.runs.directory import RunDirectory
from tests.served import run_over
from tests.test_joining import KEYS, places, sites

__all__ = ["sites"]


def serve(name: str, nodes: list[dict[str, Any]], **keys: object) -> None:
    flat = dict(
        config.run_config(KEYS | {"clients": len(nodes), "comparison-run": name} | keys).flat()
    )
    run_over(LocalGrid(client_app.app, nodes, flat), flat)


@pytest.mark.slow
def test_sites_keep_their_numbers_and_a_run_goes_on_and_comes_back(
    tmp_path: Path, sites: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".pfedlora" / "runs"
    serve("who/a", sites[:3])
    serve("who/b", sites[2::-1], rounds=1)
    serve("who/b", sites[2::-1])  # the same command again, for the other round
    assert places(home / "who" / "b", sites[:3]) == places(home / "who" / "a", sites[:3])
    server, here = RunDirectory(home / "who" / "b"), RunDirectory(tmp_path / "here")
    assert [row["round"] for row in server.rounds()] == [1, 2]
    line = line_of(server)
    assert not keep(here, [line[:-9]])
    assert keep(here, ["another", line])
    found = read_run(here.path)
    assert isinstance(found, Run)
    assert (found.result, found.rounds) == (server.result(), server.rounds())
    for name in ("../else/a", "/tmp/else/a", "who"):
        with pytest.raises(UserError, match="allowed: COMPARISON/RUN"):
            serve(name, sites[:3])


def whole(**base: object) -> Comparison:
    keys = {"clients": 3, "classes": 2, "input-shape": "13", "models": "mlp1", "rounds": 4, **base}
    content = {"base": keys, "methods": ["standalone", "fedavg"], "seeds": [0, 1]}
    return Comparison.of("who", content, {})


def test_the_plan_says_time_bytes_and_what_all_runs_spend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Work(whole(), tmp_path).jobs()
    speed = estimate.of_nodes()
    time, traffic, last = planning.plan_of("lab", jobs, speed)
    assert time == (
        "4 runs on lab, one after the other: about 5 min (training at the sites comes on top)"
    )
    up, _ = estimate.traffic(jobs[-1].config)
    assert traffic.startswith(f"a site sends at most {2 * 4 * up / 1e6:.2f} MB")
    assert "runs-cap or epsilon-cap" in last
    private = Comparison.of(
        "who",
        {"base": whole().base, "methods": ["fedavg"], "seeds": [0, 1]},
        {"dp.epsilon": 4.0, "dp.clip": 1.0},
    )
    said = "\n".join(planning.plan_of("lab", Work(private, tmp_path).jobs(), speed))
    assert "dp: all 2 runs together spend ε = 8 of a client, added up" in said
    speed.learn_whole(jobs[0].config, 130.0)
    assert speed.seconds(jobs[0].config) == pytest.approx(130.0), "by the clock"


@pytest.mark.slow
def test_decide_plans_for_nodes_and_refuses_what_they_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "find_connection", lambda name: name)
    monkeypatch.setattr(deciding, "nodes_of", lambda connection: [])
    monkeypatch.setattr(planning, "find_connection", lambda name: name)
    keys = {"clients": 3, "classes": 2, "input-shape": "13"}
    found = deciding.decide(
        superlink="lab", label="ill", rows=90, output=tmp_path / "a", options=keys
    )
    assert found.whole.methods == ("standalone", "fedavg", "fedper", "fedproto")
    assert found.whole.base["data.label-column"] == "ill"
    assert any(line.startswith("pooled is left out") for line in found.said)
    for given, why in (
        ({"rows": 90}, "has 0 nodes online; expected at least two"),
        ({"options": keys}, "rows is not given"),
        ({"sites": "ward", "rows": 90, "options": keys}, "decide needs a table with"),
    ):
        with pytest.raises(UserError, match=why):
            deciding.decide(superlink="lab", dry_run=True, **given)
    pooled = Comparison.of("who", {"base": whole().base, "methods": ["pooled"]}, {})
    runs = [job.config for job in Work(pooled, tmp_path).examples()]
    with pytest.raises(UserError, match="real nodes keep theirs"):
        planning.check_network("lab", runs, False, 0, "")
