"""Models of timm and torchvision by name: split where the libraries part them, of any channels,
with weights from a file."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from pfedlora_flwr.config import from_flat, located, run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.models import weights
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.models.registry import build, facts
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops.export import export
from tests.conftest import Lazily, needs, run_locally
from tests.models.bases import untrained
from tests.plain import make

timm = Lazily("timm")
pytestmark = needs("timm")
GREY = Task(4, (1, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "width", "batch_norm"),
    [
        ("timm:resnet10t", GREY, 512, True),
        ("timm:mobilenetv3_small_050", Task(4, (3, 64, 48)), 1024, True),
        ("timm:vit_tiny_patch16_224", GREY, 192, False),  # timm makes it for the images' size
        ("torchvision:mobilenet_v3_small", Task(4), 1024, True),
    ],
)
def test_a_model_by_name_is_the_librarys_and_parted_before_its_classifier(
    name: str, task: Task, width: int, batch_norm: bool
) -> None:
    def seeded() -> torch.nn.Module:
        torch.manual_seed(1)
        return build(name, task).eval()

    model, again, x = seeded(), seeded(), torch.randn(2, *task.shape)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert model.encode(x).shape == (2, width)
    assert model.last_layer().out_features == 4
    assert torch.equal(model.head(model.encode(x)), model(x))
    assert model.description == name
    assert (facts(name, task).width, facts(name, task).batch_norm) == (width, batch_norm)
    if name == "timm:resnet10t":
        torch.manual_seed(1)
        theirs = timm.create_model("resnet10t", num_classes=4, in_chans=1).eval()
        assert torch.allclose(theirs(x), model(x), atol=1e-6)
        assert torch.allclose(
            theirs.forward_head(theirs.forward_features(x), pre_logits=True),
            model.encode(x),
            atol=1e-6,
        )


@pytest.mark.parametrize(
    "form",
    [pytest.param(f, marks=pytest.mark.slow) for f in ("safetensors", "pt")]
    + [pytest.param("nested.pt")],
)
def test_weights_come_from_a_file_but_for_a_classifier_of_other_classes(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights._warn.cache_clear()
    source = timm.create_model("mobilenetv3_small_050", num_classes=9).eval()
    file = tmp_path / f"weights.{form}"
    if form == "safetensors":
        safetensors.torch.save_file(source.state_dict(), file)
    else:
        torch.save(
            (
                {"state_dict": source.state_dict(), "epoch": 3}
                if form == "nested.pt"
                else source.state_dict()
            ),
            file,
        )
    x = torch.randn(2, 3, 32, 32)
    name = f"timm:mobilenetv3_small_050:weights={file}"
    with caplog.at_level(logging.WARNING):
        model = build(name, Task(4)).eval()
        build(name, Task(4))
    own = source.forward_head(source.forward_features(x), pre_logits=True)
    assert torch.allclose(model.encode(x), own, atol=1e-5)
    assert [r.message for r in caplog.records if "left out" in r.message] == [
        f"model {name}: classifier.weight, classifier.bias of its weights are for other classes,"
        " and left out: its head begins at random"
    ]
    # with its classes the head is there, too
    assert torch.allclose(build(name, Task(9)).eval()(x), source(x), atol=1e-5)
    assert model.description == "timm:mobilenetv3_small_050"
    grey = build(name, Task(9, (1, 32, 32)))
    # timm sums the first layer over its channels
    assert grey(torch.randn(2, 1, 32, 32)).shape == (2, 9)
    torch.manual_seed(0)
    build(name, Task(4))
    drawn = torch.get_rng_state()
    torch.manual_seed(0)
    with random_weights():
        assert not torch.allclose(build(name, Task(4)).eval().encode(x), own)
    # what is drawn after it does not depend on whether the file is read
    assert torch.equal(torch.get_rng_state(), drawn)
    file.unlink()
    with random_weights():
        build(name, Task(4))


@pytest.mark.slow
def test_torchvisions_weights_come_from_a_file(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    source = torchvision.models.mobilenet_v3_small(num_classes=9).eval()
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model, x = (
        build(f"torchvision:mobilenet_v3_small:weights={tmp_path / 'w.pth'}", Task(4)).eval(),
        torch.randn(2, 3, 32, 32),
    )
    body = torch.nn.Sequential(
        source.features, source.avgpool, torch.nn.Flatten(), *source.classifier[:-1]
    )
    assert torch.allclose(model.encode(x), body(x), atol=1e-5)
    wide = {
        key: torch.cat([t, t]) if key.startswith("features.1.") and t.ndim else t
        for key, t in source.state_dict().items()
    }
    torch.save(wide, tmp_path / "w.pth")
    with pytest.raises(
        UserError,
        match=r"RuntimeError: Error\(s\) in loading state_dict for MobileNetV3: size mismatch",
    ):
        build(f"torchvision:mobilenet_v3_small:weights={tmp_path / 'w.pth'}", Task(4))


def test_weights_that_cannot_be_downloaded_are_a_line_that_names_the_file_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_url", lambda *_: "http://127.0.0.1:9/model.safetensors"
    )
    begun = time.monotonic()
    with pytest.raises(
        UserError,
        match=(
            r"cannot be downloaded \(127.0.0.1:9: .*give them as a file,"
            r" timm:resnet10t:weights=FILE"
        ),
    ):
        build("timm:resnet10t:pretrained", GREY)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("torchvision:resnet19", Task(4), "torchvision has no 'resnet19'; near names: resnet18, "),
        ("torchvision:fcn_resnet50", Task(4), "torchvision has no 'fcn_resnet50'"),
        ("timm:resnet10t", Task(4, (3, 50)), r"is for images, and the inputs are series \[3, 50\]"),
        (
            "torchvision:resnet18",
            GREY,
            "is for images of 3 channels, and they have 1; timm's models take any number",
        ),
        ("timm:dla34", GREY, "its classifier is a Conv2d, and one linear layer is needed"),
        (
            "timm:inception_v3",
            GREY,
            r"for images \[1, 32, 32\]: RuntimeError: Calculated padded input size",
        ),
        (
            "torchvision:vit_b_16",
            Task(4),
            "AssertionError: Wrong image height! Expected 224 but got 32!",
        ),
    ],
)
def test_a_name_that_gives_no_model_is_one_line(name: str, task: Task, expected: str) -> None:
    """On a device without numbers, so that no weights are drawn for a model that is refused."""
    with pytest.raises(UserError, match=expected) as error, torch.device("meta"):
        build(name, task)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x04\x95"])
def test_a_file_that_holds_no_weights_is_one_line(content: bytes, tmp_path: Path) -> None:
    for suffix in ("pt", "safetensors"):
        file = tmp_path / f"broken.{suffix}"
        file.write_bytes(content)
        with pytest.raises(
            UserError, match=f"{file} holds no weights as safetensors or torch.save write them"
        ) as error:
            build(f"timm:resnet10t:weights={file}", GREY)
        assert len(str(error.value).splitlines()) == 1
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")  # torch advises to execute it
    with pytest.raises(UserError, match=r"holds no weights as .* torch.save write them$"):
        build(f"timm:resnet10t:weights={tmp_path / 'module.pt'}", GREY)
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(
        UserError, match=r"its weights lack \d+ of its \d+ tensors: conv1.0.weight, "
    ):
        build(f"timm:resnet10t:weights={tmp_path / 'other.pt'}", GREY)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_the_weights_of_a_larger_model_are_refused_in_a_line(
    library: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = timm if library == "timm" else pytest.importorskip("torchvision").models
    create = (
        timm.create_model
        if library == "timm"
        else lambda name, **keys: models.get_model(name, weights=None, **keys)
    )
    state = create("resnet18", num_classes=4).state_dict()
    deeper = {
        f"layer1.2.{key}": torch.zeros(3)
        for key in (
            "conv1.weight",
            "bn1.weight",
            "bn1.bias",
            "conv2.weight",
            "bn2.num_batches_tracked",
        )
    }
    with caplog.at_level(logging.WARNING):
        torch.save(state | deeper, tmp_path / "resnet34.pt")
        with pytest.raises(
            UserError,
            match=r"4 of the 127 tensors in its weights are not its own: layer1.2.conv1.weight, ",
        ) as error:
            build(f"{library}:resnet18:weights={tmp_path / 'resnet34.pt'}", Task(4))
    assert len(str(error.value).splitlines()) == 1
    assert not caplog.records
    counted = {
        key: tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")
    }
    torch.save(counted, tmp_path / "resnet18.pt")
    model = build(f"{library}:resnet18:weights={tmp_path / 'resnet18.pt'}", Task(4))
    assert torch.equal(model.last_layer().weight, state["fc.weight"])


@pytest.mark.slow
def test_a_client_reads_the_file_until_it_has_a_model_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors.torch.save_file(
        timm.create_model("test_resnet", num_classes=10).state_dict(), tmp_path / "w.safetensors"
    )
    keys = {
        "models": f"timm:test_resnet:weights={tmp_path / 'w.safetensors'}",
        "clients": 2,
        "partition.kind": "iid",
        "dataset": "synthetic:60",
    }
    seen: list[str] = []
    real = weights.read
    monkeypatch.setattr(
        weights, "read", lambda file, name: (seen.append(name), real(file, name))[1]
    )
    monkeypatch.setattr(MODELS, "take", lambda *_: None)
    counted = []
    for rounds in (1, 2):
        done = run_locally(tmp_path / str(rounds), keys | {"method": "fedssa", "rounds": rounds})
        assert done.code == 0, done.stderr
        counted.append(len(seen))
        seen.clear()
    assert counted[0] == counted[1] >= 2


def test_names_with_files_are_absolute_in_a_run_and_several_models_stand_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = run_config({"models": "timm:resnet10t:weights=w.pt, cnn1,my:Own"})
    monkeypatch.chdir("/tmp")
    found = located(config, Path("x")).experiment.models
    assert str(found) == "timm:resnet10t:weights=/tmp/w.pt, cnn1,my:Own"
    assert make(from_flat({"models": "timm:resnet10t, cnn5"})).model_of(2) == ModelSpec(
        "timm:resnet10t"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:mobilenetv3_small_050", "torchvision:mobilenet_v3_small"])
def test_an_exported_client_is_loaded_by_its_library_and_by_name(name: str, tmp_path: Path) -> None:
    library, _, architecture = name.partition(":")
    trained, file = untrained("standalone", models=name), tmp_path / "model.safetensors"
    assert export(trained, "safetensors", file) < 1e-5
    models = timm if library == "timm" else pytest.importorskip("torchvision").models
    theirs = (
        timm.create_model(architecture, num_classes=10)
        if library == "timm"
        else models.get_model(architecture, num_classes=10)
    )
    theirs.load_state_dict(timm.models.load_state_dict(file))
    again, x = build(f"{name}:weights={file}", Task(10)).eval(), torch.randn(2, 3, 32, 32)
    for model in (theirs.eval(), again):
        assert torch.allclose(model(x), trained.module(x), atol=1e-5)
    text = (tmp_path / "model.safetensors.md").read_text()
    assert (
        f"by the names of the module's own state_dict (`models={name}:weights=model.safetensors`"
        " begins with them)" in text
    )
