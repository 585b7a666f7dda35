"""What a node demands of runs, over a real server and the real ClientApp: which runs it takes part
in, what all of them together may spend, and what a server cannot talk it into."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr import client_app, config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp.accountant import epsilon, noise_for, record_epsilon
from pfedlora_flwr.features.dp.ledger import Ledger, Terms
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.site.policy import Policy
from tests.conftest import result_of
from tests.served import run_over
from tests.test_dp_run import KEYS

pytestmark = pytest.mark.slow
NO_DP = {name: value for name, value in KEYS.items() if not name.startswith("dp.")}
NOISED = KEYS | {"dp.noise": 5}
STOPS = "this visit would exceed it: this node steps out"


def serve(
    output: Path, demands: Mapping[str, Any], keys: Mapping[str, Any], sites: int = 3
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run on these sites, the first of which has these demands, and a `state-path` that lasts:
    its result, and its lines of visits."""
    home = output.parent / "state"
    nodes = [{"partition-id": k, "state-path": str(home / str(k))} for k in range(sites)]
    nodes[0] |= demands
    given = {**keys, "clients": sites, "node-timeout": 1, "output": str(output)}
    flat = dict(config.run_config(given).flat())
    with suppress(RunFailed, UserError):
        run_over(LocalGrid(client_app.app, nodes, flat), flat)
    lines = output / "clients.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    return result_of(output), rows


def ledger(output: Path, site: int = 0) -> list[dict[str, int]]:
    """The visits of each run by their terms."""
    found = json.loads((output.parent / "state" / f"{site}" / "ledger.json").read_text())
    return list(found["runs"].values())


@pytest.mark.parametrize(
    ("demands", "keys", "line"),
    [
        ({"dp": "user"}, NO_DP, "dp is demanded here, and no dp is set in this run"),
        ({"dp": "user"}, KEYS | {"dp.noise": 0}, "dp is demanded here, and dp.noise is 0 in this"),
        ({"epsilon-cap": 3}, NO_DP, "epsilon-cap is demanded here, and no dp is set in this run"),
        ({"dp": "record"}, NOISED, "dp of level record is demanded here, and dp.level is user in"),
        ({"dp": "yes"}, NOISED, "the node-config: dp is 'yes'; allowed: any | user | record"),
        ({"epsilon-cap": "nan"}, NOISED, "epsilon-cap is nan; allowed: auto, or a number > 0"),
        ({"epsilon-cap": -1}, NOISED, "epsilon-cap is -1.0; allowed: auto, or a number > 0"),
        ({"epsilon-cap": "8e"}, NOISED, "epsilon-cap is '8e'; allowed: auto, or a number > 0"),
        ({"runs-cap": 0}, NOISED, "runs-cap is 0; allowed: auto, or an integer ≥ 1"),
        ({"runs-cap": "two"}, NOISED, "runs-cap is 'two'; allowed: auto, or an integer ≥ 1"),
        ({"epsilon_cap": 8}, NOISED, "unknown key 'epsilon_cap' in the node-config; did you mean"),
    ],
)
def test_a_node_takes_part_only_in_runs_that_are_what_it_demands(
    tmp_path: Path, demands: dict[str, Any], keys: dict[str, Any], line: str
) -> None:
    result, _ = serve(tmp_path / "run", demands, {**keys, "dataset": "synthetic:60"})
    assert line in result["error"]
    left = {path.suffix for path in (tmp_path / "state" / "0").iterdir()}
    assert left <= {".jsonl", ".lock"}, "it has done more for the run than to log"


def test_caps_need_a_state_path() -> None:
    for cap in ("epsilon-cap", "runs-cap"):
        with pytest.raises(UserError, match="epsilon-cap and runs-cap need a state-path"):
            Policy.of_node({cap: 3})


def test_a_node_leaves_a_run_before_its_cap_is_exceeded_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    """The sum over runs, one of which is replaced, at the ε of the visits that were asked for."""
    cap = {"epsilon-cap": epsilon(5.0, 2, 1e-5) + epsilon(4.0, 2, 1e-5) + 0.01, "dp": "user"}
    keys = NOISED | {"rounds": 2, "min-success": 0.5}
    result, rows = serve(tmp_path / "run", cap, keys)
    assert (result["status"], len(rows)) == ("completed", 6)
    other = {**keys, "dp.noise": 4, "rounds": 3, "overwrite": True, "max-failed-rounds": 2}
    result, rows = serve(tmp_path / "run", cap, other)
    assert result["status"] == "completed"
    assert [row["status"] for row in rows if row["client"] == 0] == ["ok", "ok", "failed"]
    assert [row["status"] for row in rows if row["client"] == 1] == ["ok"] * 3
    assert [row["reason"] for row in rows if row["status"] == "failed"] == [
        f"epsilon-cap is set here, and {STOPS}"
    ]
    assert [sum(visits.values()) for visits in ledger(tmp_path / "run")] == [2, 2]
    assert [row["client"] for row in serve(tmp_path / "new", cap, keys)[1] if "reason" in row] == [
        0,
        0,
    ]


def test_under_masks_the_others_sum_goes_on_without_it(tmp_path: Path) -> None:
    cap = {"epsilon-cap": epsilon(5.0, 1, 1e-5) + 0.01}
    masked = NOISED | {"secagg.enabled": True, "rounds": 2, "min-success": 0.7}
    result, rows = serve(tmp_path / "run", cap, masked, sites=4)
    assert result["status"] == "completed", result["error"]
    failed = [row for row in rows if row["status"] == "failed"]
    assert [(row["round"], row["client"]) for row in failed] == [(2, 0)]
    assert STOPS in failed[0]["reason"]


def test_by_epsilon_a_node_counts_the_noise_of_the_plan_and_not_the_plan(tmp_path: Path) -> None:
    """A server that claims one round and goes on for two."""
    z = noise_for(2.0, 1, 1e-5)
    book = Ledger(tmp_path, epsilon_cap=epsilon(z, 2, 1e-5) - 0.01)
    terms = Terms(None, 2.0, 1)
    book.spend("a", terms)
    with pytest.raises(UserError, match=f"epsilon-cap is set here, and {STOPS}"):
        book.spend("a", terms)
    book.spend("b", Terms(1e6))


def test_keys_that_change_within_a_run_and_a_large_delta_save_nothing(tmp_path: Path) -> None:
    total = epsilon(5.0, 1, 1e-5) + epsilon(6.0, 1, 1e-5) + record_epsilon(3.0, 2, 8, 1e-5)
    visits = [Terms(5.0), Terms(6.0, delta=0.3), Terms(3.0, parts=2, steps=8)]
    for name, cap, last in (("enough", total + 1e-6, None), ("less", total - 1e-6, UserError)):
        book = Ledger(tmp_path / name, epsilon_cap=cap)
        for terms in visits[:2]:
            book.spend("same", terms)
        if last is None:
            book.spend("same", visits[2])
            continue
        with pytest.raises(last):
            book.spend("same", visits[2])


def test_a_node_takes_part_in_as_many_runs_as_its_cap_says(tmp_path: Path) -> None:
    keys = NO_DP | {"rounds": 1, "min-success": 0.5}
    assert len(serve(tmp_path / "a", {"runs-cap": 2}, keys)[1]) == 3
    assert len(serve(tmp_path / "a", {"runs-cap": "2"}, {**keys, "overwrite": True})[1]) == 3
    more = {**keys, "rounds": 2, "resume": True}
    assert {row["status"] for row in serve(tmp_path / "a", {"runs-cap": 2}, more)[1]} == {"ok"}
    _, rows = serve(tmp_path / "b", {"runs-cap": 2}, keys)
    failed = [row for row in rows if row["status"] == "failed"]
    assert [(row["client"], row["reason"]) for row in failed] == [
        (0, f"runs-cap is set here, and {STOPS}")
    ]
    assert len(ledger(tmp_path / "b")) == 2
    _, rows = serve(tmp_path / "c", {"epsilon-cap": 1000}, NOISED | keys)
    assert [row["client"] for row in rows if row["status"] == "failed"] == [0], "no dp is infinite"


def test_a_visit_is_counted_before_it_begins_and_once_more_when_it_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """So one that a kill ends counts, too."""
    keys = NO_DP | {"rounds": 1, "min-success": 0.5, "method": "tests.failing:ClientRaises"}
    _, rows = serve(tmp_path / "run", {}, keys)
    assert [row["client"] for row in rows if row["status"] == "failed"] == [2]
    asked = [sum(ledger(tmp_path / "run", site)[0].values()) for site in range(3)]
    assert asked == [1, 1, 2]


def test_what_ran_before_there_was_a_ledger_is_infinite_and_a_damaged_one_is_refused(
    tmp_path: Path,
) -> None:
    model = tmp_path / "0123abcd" / "1" / "round-000001.safetensors"
    model.parent.mkdir(parents=True)
    model.touch()
    book = Ledger(tmp_path, epsilon_cap=1e9, runs_cap=1)
    with pytest.raises(UserError, match="epsilon-cap is set here"):
        book.spend("0123abcd", Terms(50.0))
    with pytest.raises(UserError, match="runs-cap is set here"):
        book.enter("another")
    with pytest.raises(UserError, match="no folder's name"):
        book.enter("../out")
    (tmp_path / "ledger.json").write_text("[")
    with pytest.raises(UserError, match="counts what this node spent in all runs, is damaged"):
        book.enter("0123abcd")


def test_two_processes_at_once_spend_no_more_than_the_cap(tmp_path: Path) -> None:
    cap = epsilon(5.0, 6, 1e-5) + 1e-6

    def visit(number: int) -> bool:
        with suppress(UserError):
            Ledger(tmp_path, cap).spend("run", Terms(5.0))
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(visit, range(16))) == 6
