"""Every method, by the local engine: it completes, sends as many parameters as its paper says, and
nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import run_locally
from tests.plain import ANY_MODEL

pytestmark = pytest.mark.slow
HIDDEN = 4096
"""Bytes that a message may hold beside its arrays: names, seconds, counts. A private model has 2.7
million."""
SENT = [
    ("standalone", "heterogeneous", 0, 0),
    ("fd", "heterogeneous", 20, (0, 100)),
    ("fedproto", "heterogeneous", 1000, (0, 5000)),
    ("fml", "heterogeneous", 670_058, 670_058),
    ("fedkd", "heterogeneous", (1, 670_058), (1, 670_058)),
    ("lg_fedavg", "heterogeneous", 5010, 5010),
    ("pfedlora", "homogeneous", 120_670, 120_670),
    ("fedavg", "homogeneous", 2_621_558, 2_621_558),
    ("fedgh", "heterogeneous", 1000, 5010),
    ("fedssa", "heterogeneous", 1002, (0, 5010)),
    ("fedtgp", "heterogeneous", 1000, (0, 5000)),
    ("fedre", "heterogeneous", 510, 5010),
    ("fedorgp", "heterogeneous", 1000, (0, 5000)),
    ("fedmrl", "heterogeneous", 465_658, 465_658),
    ("pfedes", "heterogeneous", 443, 443),
    ("pfedmoe", "heterogeneous", 665_048, 665_048),
    ("pfedafm", "heterogeneous", 665_048, 665_048),
    ("pfedlora_plus", "heterogeneous", 122, 610),
    ("fedper", "homogeneous", 2_616_548, 2_616_548),
    ("fedrep", "homogeneous", 2_616_548, 2_616_548),
    ("fedprox", "homogeneous", 2_621_558, 2_621_558),
    ("ditto", "homogeneous", 2_621_558, 2_621_558),
    ("fedrod", "heterogeneous", 5010, 5010),
    ("fedbabu", "homogeneous", 2_616_548, 2_616_548),
    ("fedbn", "homogeneous", 2_621_558, 2_621_558),
    ("apfl", "homogeneous", 2_621_558, 2_621_558),
    ("fedala", "homogeneous", 2_621_558, 2_621_558),
    ("fedncm", "homogeneous", (0, 1002), 5010),
    ("fedlda", "homogeneous", (0, 126_252), 130_260),
    ("fedridge", "homogeneous", (0, 126_252), 130_260),
]
"""Method, setting, and the parameters of one client's upload and download, or their bounds."""
KINDS = ("standalone", "pfedlora", "fedproto", "fedgh", "fedmrl")
"""Nothing sent, a mean, class means, trained on the server, composite. The others are run by `make
methods-test`."""


def test_every_method_is_run() -> None:
    assert {row[0] for row in SENT} == set(ANY_MODEL)


@pytest.mark.parametrize(
    ("method", "setting", "up", "down"),
    [pytest.param(*row, marks=() if row[0] in KINDS else pytest.mark.methods) for row in SENT],
)
def test_a_method_completes_and_sends_what_it_should(
    tmp_path: Path,
    method: str,
    setting: str,
    up: int | tuple[int, int],
    down: int | tuple[int, int],
) -> None:
    keys = {
        "method": method,
        "setting": setting,
        "clients": 5,
        "participation": 0.4,
        "rounds": 2,
        "batch-size": 32,
        "partition.samples-per-client": 80,
    }
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    rows = done.rows("clients.jsonl")
    assert len(rows) == 2 * 2
    for row in rows:
        assert sent(row["parameters_up"], up), row["parameters_up"]
        assert sent(row["parameters_down"], down), row["parameters_down"]
        assert row["bytes_up"] <= row["wire_up"] < row["bytes_up"] + HIDDEN
        assert 0 <= row["loss"] < 20
    assert done.result["refused"] == 0
    assert 0 < done.result["accuracy"]["final"] <= 1
    assert "NaN" not in json.dumps(done.result)


def sent(count: int, expected: int | tuple[int, int]) -> bool:
    return expected[0] <= count <= expected[1] if isinstance(expected, tuple) else count == expected
