"""Datasets: every format gives the same pixels, the cache survives a race, broken files are one
clear line."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pfedlora_flwr.data import datasets, local
from pfedlora_flwr.data.cifar import CIFAR10
from pfedlora_flwr.data.normalisation import of_all_pixels
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError

pytestmark = pytest.mark.usefixtures("own_place")


def some(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count)


def write_parquet(folder: Path, name: str, images: np.ndarray, labels: np.ndarray) -> None:
    rows = []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        rows.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"img": rows, "label": labels}), folder / f"{name}.parquet")


def test_parquet_and_official_batches_give_the_same_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision takes batches by their hashes, which small ones do not have."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    parts = {"train": some(50, 0), "test": some(10, 1)}
    parquet, official = tmp_path / "parquet", tmp_path / "official" / "cifar-10-batches-py"
    parquet.mkdir()
    official.mkdir(parents=True)
    for name, (images, labels) in parts.items():
        write_parquet(parquet, name, images, labels)
    images, labels = (np.concatenate(both) for both in zip(*parts.values(), strict=True))
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        part = slice(10 * i, 10 * i + 10)
        rows = images[part].transpose(0, 3, 1, 2).reshape(10, 3072)
        (official / name).write_bytes(pickle.dumps({"data": rows, "labels": labels[part].tolist()}))
    meta = {"label_names": list(CIFAR10.class_names)}
    (official / "batches.meta").write_bytes(pickle.dumps(meta))
    for place in (parquet, official.parent, official):
        dataset = datasets.load("cifar10", Reading(data_path=str(place)))
        assert np.array_equal(dataset.inputs, images)
        assert np.array_equal(dataset.labels, labels)
        assert dataset.class_names[3] == "cat"


def test_statistics_and_normalisation_match_numpy(tmp_path: Path) -> None:
    images, labels = some(40, 2)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    dataset = datasets.load(f"npz:{tmp_path / 'a.npz'}")
    scaled = images.astype(np.float64) / 255
    assert np.allclose(dataset.mean, scaled.mean((0, 1, 2)))
    assert np.allclose(dataset.std, scaled.std((0, 1, 2)))
    ours = dataset.kind.samples(
        torch.from_numpy(images), torch.from_numpy(labels), dataset.mean, dataset.std
    ).batch(slice(None))
    assert ours.shape == (40, 3, 32, 32)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    theirs = ((scaled - scaled.mean((0, 1, 2))) / scaled.std((0, 1, 2))).transpose(0, 3, 1, 2)
    assert np.allclose(ours.numpy(), theirs, atol=1e-5)


@pytest.mark.slow
def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    ours = datasets.load("digits")
    assert ours.inputs.shape == (1797, 32, 32, 3)
    assert np.array_equal(ours.labels, load_digits().target)
    assert np.allclose(ours.inputs[:, ::4, ::4, 0] * (16 / 255), load_digits().images, atol=0.05)


@pytest.mark.slow
def test_two_processes_that_build_the_cache_at_once_agree(tmp_path: Path) -> None:
    code = (
        "from pfedlora_flwr.data.datasets import load; d = load('synthetic:3000');"
        " print(int(d.inputs.sum()), int(d.labels.sum()))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for _ in range(2)
    ]
    printed = {process.communicate(timeout=60)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(printed) == 1
    assert len([p for p in (tmp_path / "cache").iterdir() if p.is_dir()]) == 1, (
        "a half-built cache was left"
    )


def test_a_folder_of_images_a_class(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "own" / name).mkdir(parents=True)
        Image.new("L", (100, 60), 40 if name == "cats" else 200).save(
            tmp_path / "own" / name / "a.jpg"
        )
    name = f"folder:{tmp_path / 'own'}"
    dataset = datasets.load(name)
    assert dataset.class_names == ("cats", "dogs")
    assert (dataset.inputs.shape, dataset.shape, dataset.resized) == (
        (2, 60, 100, 3),
        (3, 60, 100),
        0,
    )
    assert abs(int(dataset.inputs[1].mean()) - 200) < 3
    (tmp_path / "own" / "birds").mkdir()
    datasets.load.cache_clear()
    assert datasets.load(name).class_names == ("birds", "cats", "dogs"), "it was kept before"
    (tmp_path / "own" / "birds").rmdir()
    small = datasets.load(name, Reading(size=(32, 32), grey=True))
    assert (small.inputs.shape, small.shape, small.resized) == ((2, 32, 32, 1), (1, 32, 32), 2)
    Image.new("RGB", (64, 60)).save(tmp_path / "own" / "cats" / "b.png")
    with pytest.raises(
        UserError,
        match=(
            r"have different sizes \(cats/a.jpg has 60 × 100 pixels and cats/b.png has 60 × 64"
            r" pixels\): set image-size"
        ),
    ):
        datasets.load(f"folder:{tmp_path / 'own' / '..' / 'own'}")


def test_a_folder_may_have_any_name_that_fits(tmp_path: Path) -> None:
    for label in ("a", "b'\u03b4 \u4e2d$"):
        (tmp_path / "own" / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "own" / label / "x.png")
    assert len(datasets.load(f"folder:{tmp_path / 'own'}").class_names) == 2
    with pytest.raises(UserError, match="name too long"):
        datasets.load(f"csv:{'x' * 300}.csv")


def test_a_constant_channel_has_deviation_1() -> None:
    images = np.zeros((10, 2, 2, 3), np.uint8)
    images[:, 0, 0, 0], images[..., 1] = np.arange(10), 7
    mean, std = of_all_pixels(images)
    assert std[1:] == (1, 1)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)) / 255)
    np.testing.assert_allclose(std[0], (images[..., 0] / 255).std())


def test_only_a_cifar_that_is_not_here_needs_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path))
    (tmp_path / "downloads" / "cifar-10-batches-py").mkdir(parents=True)
    assert datasets.needs_download("cifar100")
    assert not any(
        datasets.needs_download(*words)
        for words in (("cifar10",), ("cifar100", Reading(data_path="there")), ("digits",))
    )


def test_of_inputs_on_a_gpu_no_others_get_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's copy does not keep the inputs alive, and memory that is free is given again."""
    monkeypatch.setattr(local, "_RESIDENT", {})
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor.clone())
    for i in range(20):
        data = datasets.Dataset("own", np.full((3, 4), i), np.arange(3), ("0", "1", "2"))
        assert local._on_gpu(data, torch.device("cpu"))[0, 0] == i
        del data
    assert len(local._RESIDENT) == 4
