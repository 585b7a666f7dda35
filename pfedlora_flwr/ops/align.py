"""`pfedlora align`: whether representations of several models have the same meaning, before
anything learned on them is averaged."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pfedlora_flwr.config import run_config
from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.data.local import models_own
from pfedlora_flwr.data.partition import few, places_in_class
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import check_replaceable, make_folder
from pfedlora_flwr.keys import AUTO, Scalar
from pfedlora_flwr.models import anchored, registry
from pfedlora_flwr.models import basis as directions_of
from pfedlora_flwr.models.encoded import kept
from pfedlora_flwr.models.named import without_path
from pfedlora_flwr.models.pretrained import frozen_encoder, with_outputs
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.text import tokenised
from pfedlora_flwr.rng import SERVER, derive, numpy_generator, seeded
from pfedlora_flwr.training.device import channels_last, find_device
from pfedlora_flwr.training.kinds import TEXT
from pfedlora_flwr.training.loop import infer, mixed_precision

_WHOLE: dict[str, Scalar] = {"partition.kind": "iid", "clients": 1}
"""Of anchors, which are nobody's, a partition that any dataset can have."""
_LEAST = 1e-6
"""Of a coordinate's deviation: what varies less is constant."""


class Alignment(TypedDict):
    """`pfedlora align --json`: how well models' representations agree."""

    models: list[str]
    widths: list[int]  # of their representations
    # by model, then by model: of the class means of the first, read through the second, in [0, 1];
    # null where their widths differ
    accuracy: list[list[float | None]]
    # the same: the mean correlation of their coordinates; null also where all are constant
    correlation: list[list[float | None]]
    samples: int  # on which they were compared
    classes: int  # of the data
    directions: int  # principal directions that were written to --basis
    anchors: int  # that were written to --output
    chance: float  # the accuracy by chance, 1 / classes


def align(
    config: RunConfig,
    *,
    samples: int,
    basis: Path | None = None,
    anchors: str | None = None,
    reference: str | None = None,
    output: Path | None = None,
    licence: str = "",
    overwrite: bool = False,
) -> Alignment:
    """Of the different models of a run, as they begin, on at most `samples` samples of its dataset,
    drawn from its classes in turn. Raises UserError.

    basis: where the principal directions of what they see are written, for `adapter.basis`.
    anchors: a dataset of which as many inputs, and what the model `reference` makes of them, are
    written to `output` first, with the `licence` of the inputs. The models are then those of
    representation=anchors:OUTPUT, or without keys that name some the reference alone."""
    written = 0
    if anchors is not None:
        if reference is None or output is None:
            raise UserError("anchors is set; expected reference=MODEL and output=FILE, too")
        check_replaceable(output, overwrite=overwrite, option="output")
        written = _write_anchors(config, anchors, reference, output, samples, licence)
        config = _by_anchors(config, anchors, reference, output)
    if basis is not None:
        check_replaceable(basis, overwrite=overwrite, option="basis")
    e = config.experiment.replace(train="head", neck="auto")
    setup = DataSetup(e, config.execution.data_path)
    task, dataset = setup.task, setup.dataset
    names = registry.models_of(e, task)
    labels = np.asarray(dataset.labels)
    if samples < 2 * dataset.classes:
        raise wrong("samples", samples, f"at least {2 * dataset.classes}, two of each class")
    chosen = few(labels, np.arange(len(labels)), samples, e.seed, SERVER)
    device = find_device(e.device)
    of_chosen = torch.from_numpy(labels[chosen])
    found = []
    for client, name in enumerate(names):
        constants = models_own(e, task, client) or setup.constants
        inputs = np.asarray(dataset.inputs[chosen])
        if task.kind == TEXT:
            inputs = tokenised(name.name, inputs)
        chosen_samples = dataset.kind.samples(
            torch.from_numpy(inputs).to(device), of_chosen.to(device), *constants
        )
        with seeded(derive(e.seed, "model", client)):
            model = channels_last(registry.build(name, task).to(device)).eval()
        encoder = frozen_encoder(model)
        if encoder is not None:
            known = kept(encoder, chosen_samples, e.precision)
            chosen_samples = with_outputs(chosen_samples, encoder, known)
        with mixed_precision(e.precision, device):
            found.append(infer(model.encode, chosen_samples).cpu())
    accuracy, correlation = agreement(found, of_chosen)
    models = [without_path(name) for name in names]
    directions = 0
    if basis is not None:
        make_folder(basis.absolute().parent)
        about = {"models": models, "dataset": datasets.without_path(e.dataset), "samples": samples}
        directions = directions_of.write(basis, found, about)
    return {
        "models": models,
        "widths": [r.shape[1] for r in found],
        "accuracy": accuracy,
        "correlation": correlation,
        "samples": len(chosen),
        "classes": dataset.classes,
        "directions": directions,
        "anchors": written,
        "chance": 1 / dataset.classes,
    }


def _by_anchors(config: RunConfig, data: str, reference: str, file: Path) -> RunConfig:
    """The run with models that are mapped by these anchors."""
    changes: dict[str, Scalar] = {"representation": f"anchors:{file.absolute()}", "train": "head"}
    if config.experiment.models is None:
        changes |= {"models": reference, "dataset": data, **_WHOLE}
    return run_config(config.flat() | changes)


def _write_anchors(
    config: RunConfig, data: str, reference: str, output: Path, samples: int, licence: str
) -> int:
    """Writes up to so many inputs of the dataset `data`, drawn at random, with what the reference
    makes of them; how many. config: how data is read."""
    changes = {"dataset": data, "models": reference, "classes": AUTO, "data.class-names": AUTO}
    flat = config.flat() | changes | _WHOLE | {"representation": "features", "train": "head"}
    e = run_config(flat | {"representation-norm": "none"}).experiment
    setup = DataSetup(e, config.execution.data_path)
    task = setup.task
    [said] = registry.models_of(e, task)
    model = registry.build(said, task)
    encoder = frozen_encoder(model)
    if encoder is None:
        raise wrong("reference", reference, "a model with a library's weights, such as timm:NAME")
    inputs = np.asarray(setup.dataset.inputs)
    drawn = numpy_generator(e.seed, "anchors").permutation(len(inputs))[:samples]
    chosen = inputs[np.sort(drawn)]
    about = {
        "reference": without_path(ModelSpec(said.name)),
        "base": encoder.base,
        "dataset": datasets.without_path(data),
        "licence": licence,
    }
    seen = anchored.seen(encoder, said.name, chosen).float()
    make_folder(output.absolute().parent)
    anchored.write(output, anchored.Anchors(chosen, seen, about))
    return len(chosen)


def agreement(
    representations: list[Tensor], labels: Tensor
) -> tuple[list[list[float | None]], list[list[float | None]]]:
    """For each model's representation of the same inputs, [n, width]: the accuracy in [0, 1] of its
    class means read through each other one, and the mean correlation of their coordinates.

    Every coordinate is standardised over the inputs, model by model; one that is constant tells
    nothing. The means are of every other
    sample of a class, the rest are what is read; the nearest mean is the one of the largest
    cosine."""
    even = torch.from_numpy(places_in_class(labels.numpy()) % 2 == 0)
    classes = labels[even].unique()
    read = torch.isin(labels, classes) & ~even
    scaled = [_standardised(r) for r in representations]
    accuracy: list[list[float | None]] = []
    correlation: list[list[float | None]] = []
    for own in scaled:
        means = torch.stack([own[even & (labels == c)].mean(0) for c in classes])
        accuracy.append([])
        correlation.append([])
        for other in scaled:
            if own.shape != other.shape:
                accuracy[-1].append(None)
                correlation[-1].append(None)
                continue
            nearest = classes[(normalize(other[read]) @ normalize(means).T).argmax(1)]
            accuracy[-1].append(float((nearest == labels[read]).double().mean()))
            each = (own * other).mean(0)[(own != 0).any(0) & (other != 0).any(0)]
            correlation[-1].append(float(each.mean()) if len(each) else None)
    return accuracy, correlation


def _standardised(representation: Tensor) -> Tensor:
    """[n, width], each coordinate of mean 0 and deviation 1, or 0 where it is constant."""
    deviation = representation.std(0, correction=0)
    varies = deviation > _LEAST
    return (representation - representation.mean(0)) * varies / torch.where(varies, deviation, 1)
