"""Every method on a GPU that is none (`tests/pretend_gpu.py`): no tensor that is left on the CPU
meets one of the GPU's, and the numbers are those of the CPU. A real GPU is another matter:
`tests/training/test_gpu.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pfedlora_flwr.data.local import Site
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.federation import wire
from pfedlora_flwr.methods.class_means import ClassMeans
from pfedlora_flwr.methods.fedkd import FedKD, decompress
from pfedlora_flwr.methods.fedproto import FedProto
from pfedlora_flwr.methods.lora_residual import DENSE, LEFT, RIGHT, LoraResidual
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.training.device import channels_last
from tests.models.bases import base
from tests.plain import CELLS, LORA, Plain, of_each
from tests.pretend_gpu import GPU, OnGpu, pretended

KEYS = {
    "clients": 2,
    "rounds": 2,
    "dataset": "synthetic:56",  # 22 training samples each: batches of 16 and 6
    "batch-size": 16,
    "partition.kind": "iid",
}
OWN = "tests.methods.own_forms"
MODELS = {"heterogeneous": f"{OWN}:Parted,{OWN}:Wide", "homogeneous": f"{OWN}:Parted"}
LIKE_ANOTHER = [
    (method, setting)
    for method, setting in CELLS
    if setting == "homogeneous" and (method, "heterogeneous") in CELLS and method != "pfedlora"
]
"""Methods with one model for all, where they also take several: `make methods-test` alone."""
SMALL = {"fedtgp": {"fedtgp.server-epochs": 5}, "fedmrl": {"fedmrl.representation-dim": 4}}
LORA_KEYS = {"train": "lora", "lora.rank": "2", "lora.alpha": 3}
OPTIONS = [
    ("pfedlora", {"adapter.kind": "reduced", "models": "cnn5,cnn5", "clip-norm": 0.1}),
    ("pfedlora", {"adapter.down": "fixed", "optimizer": "adamw", "lr-schedule": "cosine"}),
    ("pfedlora", {"adapter.init": "lora", "adapter-epochs": 2, "adapter-lr": 0.1}),
    ("pfedlora", {"augment": True, "initial-models": "architecture"}),
    ("pfedlora_plus", {"adapter.rows": "samples"}),
    ("pfedlora_plus", {"adapter.down": "trained"}),
    ("fedproto", {"neck": "always"}),
    ("fedkd", {}),
]
"""With convolutions."""


class Played(NamedTuple):
    """state: the server's, after two rounds; of FedKD its tensors themselves. losses, flops: of
    every visit, by phase. others: phases, sizes and names."""

    state: Tensors
    losses: list[float]
    flops: list[int]
    others: list[Any]


def play(keys: dict[str, Any], device: torch.device) -> Played:
    """Two rounds of both clients: what goes down and comes up passes the wire's arrays, and the
    server aggregates on the CPU."""
    plain = Plain(KEYS | keys)
    method, e = plain.method, plain.experiment
    models = {k: channels_last(method.initial_model(k).to(device)) for k in range(e.clients)}
    losses: list[float] = []
    flops: list[int] = []
    others: list[Any] = []
    for round in (1, 2):
        uploads = {}
        for k, model in models.items():
            down = through_the_wire(method.download(plain.state, k, round))
            received = {name: tensor.to(device) for name, tensor in down.items()}
            data = Site.find(e, k, {}).load(device)
            upload, visit = visits.visit(method, model, received, data.train, k, round)
            counts = visits.evaluate(method, model, data)
            predictors = visits.other_accuracies(method, model, received, data.test)
            losses += visit.losses.values()
            flops += visit.flops.values()
            others += [[*visit.flops], counts.validation, counts.test, [*predictors]]
            uploads[k] = Upload(through_the_wire(upload.tensors), upload.samples)
            method.check(uploads[k], method.renewed(plain.state, round), k)
        plain.state = method.aggregate(uploads, plain.state, round)
        others.append([*plain.state] if not isinstance(method, FedKD) else None)
    state = plain.state
    if isinstance(method, FedKD):  # the factors of one matrix are many
        state = decompress(state, method.initial)
    if isinstance(method, LoraResidual):  # so are those of ΔW
        thin = {name.removesuffix(LEFT) for name in state if name.endswith(LEFT)}
        dense = {f"{at}{DENSE}": state[at + LEFT] @ state[at + RIGHT] for at in thin}
        state = {n: t for n, t in state.items() if not n.endswith((LEFT, RIGHT))} | dense
    return Played(state, losses, flops, others)


def through_the_wire(tensors: Tensors) -> Tensors:
    return wire.to_tensors([*tensors], wire.to_arrays(tensors))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        pytest.param(
            method,
            {"setting": setting, "models": MODELS[setting]},
            marks=pytest.mark.methods if (method, setting) in LIKE_ANOTHER else (),
        )
        for method, setting in CELLS
    ]
    + [(method, {"models": "cnn5,cnn4"} | keys) for method, keys in OPTIONS],
    ids=str,
)
def test_a_method_computes_there_what_it_computes_on_the_cpu(
    method: str, keys: dict[str, Any]
) -> None:
    check(SMALL.get(method, {}) | keys | {"method": method})


@pytest.mark.slow
@pytest.mark.parametrize("method", LORA)
def test_federated_lora_does_so_too(method: str) -> None:
    pytest.importorskip("peft")
    check({"method": method, "models": f"{OWN}:Parted", "lora.targets": "encoder.2"} | LORA_KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("method", of_each(LORA, "feddpa"))
def test_in_attention_as_well(method: str, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("peft")
    check({"method": method, "models": base(tmp_path, "test_vit")} | LORA_KEYS)


def check(keys: dict[str, Any]) -> None:
    here = play(keys, torch.device("cpu"))
    with pretended() as gpu:
        there = play(keys, gpu)
    assert there.others == here.others
    assert there.losses == pytest.approx(here.losses, rel=1e-3)
    assert there.flops == pytest.approx(here.flops, rel=1e-2)  # other operators do attention
    torch.testing.assert_close(there.state, here.state, rtol=1e-2, atol=1e-3)


def left_received(self: PFedLoRA, model: Any, received: Tensors, data: Any) -> Any:
    """The fixed half of an adapter stays where it was drawn."""
    return self.loaded(model, {name: tensor.cpu() for name, tensor in received.items()})


def left_mixture(self: ClassMeans) -> Tensors:
    """Means by class that are on the CPU already."""
    classes = self.weights.nonzero().squeeze(1)
    return {"classes": classes.cpu(), "means": (self.sums / self.weights[:, None])[classes].float()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "owner", "name", "left"),
    [
        ("pfedlora", PFedLoRA, "received_adapter", left_received),
        ("fedre", ClassMeans, "tensors", left_mixture),
        (
            "fedproto",
            FedProto,
            "predictor",
            lambda self, model: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)),
        ),
    ],
)
def test_a_tensor_that_is_left_on_the_cpu_is_found(
    method: str, owner: type, name: str, left: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"method": method, "models": "cnn5"}
    monkeypatch.setattr(owner, name, left)
    play(keys, torch.device("cpu"))  # where nothing is wrong
    with pretended() as gpu, pytest.raises(RuntimeError, match="on cuda:0 and on the CPU"):
        play(keys, gpu)


def test_devices_are_told_apart_as_a_gpu_does() -> None:
    generator = torch.Generator().manual_seed(0)
    with pretended() as gpu:
        there, here = torch.arange(6.0, device=gpu).view(2, 3), torch.ones(2, 3)
        assert there.device == GPU
        assert torch.tensor([1.0], device=gpu).device == there.new_zeros(1).device == GPU
        assert (there.to("cpu").device, torch.zeros_like(there, device="cpu").device) == (
            here.device,
            here.device,
        )
        assert float((there * torch.tensor(2.0)).sum()) == 30  # one number may stay
        there[1].fill_(7)
        assert there.cpu().tolist() == [[0, 1, 2], [7, 7, 7]]
        here.copy_(there)
        assert here.tolist() == [[0, 1, 2], [7, 7, 7]]
        for wrong in (
            lambda: there + here,
            lambda: there @ here.T,
            lambda: torch.cat([there, here]),
            lambda: torch.stack([there.sum(), here.sum()]),
            lambda: there[torch.tensor([0])],
            lambda: here.index_add_(0, torch.tensor([0, 1], device=gpu), here),
            lambda: torch.rand(3, generator=generator, device=gpu),
        ):
            with pytest.raises(RuntimeError, match="on the CPU"):
                wrong()
        with pytest.raises((TypeError, RuntimeError)):
            there.numpy()
    assert not isinstance(torch.zeros(1), OnGpu)


def test_gradients_are_those_of_pytorch() -> None:
    def gradients(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
        model, inputs = model.to(device), torch.randn(5, 1, 4, 4).to(device)
        shared = model(inputs)
        (shared.square().mean() + shared.softmax(1)[:, 0].mean()).backward()
        return [p.grad.cpu() for p in model.parameters() if p.grad is not None]

    here = gradients(torch.device("cpu"))
    with pretended() as gpu:
        there = gradients(gpu)
    assert len(there) == 6
    torch.testing.assert_close(there, here)
