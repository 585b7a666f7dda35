"""LoRA inside models whose weights came from elsewhere: what it computes, trains, keeps and
writes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.config.checks import unused
from pfedlora_flwr.config.reading import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.federation.visit import visit as visit_client
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.launch.trainable import check_trainable
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models import linear, lora
from pfedlora_flwr.models.kept import base_of, kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.registry import build, facts
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import Trained, load_trained
from pfedlora_flwr.training.flops import count_operations
from tests.alike import SAME
from tests.conftest import Call, Lazily, keys_in, needs, run_locally
from tests.models.bases import CLASSES, base, untrained
from tests.plain import Plain, make, samples

timm = Lazily("timm")
peft = Lazily("peft")
pytestmark = needs("timm", "peft")
TASK = Task(10)
NAMES = ("test_vit", "test_efficientnet", "test_resnet")
PARTS = {"test_vit": "qkv", "test_efficientnet": "conv_pw", "test_resnet": "layer4"}
"""In the names of what LoRA is in, by itself."""
KEYS = keys_in(
    "train=lora lora.rank=4,8 lora.dropout=0.2 clients=2 dataset=synthetic:60 "
    "partition.kind=iid batch-size=16"
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Model names with weights in files."""
    folder = tmp_path_factory.mktemp("bases")
    return {name: base(folder, name) for name in NAMES}


def made(name: str, seed: int = 1) -> Any:
    with seeded(seed):
        return build(name, TASK)


def stirred(model: ClientModel) -> ClientModel:
    """The model with all that is trained of it changed, in evaluation mode."""
    draws = torch.Generator().manual_seed(3)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=draws)
    return model.eval()


def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", ", neck=40", ", model-input=48"])
@pytest.mark.parametrize("name", NAMES)
def test_untrained_it_is_the_frozen_backbone_with_the_same_head(
    name: str, more: str, bases: dict[str, str]
) -> None:
    head = made(f"{bases[name]} (train=head{more})").eval()
    for init in ("", ", lora.init=orthogonal", ", lora.rank=3, lora.dropout=0.5"):
        model = made(f"{bases[name]} (train=lora{init}{more})")
        with torch.no_grad():
            assert torch.equal(model.eval()(images()), head(images()))
        assert base_of(model) == base_of(head)
        assert not torch.equal(stirred(model)(images()), head(images()))
        assert kept(model).keys() > kept(head).keys()
        assert all(PARTS[name] in key for key in kept(model).keys() - kept(head).keys())


def test_orthogonal_rows_are_orthonormal_and_another_seed_draws_others(
    bases: dict[str, str],
) -> None:
    one, two = (
        kept(made(f"{bases['test_resnet']} (train=lora, lora.init=orthogonal)", seed))
        for seed in (1, 2)
    )
    for name, tensor in one.items():
        if "lora_A" in name:
            rows = tensor.flatten(1)
            assert torch.allclose(rows @ rows.T, torch.eye(len(rows)), atol=1e-5)
            assert not torch.equal(tensor, two[name])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standalone", "pfedlora", "fedavg", "fml", "fedmrl"])
def test_visits_change_what_is_kept_and_the_base_stays_and_is_there_once(
    method: str, bases: dict[str, str]
) -> None:
    keys = KEYS | {"method": method, "models": bases["test_efficientnet"], "weight-decay": 0.1}
    keys |= {"lora.rank": "4"} if method == "fedavg" else {}
    federation = Plain(keys)

    def own(client: int) -> Any:
        model = federation.model(client)
        return model.local if method == "fedmrl" else federation.method.predictor(model)

    one, two = own(0), own(1)
    shared = [p for p in one.module.parameters() if not p.requires_grad]
    assert {id(p) for p in shared} == {
        id(p) for p in two.module.parameters() if not p.requires_grad
    }
    before = {name: t.clone() for name, t in tensors_of(one).items()}
    federation.train(2)
    for model in (one, two):
        changed = {
            n
            for n, t in tensors_of(model).items()
            if n not in before or not (before[n].shape == t.shape and torch.equal(before[n], t))
        }
        assert changed == set(kept(model))
        assert sum(name.endswith("weight") for name in changed) == 2 * 6 + 1
        assert not any(
            part.training for part in model.module.modules() if isinstance(part, nn.BatchNorm2d)
        )


@pytest.mark.slow
def test_dropout_is_drawn_from_the_visit_and_rests_in_evaluation(bases: dict[str, str]) -> None:
    ended = []
    for dropout, round in ((0.5, 1), (0.5, 1), (0.5, 2), (0.0, 1)):
        e = from_flat(
            KEYS | {"models": bases["test_vit"], "method": "standalone", "lora.dropout": dropout}
        )
        method = make(e)
        model = method.initial_model(0)
        torch.rand(7)  # others draw in between
        visit_client(method, model, {}, samples([0, 1] * 8), 0, round)
        with torch.no_grad():
            model.eval()
            assert torch.equal(model(images()), model(images()))
        ended.append(tensors_sha256(kept(model)))
    assert ended[0] == ended[1]
    assert len({*ended}) == 3


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_that_run(
    name: str, bases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_AVAILABLE", False)  # PyTorch's counter does not know oneDNN's
    model = made(f"{bases[name]} (train=lora)")
    with FlopCounterMode(display=False) as theirs, count_operations() as ours:
        loss = model(images()).sum()
        forward = theirs.get_total_flops()
        loss.backward()
    assert ours.forward == forward
    assert ours.total == theirs.get_total_flops()


def test_fedavg_sends_lora_and_the_head_and_wants_one_rank(bases: dict[str, str]) -> None:
    keys = KEYS | {"method": "fedavg", "models": bases["test_vit"], "lora.rank": 4}
    method = make(from_flat(keys))
    sent = method.state_init(0)
    assert {name.split(".")[-3] for name in sent if "lora" in name} == {"lora_A", "lora_B"}
    assert [name for name in sent if "lora" not in name] == ["last.weight", "last.bias"]
    two = r"needs the same model at all clients, and theirs are 2; set .* lora.rank, too"
    with pytest.raises(UserError, match=two):
        from_flat(keys | {"lora.rank": "4, 8"})


def test_alpha_is_twice_each_rank_and_ranks_are_taken_in_turn(bases: dict[str, str]) -> None:
    method = make(from_flat(KEYS | {"models": bases["test_vit"]}))
    for client, rank in enumerate((4, 8)):
        model = method.initial_model(client)
        assert lora.description(model) == f"rank {rank}, alpha {2 * rank}, in qkv"
        layer = model.module.blocks[0].attn.qkv
        assert layer.scaling == {"default": 2.0}
        assert layer.lora_A["default"].weight.shape == (rank, 64)
    names = make(from_flat(KEYS | {"models": "cnn1", "train": "all"})).model_names
    assert [str(name) for name in names] == ["cnn1"], "nobody trains it"


def test_wrong_keys_are_a_line(bases: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(said: str, match: str, name: str = bases["test_efficientnet"]) -> None:
        with pytest.raises(UserError, match=match) as error:
            make(
                from_flat(
                    {"train": "lora", "models": name}
                    | dict(word.split("=", 1) for word in said.split())
                )
            ).private_init(0, 1)
        assert len(str(error.value).splitlines()) == 1

    for rank in ("0", "-1", "8,0", "4,", "x", "1.5"):
        refused(
            f"lora.rank={rank}", "lora.rank is '.*'; allowed: integers ≥ 1, separated by commas"
        )
    refused("lora.alpha=0", "lora.alpha is 0.0; allowed: auto, or a number > 0")
    refused("lora.dropout=1", "lora.dropout is 1.0; allowed: a number ≥ 0 and < 1")
    refused("lora.init=kaiming", r"allowed: peft \| orthogonal \| folder:…")
    refused("lora.targets=qkv,,x", "allowed: auto, or all-linear, or suffixes of layer names")
    refused("lora.targets=qkv", "names 'qkv', with which no layer's name ends; those that take")
    refused("lora.targets=conv_dw", r"3.0.conv_dw is depthwise \(128 groups\)")
    refused("lora.targets=classifier", "names 'classifier', its head, which is trained itself")
    refused("lora.targets=bn1", "names 'bn1', and bn1 is a BatchNormAct2d")
    refused("lora.init=folder:/nowhere", "lora.init is folder:/nowhere, which peft did not save")
    refused(
        "representation=pretrained-logits", "allowed with representation=pretrained-logits: head"
    )
    refused("train=lora", "'cnn1' begins at random, and LoRA is for models", "cnn1")
    assert "is not called" in lora._unable(nn.MultiheadAttention(8, 2).out_proj)
    assert "is dilated" in lora._unable(nn.Conv2d(3, 4, 3, dilation=2))
    monkeypatch.setattr(importlib, "import_module", without_peft(importlib.import_module))
    refused(
        "train=lora", r"needs peft, which is not installed: pip install 'pfedlora-flwr\[lora\]'"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:eva02_tiny_patch14_224", "torchvision:swin_t"])
def test_a_layer_whose_weights_alone_are_read_is_refused(name: str) -> None:
    said = f"{name} (train=lora, model-input=28)"
    with pytest.raises(UserError, match=r"qkv, in which lora.targets puts LoRA, is not called"):
        facts(said, TASK)
    keys = KEYS | {"method": "fedit", "models": name, "model-input": 28, "lora.rank": 4}
    with pytest.raises(UserError, match="is not called"):
        check_trainable(run_config(keys))


def without_peft(real: Callable[..., ModuleType]) -> Callable[..., ModuleType]:
    def importing(name: str, *more: Any) -> ModuleType:
        if name == "peft":
            raise ImportError(name)
        return real(name, *more)

    return importing


def test_keys_of_lora_without_lora_are_said_to_be_unused() -> None:
    config = run_config({"train": "head", "lora.rank": 4})
    assert unused(["lora.rank", "train"], config) == ["lora.rank is not used: train is head"]
    assert unused(["lora.rank"], run_config({"train": "head,lora", "models": "my:Net"})) == []


def test_a_users_own_module_takes_it_where_it_is_told(tmp_path: Path) -> None:
    said = "lora.targets=backbone.2"
    name = "tests.models.modules:HalfFrozen"
    with pytest.raises(UserError, match=r"lora.targets is auto, which knows .* name some of this"):
        made(f"{name} (train=lora)")
    model = made(f"{name} (train=lora, {said})")
    assert {key.rpartition(".")[0] for key in kept(model)} >= {"last"}
    assert any("lora_A" in key for key in kept(model))


def two(bases: dict[str, str]) -> dict[str, Any]:
    """Of a run with a ViT and an EfficientNet, which have another rank."""
    names = f"{bases['test_vit']},{bases['test_efficientnet']}"
    return KEYS | {"method": "standalone", "models": names, "rounds": 2, "lr": 0.1}


@pytest.fixture(scope="module")
def done(bases: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("lora") / "run"
    assert run_locally(run, two(bases)).code == 0
    return run


def theirs(trained: Trained, classes: int = 10) -> nn.Module:
    """timm's own module with the weights of a client's base, and a head that begins anew."""
    _, name, file = trained.method.model_of(trained.client).name.split(":")
    state = safetensors.torch.load_file(file.removeprefix("weights="))
    kwargs = {"img_size": 32} if "vit" in name else {}
    module: nn.Module = timm.create_model(name, num_classes=CLASSES, **kwargs)
    if "vit" in name:
        from timm.models.vision_transformer import checkpoint_filter_fn

        state = checkpoint_filter_fn(state, module)
    module.load_state_dict(state)
    module.reset_classifier(classes)
    return module.eval()


@pytest.mark.slow
@pytest.mark.parametrize("client", [0, 1])
def test_merged_it_is_timms_model_and_by_peft_too(
    client: int, done: Path, tmp_path: Path, pfedlora: Call
) -> None:
    trained = load_trained(done, client)
    assert any("lora_A" in name for name in kept(trained.module))
    with torch.no_grad():
        expected = trained.module(images())
    assert export(trained, "safetensors", tmp_path / "merged") < 1e-5
    merged = theirs(trained)
    merged.load_state_dict(safetensors.torch.load_file(tmp_path / "merged"))
    with torch.no_grad():
        assert torch.allclose(merged(images()), expected, atol=1e-5)

    assert export(trained, "peft", tmp_path / "peft") < 1e-5
    assert sorted(file.name for file in (tmp_path / "peft").iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["r"] == 4 * (
        client + 1
    )
    by_peft = peft.PeftModel.from_pretrained(theirs(trained), tmp_path / "peft").eval()
    with torch.no_grad():
        assert torch.allclose(by_peft(images()), expected, atol=1e-5)
    card = (tmp_path / "peft" / "README.md").read_text()
    assert f"| frozen base | `{base_of(trained.module)}` |" in card
    assert "| licence of the base | Apache-2.0 (of the library's own weights) |" in card
    assert f"| LoRA | rank {4 * (client + 1)}, alpha {8 * (client + 1)}, in " in card
    with pytest.raises(UserError, match="exists; replace it with overwrite=true"):
        export(trained, "peft", tmp_path / "peft")
    assert export(trained, "peft", tmp_path / "peft", overwrite=True) < 1e-5

    if client == 1:  # in convolutions; in linear layers: tests/models/test_text.py
        pytest.importorskip("onnxruntime")
        assert export(trained, "onnx", tmp_path / "onnx") < 1e-4
    code, told, error = pfedlora("evaluate", str(done), "--client", str(client), "--json")
    assert code == 0, error
    row = RunDirectory(done).result()["per_client"][str(client)]
    assert json.loads(told)["accuracy"] == row["accuracy"], "as the run counted"


@pytest.mark.slow
def test_a_run_begins_with_the_merged_weights_and_with_what_peft_saved(
    done: Path, bases: dict[str, str], tmp_path: Path
) -> None:
    trained = load_trained(done, 0)
    with torch.no_grad():
        expected = trained.module(images())
    file = tmp_path / "merged.safetensors"
    export(trained, "safetensors", file)
    again = made(f"timm:test_vit:weights={file}").eval()
    with torch.no_grad():
        assert torch.allclose(again(images()), expected, atol=1e-5)

    theirs_ = peft.get_peft_model(
        theirs(trained),
        peft.LoraConfig(r=3, lora_alpha=6, target_modules=["qkv"], modules_to_save=["head"]),
    )
    draws = torch.Generator().manual_seed(1)
    for parameter in (p for p in theirs_.parameters() if p.requires_grad):
        parameter.data = torch.randn(parameter.shape, generator=draws) * 0.1
    theirs_.save_pretrained(tmp_path / "theirs")
    said = f"train=lora, lora.rank=3, lora.init=folder:{tmp_path / 'theirs'}"
    model = made(f"{bases['test_vit']} ({said})").eval()
    with torch.no_grad():
        assert torch.allclose(model(images()), theirs_.eval()(images()), atol=1e-5)
    for other in ("lora.rank=4", "lora.rank=3, lora.alpha=3", "lora.rank=3, lora.targets=proj"):
        with pytest.raises(
            UserError, match=r"which holds LoRA of rank 3, alpha 6, 12 tensors, and"
        ):
            made(f"{bases['test_vit']} ({said.replace('lora.rank=3', other)})")
    saved = tmp_path / "theirs" / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(saved)
    safetensors.torch.save_file(tensors | {"base_model.model.score.weight": torch.ones(1)}, saved)
    with pytest.raises(UserError, match=r"which holds score.weight, for a layer that this model"):
        made(f"{bases['test_vit']} ({said})")
    safetensors.torch.save_file(tensors, saved)
    config = tmp_path / "theirs" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"init_lora_weights": "pissa"}))
    with pytest.raises(UserError, match="which peft began by 'pissa': that changes the base, too"):
        made(f"{bases['test_vit']} ({said})")


@pytest.mark.slow
def test_the_format_peft_is_for_lora_on_a_base(bases: dict[str, str], tmp_path: Path) -> None:
    cases: tuple[tuple[str, dict[str, object], str], ...] = (
        (bases["test_vit"], {"train": "head"}, "format peft is for LoRA, and timm:test_vit has"),
        ("timm:test_vit", {"train": "lora"}, "were drawn at random: give format=safetensors"),
        (
            bases["test_vit"],
            {"method": "fedmrl", "fedmrl.representation-dim": 32},
            "format peft is for LoRA in one model",
        ),
        (
            bases["test_vit"],
            {"method": "flora", "train": "lora", "lora.rank": "4"},
            "the method moved weights of the base: give safetensors",
        ),
    )
    for n, (models, keys, match) in enumerate(cases):
        trained = changed(KEYS | {"models": models} | keys)
        with pytest.raises(UserError, match=match):
            export(trained, "peft", tmp_path / f"peft{n}")
        assert export(trained, "safetensors", tmp_path / f"merged{n}") < 1e-5
    one = KEYS | {"models": bases["test_vit"], "lora.rank": "4"}
    assert export(changed(one | {"method": "ffa_lora"}), "peft", tmp_path / "ffa") < 1e-5
    for format, match in (
        ("peft", "two LoRAs in it: give onnx or torch-export"),
        ("safetensors", "onnx, torch-export"),
    ):
        with pytest.raises(UserError, match=match):
            export(changed(one | {"method": "fedalt"}), format, tmp_path / format)


def changed(keys: dict[str, Any]) -> Trained:
    """A client whose model is not as it began."""
    trained = untrained(**{"method": "pfedlora"} | keys)
    stirred(trained.module)
    return trained


@pytest.mark.slow
def test_a_run_whose_visits_read_their_models_and_that_is_extended_ends_as_in_memory(
    done: Path, bases: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODELS, "take", lambda *_: None)
    run = tmp_path / "run"
    assert run_locally(run, two(bases) | {"rounds": 1}).code == 0
    extended = run_locally(run, two(bases) | {"resume": True})
    assert extended.code == 0, extended.stderr
    assert [*map(RunDirectory(done).result().get, SAME)] == [*map(extended.result.get, SAME)]
    stored = RunDirectory(run).client_store(0)
    assert stored.base(2).startswith("timm:test_vit sha256:")
    assert not any("base_layer" in name for name in stored.read(2))
