"""What the wrong inputs of `wrong_inputs.py` find in their folder: models and methods with faults,
datasets with faults, broken runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from PIL import Image

from pfedlora_flwr.data import datasets, hub
from pfedlora_flwr.launch.processes import free_port
from tests.conftest import run_locally
from tests.models import bases

Maker = Callable[[Path], object]
"""Makes something in a folder; one that returns a context manager holds it while the command
runs."""

MODELS = """
import torch
from torch import nn

class Good(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.lin = nn.Linear(3072, 20)
        self.head = nn.Linear(20, classes)
    def encoder(self, inputs):
        return self.lin(inputs.flatten(1))

class Equal(Good):
    def forward(self, inputs):
        return self.head(torch.dropout(self.encoder(inputs), 0.5, self.training))

class Late(Good):
    def encoder(self, inputs):
        if self.training:
            raise ValueError("in training alone")
        return super().encoder(inputs)

class NoHead(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.encoder = nn.Flatten()

class OtherHead(Good):
    def __init__(self, classes):
        super().__init__(classes)
        self.head = nn.Linear(20, 7)

class NoSuper(nn.Module):
    def __init__(self, classes):
        self.head = nn.Linear(20, classes)

class Lazy(Good):
    def __init__(self, classes):
        super().__init__(classes)
        self.later = nn.LazyLinear(5)

class Tied(Good):
    def __init__(self, classes):
        super().__init__(classes)
        self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)
        self.other.weight = self.one.weight

def function(classes):
    return 3

value = 3
"""
MODELS_OF_ONE_MEMBER = """
Differs.forward(self, inputs): return self.head(self.encoder(inputs - 0.5)).softmax(1)
NoLinear.forward(self, inputs): return inputs.flatten(1)[:, :10]
ForwardRaises.forward(self, inputs): raise RuntimeError("in forward")
ConstructorRaises.__init__(self, classes): raise RuntimeError("in the constructor")
EncoderRaises.encoder(self, inputs): return nn.functional.conv2d(inputs, torch.zeros(4, 1, 5, 5))
EncoderNone.encoder(self, inputs): return None
Wide.encoder(self, inputs): return inputs.flatten(1)
Maps.encoder(self, inputs): return inputs
Double.encoder(self, inputs): return super().encoder(inputs).double()
Nan.encoder(self, inputs): return super().encoder(inputs) * float("nan")
"""
"""Of subclasses of Good."""
FUNCTIONS = """
import numpy as np

def right():
    labels = np.arange(40) % 4
    return np.eye(4)[labels] + np.arange(40)[:, None], labels, list("abcd")

def with_path(data_path):
    names = ("inputs", "labels", "class_names", "clients")
    return dict(zip(names, (*right(), np.arange(40) // 20)))

def raises():
    raise RuntimeError("in the function")

def none():
    return None

def other():
    return {"inputs": [[1, 2, 3]], "labels": [0], "weights": [1]}

def uneven():
    return [[1, 2], [3]], [0, 1], None

def short():
    return [[1, 2, 3]] * 4, [0, 1, 0], None

value = 3
"""
METHODS = """
import sys
from dataclasses import dataclass
import torch
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Method, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.standalone import Standalone

class CheckRaises(PFedLoRA):
    @classmethod
    def check_experiment(cls, experiment):
        raise KeyError("in check_experiment")

class AggregateNan(PFedLoRA):
    def aggregate(self, uploads, state, round):
        factor = float("nan") if round == 2 else 1
        return {name: tensor * factor for name, tensor in state.items()}

class AggregateKeeps(PFedLoRA):
    def aggregate(self, uploads, state, round):
        self.momentum = round
        return state

class OptionsPlain(PFedLoRA):
    class Options(PFedLoRA.Options):
        rate: float = 1.0

class OptionsThawed(PFedLoRA):
    @dataclass
    class Options:
        rate: float = 1.0

class OptionsBare(PFedLoRA):
    class Options:
        rate = 1.0

class LocalNan(PFedLoRA):
    def local_update(self, model, received, data, visit):
        return Upload({name: tensor * float("nan") for name, tensor in received.items()}, len(data))

class LocalOther(PFedLoRA):
    def local_update(self, model, received, data, visit):
        return Upload({"other": torch.zeros(2)}, len(data))

class Grows(PFedLoRA):
    averages = False
    def aggregate(self, uploads, state, round):
        return state | {f"table {round}": torch.zeros(round, 3)}
    def download(self, state, client, round):
        return {name: tensor for name, tensor in state.items() if "table" not in name}

class Abstract(Method):
    pass

class WrongModel(Standalone):
    def state_init(self, seed):
        return self.client_model(0).extractor_tensors()
    def local_update(self, model, received, data, visit):
        model.load_extractor(received)
        return Upload(model.extractor_tensors(), len(data))
    def aggregate(self, uploads, state, round):
        return state

class NeedsOne(WrongModel):
    one_model = True

class Options(PFedLoRA):
    @dataclass(frozen=True)
    class Options(PFedLoRA.Options):
        strength: float = key(1.0, "how much", low=0)
        name: str = key("a", "a name")
"""
METHODS_OF_ONE_MEMBER = """
InitRaises.__init__(self, experiment, classes): raise RuntimeError("in the constructor")
StateNone.state_init(self, seed): return None
StateLists.state_init(self, seed): return {"a": [1.0]}
Integers.state_init(self, seed): return super().state_init(seed) | {"steps": torch.tensor([3])}
PrivateNone.private_init(self, client, seed): return None
DownloadRaises.download(self, state, client, round): raise RuntimeError("in download")
DownloadNone.download(self, state, client, round): return None
AggregateNone.aggregate(self, uploads, state, round): return None
AggregateRaises.aggregate(self, uploads, state, round): raise RuntimeError("in aggregate")
AggregateOther.aggregate(self, uploads, state, round): return {"foo": torch.zeros(3)}
LocalFloat.local_update(self, model, received, data, visit): return Upload(received, 3.7)
LocalList.local_update(self, model, received, data, visit): return Upload({"one": [1.0]}, len(data))
LocalExits.local_update(self, model, received, data, visit): sys.exit(5)
LocalImages.local_update(self, model, received, data, visit): return Upload({}, len(data.images))
LocalNone.local_update(self, model, received, data, visit): return None
LocalCount.local_update(self, model, received, data, visit): return Upload(dict(received), -1)
PredictShape.predictor(self, model): return lambda inputs: torch.zeros(3, 3)
PredictRaises.predictor(self, model): raise RuntimeError("in predictor")
"""
"""Of subclasses of PFedLoRA."""
BROKEN = {
    "broken_exits.py": "import sys\nsys.exit(3)\n",
    "broken_syntax.py": "x = 1\ndef f(:\n",
    "broken_import.py": "\nraise KeyError('gone')\n",
    "broken_needs.py": "import no_such_package\n",
    "broken_bytes.py": "x = 1\n\0\n",
    "broken_patience.py": "raise KeyboardInterrupt\n",
}
OWN_MODULES = [
    name.removesuffix(".py") for name in (*BROKEN, "own_models.py", "own_methods.py", "own_data.py")
]


def files(**contents: str | bytes) -> Maker:
    """Files by name (`__` for a dot; `run__` for `run/`)."""

    def make(folder: Path) -> None:
        for name, content in contents.items():
            path = folder / name.replace("run__", "run/").replace("__", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def classes(base: str, members: str) -> str:
    """The source of subclasses that differ by a member: `Class.member(…): statement`."""
    lines = (line.partition(".") for line in members.strip().splitlines())
    return "".join(f"class {name}({base}):\n    def {member}\n" for name, _, member in lines)


MODELS += classes("Good", MODELS_OF_ONE_MEMBER)
METHODS += classes("PFedLoRA", METHODS_OF_ONE_MEMBER)


def own_code(folder: Path) -> None:
    """The modules above."""
    own = {"own_models.py": MODELS, "own_methods.py": METHODS, "own_data.py": FUNCTIONS}
    for name, text in (BROKEN | own).items():
        (folder / name).write_text(text)


def run_of_own_code(*settings: str, output: str = "run") -> list[str]:
    """The words of a small run in `output`, by the local engine, with these settings."""
    few = ("clients=2", "partition.kind=iid", "rounds=2", "dataset=synthetic:100")
    words = [word for setting in (*few, f"output={output}", *settings) for word in ("-o", setting)]
    return ["run", "--engine", "local", "--quiet", *words]


# Data


def npz(images: Any, labels: Any, key: str = "images", **more: Any) -> Maker:
    """`own.npz`; `images` is a shape or an array, which it has as `key`."""

    def make(folder: Path) -> None:
        pixels = np.zeros(images, np.uint8) if isinstance(images, tuple) else images
        np.savez(folder / "own.npz", labels=np.asarray(labels), **{key: pixels}, **more)

    return make


def base(seed: int = 0) -> Maker:
    """`test_efficientnet-SEED.safetensors`, weights of one of timm's models."""
    return lambda folder: bases.base(folder, "test_efficientnet", seed) and None


def base_that_changed(folder: Path) -> None:
    """`based`, a run that trained LoRA on a frozen base, whose file was then replaced."""
    keys = {"clients": 1, "dataset": "synthetic:100", "partition.kind": "iid", "rounds": 1}
    models = bases.base(folder, "test_efficientnet")
    assert run_locally(folder / "based", keys | {"models": models, "train": "lora"}).code == 0
    other = folder / "test_efficientnet-1.safetensors"
    bases.base(folder, "test_efficientnet", 1)
    other.replace(folder / "test_efficientnet-0.safetensors")


def texts(rows: str = "", *, tokeniser: bool = True) -> Maker:
    """`docs.csv`, texts of two classes or these rows, and `bert-32-3`, a small model of text."""

    def make(folder: Path) -> None:
        bases.documents(folder / "docs.csv")
        if rows:
            (folder / "docs.csv").write_text(rows)
        with redirect_stderr(io.StringIO()):  # transformers' progress
            bases.text_base(folder)
        if not tokeniser:
            (folder / "bert-32-3" / "tokenizer.json").unlink()

    return make


def raw(name: str, content: bytes) -> Maker:
    """A file of these bytes."""

    def make(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return make


def cut_npz(folder: Path) -> None:
    npz((30, 32, 32, 3), np.arange(30) % 3)(folder)
    cut(folder / "own.npz")


def images(tree: dict[str, list[str | bytes]]) -> Maker:
    """`own`, a folder for each class with these files: an image's suffix, or what stands in
    `i.png`."""

    def make(folder: Path) -> None:
        (folder / "own").mkdir()
        for name, inside in tree.items():
            (folder / "own" / name).mkdir(exist_ok=True)
            for i, what in enumerate(inside):
                if isinstance(what, bytes):
                    (folder / "own" / name / f"{i}.png").write_bytes(what)
                else:
                    Image.new("RGB", (8, 8), (i, 2 * i, 200)).save(
                        folder / "own" / name / f"{i}.{what}"
                    )

    return make


def picture(suffix: str = "png") -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(stream, suffix)
    return stream.getvalue()


def broken_picture() -> bytes:
    """A PNG whose second block of data has no valid name, at which Pillow raises a SyntaxError."""
    stream = io.BytesIO()
    Image.effect_noise((300, 300), 50).save(stream, "PNG")
    whole = stream.getvalue()
    second = whole.index(b"IDAT", whole.index(b"IDAT") + 4)
    return whole[: second - 4] + b"\xff" * 8 + whole[second + 4 :]


def parquet(
    path: Path, label: int = 0, column: str = "label", size: int = 32, count: int = 10
) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (size, size)).save(stream, "PNG")
    rows = [{"bytes": stream.getvalue(), "path": None}] * count
    pq.write_table(pa.table({"img": rows, column: [label] * count}), path)


@contextmanager
def no_hub(folder: Path) -> Iterator[None]:
    """Hugging Face's hub is at a port that takes connections and never answers; nobody waits
    long."""
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        patch.setattr(hub, "_SECONDS", 1.0)
        yield


def parquets(train: dict[str, Any], test: dict[str, Any] | None) -> Maker:
    """`data` with train.parquet and test.parquet."""

    def make(folder: Path) -> None:
        (folder / "data").mkdir()
        parquet(folder / "data" / "train.parquet", **train)
        if test is not None:
            parquet(folder / "data" / "test.parquet", **test)

    return make


def cut_parquet(folder: Path) -> None:
    parquets({}, {})(folder)
    cut(folder / "data" / "train.parquet")


def batches(content: object) -> Maker:
    """`data` with the first of CIFAR-10's official batches."""

    def make(folder: Path) -> None:
        (folder / "data" / "cifar-10-batches-py").mkdir(parents=True)
        (folder / "data" / "cifar-10-batches-py" / "data_batch_1").write_bytes(
            pickle.dumps(content)
        )

    return make


# Runs


def cut(path: Path, share: float = 0.5) -> None:
    """Leaves the first part of a file."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])


def flip(path: Path) -> None:
    """Changes the last byte of a file."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def changed(name: str, old: str, new: str) -> Maker:
    """In a text file of the run another text, which must be there."""

    def change(folder: Path) -> None:
        path = folder / "run" / name
        text = path.read_text()
        assert old in text, (name, old)
        path.write_text(text.replace(old, new))

    return change


def written(name: str, text: str | bytes) -> Maker:
    """A file of the run with another content."""

    def write(folder: Path) -> None:
        path = folder / "run" / name
        assert path.exists(), name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def each(pattern: str, action: Callable[[Path], object]) -> Maker:
    """The action on all of the run's files of this pattern, of which there must be some."""

    def act(folder: Path) -> None:
        found = sorted((folder / "run").glob(pattern))
        assert found, pattern
        for path in found:
            action(path)

    return act


def cut_lines(name: str) -> Maker:
    """A table without its last line."""
    return each(
        name, lambda path: path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    )


emptied = partial(each, action=lambda path: path.write_bytes(b""))
gone = partial(each, action=Path.unlink)
halved = partial(each, action=cut)
flipped = partial(each, action=flip)


def result(**fields: object) -> Maker:
    """The run's result with other fields; ...: without the field."""

    def change(folder: Path) -> None:
        path = folder / "run" / "result.json"
        kept = {
            name: value
            for name, value in (json.loads(path.read_text()) | fields).items()
            if value is not ...
        }
        path.write_text(json.dumps(kept))

    return change


def locked(name: str) -> Callable[[Path], AbstractContextManager[object]]:
    """A lock that another process holds."""
    return lambda folder: FileLock(folder / name)


PORT = free_port()


@contextmanager
def listening(folder: Path) -> Iterator[None]:
    """Something on PORT."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", PORT))
        taken.listen()
        yield


def connections(text: str) -> Maker:
    """Flower's configuration, in `flower`."""

    @contextmanager
    def within(place: Path) -> Iterator[None]:
        (place / "flower").mkdir()
        (place / "flower" / "config.toml").write_text(text)
        with environment(FLWR_HOME="flower")(place):  # type: ignore[attr-defined]
            yield

    return within


@contextmanager
def removed_folder(place: Path) -> Iterator[None]:
    """The current folder is one that has been removed."""
    (place / "here").mkdir()
    os.chdir(place / "here")
    (place / "here").rmdir()
    yield
    os.chdir(place)


@contextmanager
def full_stdout(place: Path) -> Iterator[None]:
    with suppress(OSError), open("/dev/full", "w") as full, redirect_stdout(full):
        yield


def environment(**variables: str) -> Maker:
    @contextmanager
    def within(place: Path) -> Iterator[None]:
        before = {name: os.environ.get(name) for name in variables}
        os.environ |= variables
        yield
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {name: value} if value is not None else {}

    return within


@contextmanager
def cut_cache(place: Path) -> Iterator[None]:
    """A cache of `synthetic:120` whose images are cut off."""
    with environment(PFEDLORA_CACHE=str(place / "cache"))(place):  # type: ignore[attr-defined]
        datasets.load("synthetic:120")
        datasets.load.cache_clear()
        cut(next((place / "cache").glob("*/inputs.npy")))
        yield


def folder(name: str, *inside: str) -> Maker:
    def make(place: Path) -> None:
        (place / name).mkdir(parents=True)
        for file in inside:
            (place / name / file).write_text("irreplaceable")

    return make


def link(name: str, target: str) -> Maker:
    return lambda place: os.symlink(target, place / name)


def without(*names: str) -> Maker:
    """The run without these files and folders."""

    def remove(place: Path) -> None:
        for name in names:
            path = place / "run" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove
