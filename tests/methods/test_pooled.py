"""The pooled reference: what it trains on, what it costs, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.data.local import Site
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.pooled import Pooled
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import run_locally


class Own(Pooled):
    """A user's own, which pools rows, too."""


KEYS = {"dataset": "synthetic:60", "partition.kind": "iid", "clients": 4, "rounds": 3}


@pytest.mark.slow
def test_one_model_of_each_architecture_is_trained_at_the_cost_of_all_clients(
    tmp_path: Path,
) -> None:
    """And of one further round, since it is trained a round ahead."""
    one = KEYS | {"models": "cnn5"}
    alone, pooled = (
        run_locally(tmp_path / method, one | {"method": method}).result
        for method in ("standalone", "pooled")
    )
    assert pooled["flops"] * 3 == alone["flops"] * 4
    run_locally(tmp_path / "two", KEYS | {"method": "pooled", "models": "cnn4,cnn5"})
    run = RunDirectory(tmp_path / "two")
    models = [tensors_sha256(run.client_store(k).load(3)) for k in range(4)]
    assert models[0] == models[2] != models[1] == models[3]
    told = run.right_rows(3)
    assert len(told.read_text().splitlines()) == 1 + 1 + 3  # the rows, rounds 0 to 3


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_round_s_rows_are_of_all_training_parts(participation: float) -> None:
    e = from_flat(KEYS | {"method": "pooled", "participation": participation})
    site, everyone = Site.find(e, 1, {}), DataSetup(e).partition.clients
    total = sum(len(split.train) for split in everyone)
    cpu = torch.device("cpu")
    first, second = (site.pooled(DataSetup(e), round, cpu) for round in (1, 2))
    assert len(first) == len(second) == int(total * participation)
    assert torch.equal(first.inputs, second.inputs) == (participation == 1)


def test_it_is_refused_where_rows_do_not_come_together() -> None:
    e = from_flat(KEYS | {"method": "pooled"})
    node = {"dataset": "digits", "partition-id": 0, "num-partitions": 4}
    told = PersonalisedClient(e, node).get_properties({})
    assert "a site's do not leave it: it is a reference only for simulations" in str(told)
    for keys, why in (
        ({"sharing": "start"}, "sharing is start; allowed: mean"),
        ({"rounds": 1}, "rounds is 1; allowed: ≥ 2"),
        ({"dp.clip": 1.0, "dp.noise": 1.0}, "does not take a mean of uploads"),
    ):
        for method in ("pooled", f"{__name__}:Own"):
            with pytest.raises(UserError, match=why):
                run_config(KEYS | {"method": method} | keys)


def test_a_comparison_has_it_beside_the_methods_and_not_beside_their_controls() -> None:
    content = {
        "base": KEYS | {"partition.kind": "iid"},
        "methods": ["standalone", "pooled", "fd"],
        "axes": {"sharing": ["mean", "none"]},
    }
    cells = Comparison.of("any", content, {}).cells()
    assert [c.scenario["sharing"] for c in cells if c.method == "pooled"] == ["mean"]
