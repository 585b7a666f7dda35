"""The card of an exported model: what it is, how good it is, where it comes from, how to use it."""

from __future__ import annotations

import torch

from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.errors import counted, some
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models import lora, text
from pfedlora_flwr.models.kept import base_of
from pfedlora_flwr.models.model import ClientModel, given_names
from pfedlora_flwr.models.named import is_library, made_with
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.pretrained import frozen_encoder
from pfedlora_flwr.runs.data_name import client_data, is_own
from pfedlora_flwr.runs.output import without_folders
from pfedlora_flwr.runs.trained import Trained
from pfedlora_flwr.training.kinds import TEXT

_NAMED = 30
_IN_BF16 = ", counted with the encoder in bf16; this file computes in fp32"


def card(trained: Trained, kind: str, file: str, difference: float) -> str:
    """The model card, in Markdown."""
    e, counts = trained.run, trained.counts
    predictor = trained.method.predictor(trained.module)
    plain = lora.program(predictor)
    architecture = predictor.description
    parameters = sum(p.numel() for p in plain.parameters())
    base = _of_base(trained, predictor)

    def share(part: str) -> str:
        if counts is None or not getattr(counts, part):
            return "not evaluated at this round"
        correct, whole = getattr(counts, f"{part}_correct"), getattr(counts, part)
        told = f"{correct} of {whole} correct ({100 * correct / whole:.2f} %)"
        return told + (_IN_BF16 if _evaluated_in_bf16(trained) else "")

    settings = ", ".join(
        f"{name}={datasets.without_path(e.dataset)}"
        if name == "dataset"
        else f"{name}={without_folders(value)}"
        for name, value in e.changed().items()
        if name != "dataset" or not is_own(trained.about)
    )
    data = client_data(trained.about, trained.experiment, trained.task)
    visits = counted(trained.version, "visit")
    when = f"last in round {trained.round}"
    if "adapted_to" in trained.about:
        when = f"adapted in {visits} to the shared state of round {trained.round}"
    versions = ", ".join(f"{name} {v}" for name, v in trained.about["versions"].items() if v)
    if kind == "peft":
        head = f"It has {trained.task.classes} classes; a neck is part of the head"
        if trained.task.kind == TEXT:
            head = f"`{lora.HEAD}` is the head"
        usage = (
            "`PeftModel.from_pretrained(model, FOLDER)`, where `model` is that of the base, with"
            f" its weights. {head}. Input: {_of_module(trained)}."
        )
    elif kind == "safetensors":
        moved = any(name != own for name, own in plain.own_names().items())
        names = "the module's own state_dict" if moved else "this package's client model"
        again = ""
        if moved and is_library(architecture):
            again = f" (`models={architecture}:weights={file}` begins with them)"
        usage = f"The weights of `{architecture}`, by the names of {names}{again}. "
        usage += f"Input: {_of_module(trained) if moved else _prepared(trained)}."
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
only on these.

| | |
|---|---|
| file | `{file}` ({kind}) |
| architecture | {architecture}, {parameters:,} parameters |
| test accuracy | {share("test")} |
| validation accuracy | {share("validation")} |
| classes | {", ".join(trained.class_names)} |
| method, data | {e.method}, {data} |
| trained | {when} of {e.rounds}, seed {e.seed}, \
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
    made = made_with(trained.method.model_of(trained.client).name)
    licence = f"{made.licence} (of the library's own weights)" if made and made.licence else ""
    if not given_names(predictor):  # all is trained
        return f"| read by | `{base}` |\n"
    rows = {"frozen base": f"`{base}`", "licence of the base": licence or "not known"}
    if told := lora.description(predictor):
        rows["LoRA"] = told
    return "".join(f"| {name} | {text} |\n" for name, text in rows.items())


def _evaluated_in_bf16(trained: Trained) -> bool:
    """Whether the evaluation had its encoder's outputs in bf16 (`federation/visit.py`)."""
    e = trained.experiment
    return e.precision == "bf16" and not e.augment and frozen_encoder(trained.module) is not None


def _of_module(trained: Trained) -> str:
    """What the library's own module is fed with, in words."""
    if trained.task.kind == TEXT:
        return text.fed(trained.method.model_of(trained.client).name, trained.task.shape[0])
    return _prepared(trained)


def _prepared(trained: Trained) -> str:
    return f"{_raw(trained)}{_normalised(trained)}"


def _raw(trained: Trained) -> str:
    """What a program is fed with, in words."""
    named = trained.feature_names and _has_constants(trained)
    columns = f", their columns {some(trained.feature_names, _NAMED)}" if named else ""
    return f"{trained.task.kind.fed(trained.task.shape)}{columns}"


def side_of(trained: Trained) -> int | None:
    """To how many pixels a side the client's model brings images before the library's module sees
    them."""
    model = trained.method.predictor(trained.module)
    return next((part.side for part in model.modules() if isinstance(part, Whole)), None)


def _normalised(trained: Trained) -> str:
    """What is left to do to an input, in words; empty where nothing is."""
    by, side = trained.task.kind.by, side_of(trained)
    scaled = f", then (input − mean) / std by {by}, both in the metadata"
    smoothed = "antialiased only where they become smaller"
    sized = f", then resized to {side} × {side}, bicubic, {smoothed}"
    return (scaled if _has_constants(trained) else "") + (sized if side else "")


def _has_constants(trained: Trained) -> bool:
    return bool(trained.about["mean"])
