"""pFedLoRA+ and a fixed first matrix: the bits of the variants with which docs/results/gain was
made, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.task import Task
from tests.conftest import keys_in
from tests.plain import Plain

BASE = keys_in(
    "models=tests.models.modules:HalfFrozen clients=5 partition.kind=pathological "
    "partition.classes-per-client=4 batch-size=16 weight-decay=0.01 dataset=synthetic:120 "
    "adapter.hidden-dim=6"
)


def plain(method: str, **keys: object) -> Plain:
    options = keys.pop("options", "")
    made = Plain({**BASE, "method": method, "method-options": options, **keys})
    made.train(2)
    return made


def equal(ours: Tensors, theirs: Tensors) -> bool:
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, "rows=classes down=fixed mu=0.3"),
        ({"adapter.rows": "samples"}, "down=fixed mu=0.3"),
        ({"adapter.down": "trained", "pfedlora_plus.mu": 0.5}, "rows=classes"),
    ],
)
def test_it_gives_the_bits_of_the_variant_that_was_measured(
    keys: dict[str, Any], options: str
) -> None:
    ours = plain("pfedlora_plus", **keys)
    theirs = plain("benchmarks.variants:Variant", options=f"adapter.hidden-dim=6 {options}")
    assert equal(ours.state, theirs.state)
    assert ("down.weight" in ours.state) == ("adapter.down" in keys)
    for client, model in ours.models.items():
        assert equal(tensors_of(model), tensors_of(theirs.models[client]))


@pytest.mark.slow
def test_a_fixed_first_matrix_of_pfedlora_is_the_variants_and_is_not_sent() -> None:
    ours = plain("pfedlora", **{"adapter.down": "fixed"})
    theirs = plain("benchmarks.variants:Variant", options="adapter.hidden-dim=6 down=fixed")
    assert list(ours.state) == list(ours.uploads[0].tensors) == ["up.weight", "up.bias"]
    assert equal(ours.state, theirs.state)
    assert isinstance(ours.method, PFedLoRA)
    first, second = (ours.method.loaded(ours.model(k), ours.state).down for k in range(2))
    assert torch.equal(first.weight, second.weight)
    assert torch.allclose(first.weight @ first.weight.T, torch.eye(6), atol=1e-5)
    assert not first.weight.requires_grad


@pytest.mark.slow
def test_as_pfedlora_it_is_pfedlora() -> None:
    keys = {"adapter.rows": "samples", "adapter.down": "trained", "pfedlora_plus.mu": 0.5}
    assert equal(plain("pfedlora_plus", **keys).state, plain("pfedlora").state)


@pytest.mark.slow
def test_counts_that_are_not_the_clients_samples_are_refused() -> None:
    run = plain("pfedlora_plus")
    upload = run.uploads[0]
    lied = Upload(upload.tensors | {"counts": upload.tensors["counts"] + 1}, upload.samples)
    with pytest.raises(Refused, match="that sum to its"):
        run.method.check(lied, run.state, 0)


def test_secure_aggregation_takes_rows_weighted_by_samples_alone() -> None:
    keys = {"method": "pfedlora_plus", "secagg.enabled": True}
    with pytest.raises(UserError, match=r"adapter\.rows is classes; allowed with secagg\.enabled"):
        from_flat(keys)
    made = registry.make(from_flat(keys | {"adapter.rows": "samples"}), Task(10))
    assert made.averages
    assert list(made.state_init(1)) == ["up.weight", "up.bias"]
