"""`pfedlora export`: a client's personalised model as one file for other programs, with a model
card; or what LoRA learned, as peft's folder.

It is written aside, loaded again by the library that will read it, and compared with the model's
own outputs; only then does it take its name."""

from __future__ import annotations

import contextlib
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

from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.errors import UserError, needed, some
from pfedlora_flwr.files import check_replaceable, make_folder, write_atomically
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.lora_factors import is_factor
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models import lora
from pfedlora_flwr.models.kept import base_of, frozen_names
from pfedlora_flwr.models.model import ClientModel, given_names
from pfedlora_flwr.models.named import is_library, made_with, random_weights
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.runs import shared_state
from pfedlora_flwr.runs.data_name import client_data, is_own
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.output import without_folders
from pfedlora_flwr.runs.trained import Trained
from pfedlora_flwr.training.kinds import TEXT

SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx", "peft": ""}
TOLERANCE = 1e-4
_BATCHES = (1, 7)
_ANY_NUMBER = ({0: torch.export.Dim("n", min=1)},)
_NAMED = 30

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
        self.model, self.kind = model, trained.task.kind
        mean, std = _constants(trained)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs, [n, *shape] → logits, [n, classes]."""
        return self.model(self.kind.normalised(inputs, self.mean, self.std))


def export(trained: Trained, kind: str, target: Path, *, overwrite: bool = False) -> float:
    """Writes the model to `target` and its card to `target`.md, or of peft to the README.md of the
    folder `target`; the largest difference of a logit from the model's own.

    kind: safetensors (the weights), torch-export or onnx (whole programs), peft (LoRA and the head
    alone). LoRA is merged into the weights of the others. Each holds `metadata` too, torch-export
    in its extra file `metadata.json`. Raises UserError when a library is missing,
    the model cannot be exported, or its outputs would differ, and for a file that is there, unless
    it is to be overwritten; what is no regular file never is."""
    if kind not in SUFFIXES:
        raise UserError(f"format is {kind!r}; allowed: {', '.join(SUFFIXES)}")
    if kind == "peft":
        return _peft(trained, target, overwrite=overwrite)
    about = target.with_name(target.name + ".md")
    for file in (target, about):
        check_replaceable(file, overwrite=overwrite)
    make_folder(target.parent)
    predictor = trained.method.predictor(trained.module)
    plain = (
        lora.without(predictor, merge=True) if kind == "safetensors" else lora.program(predictor)
    )
    whole = WithNormalisation(plain, trained).eval()
    aside = target.with_name(f".{os.getpid()}.{target.stem}{SUFFIXES[kind]}")
    write = {"safetensors": _safetensors, "torch-export": _torch_export, "onnx": _onnx}[kind]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporters', about their own insides
            exported = write(trained, whole, aside)
        difference = _difference(trained, exported)
        write_atomically(about, card(trained, kind, target.name, difference).encode())
        aside.replace(target)
    except (OSError, RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        raise _unwritten(target, error) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return difference


def export_shared(place: Path, output: Path | None, *, overwrite: bool = False) -> Path:
    """Writes the shared state of the run in `place` to a file, otherwise shared.safetensors, and
    returns its path. Raises UserError."""
    if not place.is_dir():
        raise UserError(f"{place} is not a directory")
    target = (output or Path("shared.safetensors")).absolute()
    check_replaceable(target, overwrite=overwrite)
    shared_state.of_run(RunDirectory(place)).write(target, overwrite=overwrite)
    return target


def _unwritten(target: Path, error: Exception) -> UserError:
    why = (error.strerror if isinstance(error, OSError) else None) or next(
        iter(str(error).splitlines()), repr(error)
    )
    return UserError(f"the model cannot be exported to {target}: {why}")


def card(trained: Trained, kind: str, file: str, difference: float) -> str:
    """The model card, in Markdown: what it is, how good it is, where it comes from, how to use
    it."""
    e, counts = trained.experiment, trained.counts
    predictor = trained.method.predictor(trained.module)
    plain = lora.program(predictor)
    architecture = predictor.description
    parameters = sum(p.numel() for p in plain.parameters())
    base = _of_base(trained, predictor)

    def share(part: str) -> str:
        if counts is None or not getattr(counts, part):
            return "not evaluated at this round"
        correct, whole = getattr(counts, f"{part}_correct"), getattr(counts, part)
        return f"{correct} of {whole} correct ({100 * correct / whole:.2f} %)"

    changed = e.changed().items()
    settings = ", ".join(
        f"{name}={datasets.without_path(e.dataset)}"
        if name == "dataset"
        else f"{name}={without_folders(value)}"
        for name, value in changed
        if name != "dataset" or not is_own(trained.about)
    )
    data = client_data(trained.about, e, trained.task)
    versions = ", ".join(
        f"{name} {version}" for name, version in trained.about["versions"].items() if version
    )
    if kind == "peft":
        head = (
            f"`{lora.HEAD}` is the head, of what it makes of a text"
            if trained.task.kind == TEXT
            else f"It has {trained.task.classes} classes; a neck is part of the head"
        )
        usage = (
            "`PeftModel.from_pretrained(model, FOLDER)`, where `model` is that of the base, with"
            f" its weights. {head}. Input: {_raw(trained)}{_normalised(trained)}."
        )
    elif kind == "safetensors":
        moved = any(name != own for name, own in plain.own_names().items())
        names = "the module's own state_dict" if moved else "this package's client model"
        again = (
            f" (`models={architecture}:weights={file}` begins with them)"
            if moved and is_library(architecture)
            else ""
        )
        usage = f"The weights of `{architecture}`, by the names of {names}{again}. "
        usage += f"Input: {_raw(trained)}{_normalised(trained)}."
        if trained.task.kind.program == torch.float64:
            usage += " Compute this in float64, and give the weights its result as float32."
    else:
        inside = ", in float64" if trained.task.kind.program == torch.float64 else ""
        name = f" `{trained.task.kind.input_name}`" if kind == "onnx" else ""
        done = f"; normalisation is part of the model{inside}" if _has_constants(trained) else ""
        usage = f"Input{name}: {_raw(trained)}{done}. Output: logits [n, {trained.task.classes}]."
    title = f"{registry.title(e.method)}, client {trained.client}"
    return f"""# {title}, on {data}

A personalised model: it was trained for the data of client {trained.client}, and is evaluated \
on these alone.

| | |
|---|---|
| file | `{file}` ({kind}) |
| architecture | {architecture}, {parameters:,} parameters |
| test accuracy | {share("test")} |
| validation accuracy | {share("validation")} |
| classes | {", ".join(trained.class_names)} |
| method, data | {e.method}, {data} |
| trained | last in round {trained.version} of {e.rounds}, seed {e.seed}, \
{e.trained_clients} clients |
{base}| SHA-256 of the client's tensors | `{trained.sha256}` |
| checked | logits within {difference:.1g} of the model's own |
| made with | {versions} |

## Use
{usage}

## Experiment
Keys that are not at their defaults: {settings or "none"}; fingerprint `{e.fingerprint()}`.
"""


def _of_base(trained: Trained, predictor: ClientModel) -> str:
    """Rows of the card: what the model stands on, under which licence, and LoRA in it."""
    if not (base := base_of(predictor)):
        return ""
    made = made_with(trained.method.model_of(trained.client))
    licence = f"{made.licence} (of the library's own weights)" if made and made.licence else ""
    rows = {"frozen base": f"`{base}`", "licence of the base": licence or "not known"}
    if told := lora.description(predictor):
        rows["LoRA"] = told
    return "".join(f"| {name} | {text} |\n" for name, text in rows.items())


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
            " drawn at random: give --format safetensors"
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
        "model_input": json.dumps(_side(trained) if kind == "safetensors" else None),
        "client": str(trained.client),
        "round": str(trained.version),
    }


def _torch_export(trained: Trained, whole: WithNormalisation, path: Path) -> Exported:
    program = torch.export.export(whole, (_blank(trained),), dynamic_shapes=_ANY_NUMBER)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it names files of this machine
    torch.export.save(
        program, path, extra_files={"metadata.json": json.dumps(metadata(trained, "torch-export"))}
    )
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


def _raw(trained: Trained) -> str:
    """What a program is fed with, in words."""
    named = trained.feature_names and _has_constants(trained)
    columns = f", their columns {some(trained.feature_names, _NAMED)}" if named else ""
    return f"{trained.task.kind.fed(trained.task.shape)}{columns}"


def _side(trained: Trained) -> int | None:
    """To how many pixels a side the client's model brings images before the library's module sees
    them."""
    model = trained.method.predictor(trained.module)
    return next((part.side for part in model.modules() if isinstance(part, Whole)), None)


def _normalised(trained: Trained) -> str:
    """What is left to do to an input, in words; empty where nothing is."""
    by, side = trained.task.kind.by, _side(trained)
    scaled = f", then (input − mean) / std by {by}, both in the metadata"
    sized = f", then resized to {side} × {side}, bicubic"
    return (scaled if _has_constants(trained) else "") + (sized if side else "")


def _has_constants(trained: Trained) -> bool:
    return bool(trained.about["mean"])


def _extra(name: str) -> Any:
    return needed(name, f"the format onnx needs {name}", "onnx onnxscript onnxruntime")


@torch.no_grad()
def _difference(trained: Trained, exported: Exported) -> float:
    """The largest difference of a logit, over random inputs in batches of two sizes. Raises
    UserError where it is no rounding."""
    generator = torch.Generator().manual_seed(0)
    found, task = [], trained.task
    for n in _BATCHES:
        raw, given = task.kind.example(task.shape, n, *_constants(trained), generator)
        found.append(float((exported(given) - trained.logits(raw.numpy())).abs().max()))
    if not (difference := max(found)) <= TOLERANCE:  # nan too
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
