"""An exported model gives the logits of the model it comes from, in the program that will read it;
else there is no file."""

from __future__ import annotations

import importlib
import json
import sysconfig
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops import export as exporting
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import Trained, load_trained
from tests.conftest import ROOT, Done

pytestmark = pytest.mark.slow
OF_THIS_MACHINE = str(ROOT), sysconfig.get_path("purelib"), str(Path.home())


@pytest.fixture(scope="module")
def trained(trained_run: Done) -> Trained:
    return load_trained(trained_run.output, 1)


@pytest.fixture(scope="module")
def images(trained_run: Done) -> np.ndarray:
    """The client's test images, uint8 [n, 32, 32, 3]."""
    setup = DataSetup(RunDirectory(trained_run.output).experiment())
    dataset, partition = setup.dataset, setup.partition
    return np.asarray(dataset.inputs[partition.clients[1].test])


def scaled(images: np.ndarray) -> np.ndarray:
    """What an exported program takes: float32 [n, 3, 32, 32] in [0, 1]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)


def test_onnx_in_onnxruntime_gives_the_same_logits(
    trained_run: Done, pfedlora: Any, trained: Trained, images: np.ndarray
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    target = Path("model.onnx").absolute()
    code, out, err = pfedlora(
        "export",
        str(trained_run.output),
        "--client",
        "1",
        "--format",
        "onnx",
        "--output",
        "model.onnx",
    )
    assert code == 0, err
    assert f"{target} and its model card" in out
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    for n in (1, 2, len(images)):
        [logits] = session.run(None, {"images": scaled(images[:n])})
        assert np.abs(logits - trained.logits(images[:n]).numpy()).max() < 1e-4
    assert with_the_file_alone(session, images) == [
        trained.class_names[i] for i in trained.logits(images).argmax(1)
    ]
    assert all(path.encode() not in target.read_bytes() for path in OF_THIS_MACHINE)
    card = Path("model.onnx.md").read_text()
    row = trained_run.result["per_client"]["1"]
    assert f"{round(row['accuracy'] * row['test'])} of {row['test']} correct" in card
    assert "1,815,142 parameters" in card
    assert "last in round 3 of 3, seed 0, 3 clients" in card
    assert trained.sha256 in card


def with_the_file_alone(session: Any, pixels: np.ndarray) -> list[str]:
    """The class names for uint8 [n, 32, 32, 3], by a program that knows nothing but what the ONNX
    file says."""
    about = {
        name: text
        for name, text in session.get_modelmeta().custom_metadata_map.items()
        if name in ("class_names", "preprocessing")
    }
    class_names, todo = (json.loads(about[name]) for name in ("class_names", "preprocessing"))
    assert pixels.shape[1:3] == (todo["size"]["height"], todo["size"]["width"])
    x = pixels.astype(np.float32)
    if todo["do_rescale"]:
        x = x * np.float32(todo["rescale_factor"])
    if todo["do_normalize"]:
        x = (x - np.float32(todo["image_mean"])) / np.float32(todo["image_std"])
    if todo["data_format"] == "channels_first":
        x = x.transpose(0, 3, 1, 2)
    [logits] = session.run(None, {session.get_inputs()[0].name: x})
    return [class_names[i] for i in logits.argmax(1)]


def test_torch_export_gives_the_same_logits(
    trained: Trained, images: np.ndarray, tmp_path: Path
) -> None:
    export(trained, "torch-export", tmp_path / "model.pt2")
    program = torch.export.load(
        tmp_path / "model.pt2", extra_files=(extra := {"metadata.json": ""})
    ).module()
    about = json.loads(extra["metadata.json"])
    assert json.loads(about["class_names"]) == trained.class_names
    assert not json.loads(about["preprocessing"])["do_normalize"]
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        held = b"".join(archive.read(name) for name in archive.namelist())
    assert all(path.encode() not in held for path in OF_THIS_MACHINE)
    torch.testing.assert_close(
        program(torch.from_numpy(scaled(images))), trained.logits(images), rtol=0, atol=1e-4
    )


def test_a_full_disk_is_one_line_of_torch_export(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own writer would end the process."""
    write = exporting.write_atomically

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".pt2":
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(exporting, "write_atomically", full)
    with pytest.raises(UserError, match=r"exported to .*model.pt2: No space left on device"):
        export(trained, "torch-export", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_safetensors_hold_the_weights_and_what_it_takes_to_use_them(
    trained: Trained, images: np.ndarray, tmp_path: Path
) -> None:
    export(trained, "safetensors", tmp_path / "model.safetensors")
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as stored:
        about = stored.metadata()
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no dict
    assert about["architecture"] == "cnn2"
    todo = json.loads(about["preprocessing"])
    assert todo["do_normalize"]
    assert (todo["image_mean"], todo["image_std"]) == (
        json.loads(about["mean"]),
        json.loads(about["std"]),
    )
    x = (scaled(images) - np.array(json.loads(about["mean"]))[:, None, None]) / np.array(
        json.loads(about["std"])
    )[:, None, None]
    f = torch.nn.functional
    x = torch.from_numpy(x.astype(np.float32))
    for name in ("conv1", "conv2"):  # the network of the paper's table, written out
        x = f.max_pool2d(f.relu(f.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"])), 2)
    x = x.flatten(1)
    for name in ("fc1", "fc2", "fc3"):
        x = f.linear(
            x if name == "fc1" else f.relu(x), weights[f"{name}.weight"], weights[f"{name}.bias"]
        )
    torch.testing.assert_close(x, trained.logits(images), rtol=0, atol=1e-4)


def test_a_file_that_would_answer_otherwise_is_never_left(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model.safetensors"
    for wrong in (
        lambda images: torch.zeros(len(images), 10),
        lambda images: torch.full((len(images), 10), torch.nan),
    ):
        monkeypatch.setattr(
            exporting,
            "_safetensors",
            lambda *arguments, wrong=wrong: (Path(arguments[2]).touch(), wrong)[1],
        )
        with pytest.raises(
            UserError, match=r"outputs differ by .* from the model's own: nothing was written"
        ):
            export(trained, "safetensors", target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "off", "fits"), [(150, 1e-3, True), (1, 1e-3, False)])
def test_rounding_is_of_the_largest_logit(size: float, off: float, fits: bool) -> None:
    about = {"mean": [0.0] * 3, "std": [1.0] * 3}
    scores = torch.tensor([[size, 0.0]])
    made: Any = SimpleNamespace(task=Task(2), about=about, logits=lambda _: scores)
    if fits:
        assert exporting._difference(made, lambda _: scores + off) == pytest.approx(off, rel=0.1)
        return
    for wrong in (scores + off, scores * torch.nan, scores * torch.inf):
        with pytest.raises(UserError, match="differ by"):
            exporting._difference(made, lambda _, wrong=wrong: wrong)


def test_an_export_makes_its_folder_and_replaces_what_it_is_told_to(
    trained: Trained, tmp_path: Path
) -> None:
    target = tmp_path / "new" / "folder" / "model.safetensors"
    for overwrite in (False, True):
        assert export(trained, "safetensors", target, overwrite=overwrite) < 1e-4
    assert {path.name for path in target.parent.iterdir()} == {
        "model.safetensors",
        "model.safetensors.md",
    }


def test_a_card_does_not_tell_where_the_images_lie(trained: Trained) -> None:
    changes = {
        "models": "mine:Net",
        "method_options": "teacher=/home/me/secret/best.pt near=~/secret/x share=1/2",
    }
    for dataset, shown in (
        ("npz:/home/me/secret/faces.npz", "npz:faces.npz"),
        ("folder:/home/me/secret/faces", "folder:faces"),
    ):
        own = replace(trained, experiment=trained.experiment.replace(dataset=dataset, **changes))
        text = exporting.card(own, "safetensors", "model", 0.0)
        assert text.count(shown) == 3
        assert "models=mine:Net" in text
        assert "method-options=teacher=best.pt near=x share=1/2" in text
        assert "secret" not in text


def test_a_library_that_is_missing_is_one_clear_line(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> ModuleType:
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        UserError,
        match=(
            r"the format onnx needs onnxruntime, which is not installed: pip install onnx"
            r" onnxscript onnxruntime"
        ),
    ):
        export(trained, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
