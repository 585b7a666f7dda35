"""Methods that exchange LoRA under secure aggregation: the sum is the plain mean, in rounds that
renew a part of the state, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import keys_in, needs, run_locally
from tests.methods.own_forms import MIXED, TARGETS
from tests.methods.test_fedlora import MEANS
from tests.plain import Plain

pytestmark = [needs("peft"), pytest.mark.slow]


@pytest.mark.parametrize("name", MEANS)
def test_the_sum_is_the_plain_mean(name: str, tmp_path: Path) -> None:
    keys = keys_in(
        "train=lora clients=3 rounds=2 dataset=synthetic:90 partition.kind=iid batch-size=16 "
        "evaluate-every=2 evaluate-initial=false device=cpu lr=0.1 secagg.enabled=true "
        "secagg.max-samples=128"
    ) | {"method": name, "models": MIXED, "lora.targets": TARGETS}
    plain = Plain(keys)
    first = plain.state
    plain.train(2)
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    saved = RunDirectory(tmp_path / "run").checkpoints.load()
    assert saved is not None
    state = saved.tensors
    assert list(state) == list(plain.state)
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, plain.state[key], rtol=0, atol=1e-4)
    assert any(float((state[key] - first[key]).abs().max()) > 3e-4 for key in state)
    rows = [row for row in done.rows("rounds.jsonl") if row["round"]]
    assert [row["aggregation_error"] for row in rows] == [None, None]
    sent = [sum(t.numel() for t in plain.method.renewed(first, t).values()) for t in (1, 2)]
    assert [row["parameters_up"] for row in rows] == [3 * n for n in sent]
    assert (name == "rolora") == (sent[0] + sent[1] == sum(t.numel() for t in first.values()))
