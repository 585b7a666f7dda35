"""The table of what runs with differential privacy have spent, and the closing line of one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.commands.display import summary
from pfedlora_flwr.report import privacy
from pfedlora_flwr.report.load import load
from pfedlora_flwr.report.tables import all_tables
from tests.conftest import result_of
from tests.report.made import make_run

DP: dict[str, Any] = {
    "level": "user",
    "epsilon": 2.34567,
    "by_client": {},
    "delta": 1e-5,
    "noise": 1.5,
    "clip": 0.25,
    "draws": 3,
    "participations_max": 3,
    "earlier": [],
}


def private(folder: Path, seed: int = 0, **dp: Any) -> Path:
    """A run that has spent so much."""
    make_run(folder, [0.1, 0.9], [0.9, 0.9], method="pfedlora", seed=seed)
    file = folder / "result.json"
    told = {"privacy": {"secagg": {"enabled": False}, "dp": DP | dp, "not_covered": []}}
    file.write_text(json.dumps(json.loads(file.read_text()) | told))
    return folder


def test_a_report_of_a_private_run_says_what_it_spent(tmp_path: Path) -> None:
    (table,) = (t for t in all_tables(load([private(tmp_path / "run")])) if t.name == "privacy")
    (row,) = table.rows
    assert row == {
        "scenario": "all runs",
        "method": "pFedLoRA",
        "seeds": "1",
        "level": "client",
        "ε": "2.346",
        "δ": "1e-05",
        "noise z": "1.5",
        "clip S": "0.25",
        "participations, at most": "3",
        "earlier runs": "–",
    }
    assert "| ε | δ |" in table.markdown()
    assert "2.346</td>" in table.html()
    assert r"$\varepsilon$ & $\delta$" in table.latex()


def test_a_comparison_lists_what_differs_between_seeds_and_leaves_others_out(
    tmp_path: Path,
) -> None:
    private(tmp_path / "runs" / "0", 0, epsilon=3.0)
    private(tmp_path / "runs" / "1", 1, epsilon=None, noise=0.0)
    make_run(tmp_path / "runs" / "plain", [0.1, 0.9], [0.9, 0.9], method="standalone", seed=0)
    (row,) = privacy.table(load([tmp_path / "runs"])).rows
    assert (row["method"], row["seeds"]) == ("pFedLoRA", "2")
    assert (row["ε"], row["noise z"], row["δ"]) == ("3; ∞", "1.5; 0", "1e-05")
    record = private(tmp_path / "record", level="record", noise=None)
    (row,) = privacy.table(load([record])).rows
    assert (row["level"], row["noise z"]) == ("record", "by client")


def test_a_private_run_ends_with_epsilon_and_delta(tmp_path: Path) -> None:
    def last(**dp: Any) -> str:
        result: Any = result_of(private(tmp_path / f"{dp}", **dp))
        result["seconds"] |= {"per_round_median": 1.0, "busy_share": 1.0, "workers": 1}
        return summary(result).splitlines()[-1]

    assert last() == "dp: ε of a client is 2.346 at δ = 1e-05"
    assert last(level="record", epsilon=None) == (
        "dp: ε of a training record is infinite at δ = 1e-05"
    )
    assert last(earlier=[{}]).endswith("; what earlier runs here spent adds to it")


def test_what_replaced_runs_spent_is_listed_as_far_as_it_is_known(tmp_path: Path) -> None:
    old = {"fingerprint": "", "noise": None, "delta": 1e-5, "draws": None, "participations_max": 2}
    new = old | {"level": "record", "epsilon": 1.5}
    unknown = new | {"epsilon": None}
    run = private(tmp_path / "run", earlier=[old, new, unknown, unknown | {"noise": 0.0}])
    (row,) = privacy.table(load([run])).rows
    assert row["earlier runs"] == (
        "ε not known, record ε=1.5 at δ=1e-05, record ε not known, record ε=∞ at δ=1e-05"
    )


MASKED: dict[str, Any] = {
    "privacy": {"secagg": {"enabled": True}, "dp": None, "not_covered": ["x"]}
}


@pytest.mark.parametrize(
    ("told", "keys", "table", "said"),
    [
        ({"communication": {"bytes_up": 3_400_000}}, {}, "sent", "3.4"),
        ({"communication": {"bytes_up": 0}}, {}, "sent", "nothing"),
        ({}, {}, "sent", "LoRA-style adapter|adapter"),
        ({}, {}, "sent", "each client's upload"),
        (MASKED, {}, "sent", "a round's sum"),
        (
            {"privacy": {"secagg": {"enabled": False}, "dp": DP, "not_covered": []}},
            {},
            "sent",
            "ε = 2.346 of a client",
        ),
        ({}, {"split.shares": "6,2,2"}, "known", "6:2:2 for training, validation and tests"),
        ({}, {}, "known", "8:1:1 for training, validation and tests, by chance, stratified"),
        ({"joined": {"3": 2}}, {}, "known", "client 3 joined after round 2"),
        ({"left": {"1": 4}}, {}, "known", "client 1 left after round 4"),
        (
            {"begun_from": [{"run": "r", "without": 2, "round": 1}]},
            {},
            "known",
            "without client 2 after",
        ),
        (
            {"started_from": {"place": "/a/april", "method": "fedavg", "round": 9}},
            {},
            "known",
            "april, fedavg after round 9",
        ),
        ({}, {"secagg.enabled": True}, "known", "seconds, what a node says of itself"),
        (MASKED, {}, "known", "not covered.*x"),
    ],
    ids=str,
)
def test_every_statement_comes_from_a_field(
    tmp_path: Path, told: dict[str, Any], keys: dict[str, Any], table: str, said: str
) -> None:
    """And is not made where the field is not so."""
    plain = {"privacy": {"secagg": {"enabled": False}, "dp": None, "not_covered": ["y"]}}
    texts = []
    for place, (more, own) in enumerate((({}, {}), (told, keys))):
        folder = tmp_path / str(place) / "run"
        make_run(folder, 0.9, 3, method="pfedlora", **own)
        file = folder / "result.json"
        result = json.loads(file.read_text()) | plain
        for name, value in more.items():
            result[name] = {**result[name], **value} if name == "communication" else value
        file.write_text(json.dumps(result))
        study = load([folder])
        texts.append(next(t for t in all_tables(study) if t.name == table).markdown())
    assert re.search(said, texts[1])
    assert bool(re.search(said, texts[0])) is not bool(told or keys)
