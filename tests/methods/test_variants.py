"""The variants of pFedLoRA of benchmarks/variants.py, each against what its option says. Rows by
class and a fixed matrix: tests/methods/test_pfedlora_plus.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm

from benchmarks.variants import Kept, NormalisedStandalone, Variant
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.standalone import Standalone
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import torch_generator
from tests.plain import samples, visit

LABELS = [2, 5, 5, 7] * 4
BASE = {"models": "cnn5", "batch-size": 8, "local-epochs": 2}


def variant(options: str = "", **keys: object) -> Variant:
    return Variant(
        from_flat(
            {**BASE, "method": "benchmarks.variants:Variant", "method-options": options, **keys}
        ),
        Task(10),
    )


def trained(method: PFedLoRA, state: Tensors, *, seed: int = 0) -> tuple[Any, Upload]:
    """What a client keeps and sends after a visit with `state`."""
    model = method.private_init(0, 3)
    return model, method.local_update(
        model, method.download(state, 0, 1), samples(LABELS, seed), visit(method.experiment)
    )


def equal(ours: Tensors, theirs: Tensors) -> bool:
    return list(ours) == list(theirs) and all(
        torch.equal(tensor, theirs[name]) for name, tensor in ours.items()
    )


def test_without_options_it_is_pfedlora() -> None:
    ours, paper = variant(), PFedLoRA(from_flat(BASE), Task(10))
    state = paper.state_init(5)
    assert equal(ours.state_init(5), state)
    (ours_model, ours_upload), (model, upload) = trained(ours, state), trained(paper, state)
    assert equal(ours_upload.tensors, upload.tensors)
    assert equal(ours_model.state_dict(), model.state_dict())
    several = {0: upload, 1: trained(paper, state, seed=1)[1]}
    assert equal(ours.aggregate(several, state, 1), paper.aggregate(several, state, 1))


@pytest.mark.parametrize("rows", ["samples", "classes"])
def test_the_server_may_go_part_of_the_way(rows: str) -> None:
    method, whole = (variant(f"rows={rows}{more}") for more in (" server-lr=0.25", ""))
    state = method.state_init(5)
    uploads = {0: trained(method, state)[1], 1: trained(method, state, seed=1)[1]}
    merged, means = method.aggregate(uploads, state, 1), whole.aggregate(uploads, state, 1)
    assert list(merged) == list(state)
    for name, tensor in merged.items():
        assert torch.allclose(tensor, 0.75 * state[name] + 0.25 * means[name], atol=1e-6)
    assert not torch.equal(merged["up.weight"], means["up.weight"])


def test_a_private_first_matrix_stays_with_the_client_and_is_trained_on() -> None:
    method = variant("down=private")
    state = method.state_init(5)
    assert list(state) == ["up.weight", "up.bias"]
    first = method.private_init(0, 3)
    assert equal(method.predictor(first).state_dict(), variant().private_init(0, 3).state_dict()), (
        "the model starts as without"
    )
    model, upload = trained(method, state)
    assert isinstance(model, Kept)
    assert list(upload.tensors) == ["up.weight", "up.bias"]
    before = model.down.weight.clone()
    assert not torch.equal(before, first.down.weight)
    whole = {f"down.{n}": t.clone() for n, t in model.down.state_dict().items()} | upload.tensors
    twin, plain = method.private_init(0, 3).local, variant()
    twin.load_state_dict(model.local.state_dict())
    expected = plain.local_update(
        twin, {n: whole[n] for n in plain.state_init(5)}, samples(LABELS), visit(plain.experiment)
    )
    again = method.local_update(model, upload.tensors, samples(LABELS), visit(method.experiment))
    assert torch.equal(again.tensors["up.weight"], expected.tensors["up.weight"]), (
        "as pFedLoRA with the whole adapter received"
    )
    assert torch.equal(model.down.weight, expected.tensors["down.weight"])


def test_the_adapter_reads_normalised_features() -> None:
    state = variant().state_init(5)
    x = torch.rand(4, 500, generator=torch_generator(2, "x"))
    normalised, plain = (m._adapter(500) for m in (variant("features=normalised"), variant()))
    for adapter in (normalised, plain):
        adapter.load_state_dict(state)
    assert torch.allclose(normalised(x), plain(layer_norm(x, (500,))))


def test_the_adapter_may_be_trained_first() -> None:
    """It is trained behind the model as it came, and the model on the adapter as it goes up."""
    method, plain = variant("order=adapter"), variant()
    state = method.state_init(5)
    model, upload = trained(method, state)
    twin, by_hand = plain.private_init(0, 3), visit(plain.experiment)
    adapter = plain.received_adapter(twin, state, samples(LABELS))
    plain.train_adapter(twin, adapter, samples(LABELS), by_hand)
    plain.train_model(twin.train(), adapter, samples(LABELS), by_hand)
    assert equal(upload.tensors, adapter.state_dict())
    assert equal(model.state_dict(), twin.state_dict())
    assert not torch.equal(
        upload.tensors["up.weight"], trained(plain, state)[1].tensors["up.weight"]
    )


def test_the_weight_of_the_own_loss_may_warm_up() -> None:
    method = variant("warmup=4 mu=0.6")
    assert [method.own_weight(round) for round in (1, 2, 3, 5, 9)] == pytest.approx(
        [1.0, 0.9, 0.8, 0.6, 0.6]
    )
    method = variant("warmup=4 mu-start=0.2 mu=0.6")
    assert [method.own_weight(round) for round in (1, 3, 5)] == pytest.approx([0.2, 0.4, 0.6])
    assert variant("mu=0.7").own_weight(1) == 0.7
    alone, warm = (
        trained(variant(options), variant().state_init(5))[0] for options in ("mu=1", "warmup=4")
    )
    assert equal(alone.state_dict(), warm.state_dict()), (
        "in the first round the model sees its own loss alone"
    )


@pytest.mark.parametrize(
    "name", ["gain", "gain-confirm", "gain-standalone", "normalised", "sensitivity"]
)
def test_the_files_of_benchmarks_are_valid_comparisons(name: str) -> None:
    file = Path(__file__).parent.parent.parent / "benchmarks" / f"{name}.yaml"
    alone = "benchmarks.variants:NormalisedStandalone"  # its own control, which is not run
    cells = Comparison.load(file).cells()
    assert all(cell.candidates for cell in cells if cell.method != alone)
    assert all(cell.candidates for cell in cells if cell.scenario.get("sharing") != "none")


def test_normalised_standalone_differs_from_standalone_by_what_its_last_layer_reads() -> None:
    keys = {**BASE, "method": "standalone"}
    theirs = Standalone(from_flat(keys), Task(10)).private_init(0, 3)
    ours = NormalisedStandalone(
        from_flat({**keys, "method": "benchmarks.variants:NormalisedStandalone"}), Task(10)
    ).private_init(0, 3)
    assert equal(ours.state_dict(), theirs.state_dict())
    inputs = samples(LABELS).inputs
    representation = theirs.encode(inputs)
    read = layer_norm(representation, representation.shape[1:])
    assert torch.equal(ours(inputs), theirs.head(read))
    assert not torch.equal(ours(inputs), theirs(inputs))
