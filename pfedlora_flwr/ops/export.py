"""`pfedlora export`: a client's personalised model as one file for other programs, with a model
card; or what LoRA learned, as peft's folder.

It is written aside, loaded again by the library that will read it, and compared with the model's
own outputs; only then does it take its name."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.fx
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError, needed
from pfedlora_flwr.files import (
    absolute,
    check_folder,
    check_replaceable,
    make_folder,
    write_atomically,
)
from pfedlora_flwr.methods.lora_factors import is_factor
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models import lora
from pfedlora_flwr.models.kept import frozen_names
from pfedlora_flwr.models.model import ClientModel, given_names
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.ops.card import card, side_of
from pfedlora_flwr.runs import shared_state
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import Trained

SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx", "peft": ""}
TOLERANCE = 1e-4
"""Of a logit, or of the largest one where that is above 1."""
_ANY_NUMBER = ({0: torch.export.Dim("n", min=1)},)

Exported = Callable[[Tensor], Tensor]
"""An exported model loaded again: images float32 [n, *shape] in [0, 1], or series and vectors
float64 [n, *shape] → logits [n, classes]."""


class WithNormalisation(nn.Module):
    """A client model with its normalisation: it takes images in [0, 1], series and vectors as they
    come, in float64, and normalises them before they become float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: ClientModel, trained: Trained) -> None:
        super().__init__()
        self.model, self.task = model, trained.task
        self.fill = trained.experiment.data.missing != "refuse"
        mean, std = _constants(trained)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs, [n, *shape] → logits, [n, classes]. Raises UserError for another shape: the
        normalisation would broadcast it."""
        kind, shape = self.task.kind, self.task.shape
        if tuple(inputs.shape[1:]) != shape or inputs.ndim == 0:
            raise UserError(f"inputs are {[*inputs.shape]}; the model takes {['n', *shape]}")
        return self.model(kind.normalised(inputs, self.mean, self.std, fill=self.fill))


def export(trained: Trained, format: str, output: Path, *, overwrite: bool = False) -> float:
    """Writes the model to `output` and its card to `output`.md, or of peft to the README.md of the
    folder `output`; the largest difference of a logit from the model's own.

    format: safetensors (the weights), torch-export or onnx (whole programs), peft (LoRA and the
    head alone). LoRA is merged into the weights of the others. Each holds `metadata` too,
    torch-export in its extra file `metadata.json`. Raises UserError when a library is missing, the
    model cannot be exported, or its outputs would differ, and for a file that is there, unless
    it is to be overwritten; what is no regular file never is."""
    if format not in SUFFIXES:
        raise UserError(f"format is {format!r}; allowed: {', '.join(SUFFIXES)}")
    if format == "peft":
        return _peft(trained, output, overwrite=overwrite)
    about = output.with_name(output.name + ".md")
    for file in (output, about):
        check_replaceable(file, overwrite=overwrite)
    make_folder(output.parent)
    predictor = trained.method.predictor(trained.module)
    plain = (
        lora.without(predictor, merge=True) if format == "safetensors" else lora.program(predictor)
    )
    whole = WithNormalisation(plain, trained).eval()
    aside = output.with_name(f".{os.getpid()}.{output.stem}{SUFFIXES[format]}")
    write = {"safetensors": _safetensors, "torch-export": _torch_export, "onnx": _onnx}[format]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporters', about their own insides
            exported = write(trained, whole, aside)
        difference = _difference(trained, exported)
        write_atomically(about, card(trained, format, output.name, difference).encode())
        aside.replace(output)
    except (OSError, RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        raise _unwritten(output, error) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return difference


def export_shared(place: Path, output: Path | None, *, overwrite: bool = False) -> Path:
    """Writes the shared state of the run in `place` to a file, otherwise shared.safetensors, and
    returns its path. Raises UserError."""
    check_folder(place)
    target = absolute(output or "shared.safetensors")
    check_replaceable(target, overwrite=overwrite)
    shared_state.of_run(RunDirectory(place)).write(target, overwrite=overwrite)
    return target


def _unwritten(target: Path, error: Exception) -> UserError:
    why = (error.strerror if isinstance(error, OSError) else None) or next(
        iter(str(error).splitlines()), repr(error)
    )
    return UserError(f"the model cannot be exported to {target}: {why}")


def _peft(trained: Trained, folder: Path, *, overwrite: bool) -> float:
    """As `export`, to a folder."""
    predictor = trained.method.predictor(trained.module)
    names = (*lora.files(predictor), "README.md")
    for name in names:
        check_replaceable(folder / name, overwrite=overwrite)
    lora.check_one(predictor)
    frozen = {name for name in frozen_names(predictor) if not is_factor(name)}
    if not frozen <= given_names(predictor):
        raise UserError(
            f"format peft leaves the frozen weights out, and those of {predictor.description} were"
            " drawn at random: give format=safetensors"
        )
    make_folder(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".aside-", dir=folder) as place:
            aside = Path(place)
            lora.write(predictor, aside, metadata(trained, "safetensors"))
            difference = _difference(trained, _by_peft(trained, aside))
            text = card(trained, "peft", folder.name, difference)
            write_atomically(aside / "README.md", text.encode())
            for name in names:
                (aside / name).replace(folder / name)
    except (OSError, RuntimeError) as error:
        raise _unwritten(folder, error) from None
    return difference


def _by_peft(trained: Trained, folder: Path) -> Exported:
    """The base with a head drawn at random, and what peft makes of it and the folder."""
    with random_weights():
        fresh = trained.method.predictor(trained.method.private_init(trained.client, 0))
    module = lora.loaded(fresh, folder)
    mean, std = _constants(trained)
    return lambda inputs: module(trained.task.kind.normalised(inputs, mean, std))


def _safetensors(trained: Trained, whole: WithNormalisation, path: Path) -> Exported:
    model = whole.model
    names = model.own_names()
    tensors = {names[name]: tensor.contiguous() for name, tensor in tensors_of(model).items()}
    write_atomically(path, safetensors.torch.save(tensors, metadata(trained, "safetensors")))
    with random_weights():
        fresh = trained.method.predictor(trained.method.private_init(trained.client, 0)).eval()
    fresh = lora.without(fresh, merge=False)
    written = safetensors.torch.load_file(path)
    fresh.load_state_dict({name: written[own] for name, own in fresh.own_names().items()})
    return WithNormalisation(fresh, trained)


def metadata(trained: Trained, kind: str) -> dict[str, str]:
    """What a program needs that has the file alone; all but the first two and the last two are
    JSON.

    mean and std: by channel, of images scaled to [0, 1], or by feature. feature_names: of vectors,
    in their order; null where they have none. preprocessing: what is left to do to an input, of
    images in the words of Hugging Face's image processors; do_normalize is false where the model
    does it itself. model_input: to how many pixels a side images are then brought, bicubic; null:
    they stay as they are, or the program does it."""
    mean, std, task = trained.about["mean"], trained.about["std"], trained.task
    preprocessing = {"do_normalize": kind == "safetensors"}
    preprocessing |= task.kind.preprocessing(task.shape, mean, std)
    return {
        "architecture": trained.method.predictor(trained.module).description,
        "kind": task.kind.name,
        "class_names": json.dumps(trained.class_names),
        "feature_names": json.dumps(trained.feature_names or None),
        "mean": json.dumps(mean),
        "std": json.dumps(std),
        "input": json.dumps(["n", *task.shape]),
        "input_dtype": json.dumps(str(task.kind.program).removeprefix("torch.")),
        "preprocessing": json.dumps(preprocessing),
        "model_input": json.dumps(side_of(trained) if kind == "safetensors" else None),
        "client": str(trained.client),
        "round": str(trained.round),
    }


def _torch_export(trained: Trained, whole: WithNormalisation, path: Path) -> Exported:
    program = torch.export.export(whole, (_blank(trained),), dynamic_shapes=_ANY_NUMBER)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it names files of this machine
    about = {"metadata.json": json.dumps(metadata(trained, "torch-export"))}
    held = io.BytesIO()  # PyTorch's own writer ends the process on a full disk
    torch.export.save(program, held, extra_files=about)
    write_atomically(path, held.getvalue())
    return torch.export.load(path).module()


def _onnx(trained: Trained, whole: WithNormalisation, path: Path) -> Exported:
    onnxruntime = _extra("onnxruntime")
    onnx = _extra("onnx")
    _extra("onnxscript")
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # what it cannot fold stays as it is
    name = trained.task.kind.input_name
    program = torch.onnx.export(
        whole,
        (_blank(trained),),
        dynamo=True,
        verbose=False,
        input_names=[name],
        output_names=["logits"],
        dynamic_shapes=_ANY_NUMBER,
    )
    assert program is not None
    program.save(path)
    saved = onnx.load(path)
    for holder in (saved.graph, *saved.functions):
        for node in holder.node:
            del node.metadata_props[:]  # the exporter's own, which name files of this machine
    onnx.helper.set_model_props(saved, metadata(trained, "onnx"))
    onnx.save(saved, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(["logits"], {name: inputs.numpy()})[0])


def _blank(trained: Trained) -> Tensor:
    """Two inputs of zeros as a program takes them."""
    return trained.task.blank(2).to(trained.task.kind.program)


def _extra(name: str) -> Any:
    return needed(name, f"the format onnx needs {name}", "onnx onnxscript onnxruntime")


@torch.no_grad()
def _difference(trained: Trained, exported: Exported) -> float:
    """The largest difference of a logit, over random inputs in batches of two sizes. Raises
    UserError where it is no rounding."""
    generator = torch.Generator().manual_seed(0)
    found, sizes, task = [], [1.0], trained.task
    for n in (1, 7):
        raw, given = task.kind.example(task.shape, n, *_constants(trained), generator)
        own = trained.logits(raw.numpy())
        found.append(float((exported(given) - own).abs().max()))
        sizes.append(float(own.abs().max()))
    difference = max(found)
    if not all(one / max(sizes) <= TOLERANCE for one in found):  # nan too
        raise UserError(
            f"the exported model's outputs differ by {difference:g} from the model's own: nothing"
            " was written"
        )
    return difference


def _constants(trained: Trained) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, [channels or features, 1, …] as they stand beside an input."""
    rest, dtype = (1,) * (len(trained.task.shape) - 1), trained.task.kind.program
    mean, std = (
        torch.tensor(trained.about[what], dtype=dtype).reshape(-1, *rest)
        for what in ("mean", "std")
    )
    return mean, std
