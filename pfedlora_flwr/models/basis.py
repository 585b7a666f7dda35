"""Principal directions that all clients have in common: of what public pretrained classifiers say,
from their weights alone, or of public inputs, from a file.

No client's data has a part in them. They are computed in float64, and rounded so far that a
machine's last bits decide nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError, permissions, wrong
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.models import named
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.pretrained import (
    Classifier,
    classifier_of,
    frozen_encoder,
    only_last_trained,
)
from pfedlora_flwr.models.spec import ModelSpec

MOST = 256
"""Directions that a file holds."""
_STEPS = 2.0**14
"""To which a number is rounded, in 1."""


def has_weights(said: ModelSpec) -> bool:
    """Whether it begins with a library's weights, which may hold a classifier."""
    library = named.parse(said.name)
    return bool(library and library.weights)


def of_weights(names: Sequence[ModelSpec], model: ClientModel, count: int) -> tuple[Tensor, Tensor]:
    """What reads the R of a client model in the first `count` principal directions of what the
    pretrained classifiers of all client models say: a matrix [count, width] and its bias [count].

    names: of all client models in turn. Where R is features, they go through the model's own
    pretrained classifier, so the coordinates mean the same whatever the encoder. Raises UserError.
    """
    classifiers = tuple(map(classifier_of, dict.fromkeys(one.name for one in names)))
    encoder = frozen_encoder(model)
    mapped = any(one.anchors for one in names)
    if encoder is None or not only_last_trained(model) or mapped:
        raise UserError(
            "adapter.down is basis, and something is trained before the head, as in a neck, or"
            " mapped by anchors; allowed there: fixed, trained"
        )
    # R is what the classifier says where the place of its last layer is none
    return _read_by(classifiers, None if encoder.place is None else encoder.classifier, count)


def of_file(file: Path, width: int, count: int) -> tuple[Tensor, Tensor]:
    """The same of the first directions in a file that `write` wrote. Raises UserError where it is
    none, of another width, or has too few."""
    directions = directions_of_file(file, width, "adapter.basis")
    if count > directions.shape[1]:
        raise wrong(
            "adapter.hidden-dim", count, f"at most {directions.shape[1]}", f"adapter.basis={file}"
        )
    chosen = directions[:, :count].T
    mean = _read(file, file.stat().st_mtime_ns, "adapter.basis")["mean"]
    return chosen.float(), -_rounded(chosen @ mean.double()).float()


def directions_of_weights(names: Sequence[ModelSpec]) -> Tensor:
    """Those of what the pretrained classifiers of client models say:
    [outputs, directions], float64, the strongest first. Raises UserError."""
    return _directions(tuple(map(classifier_of, dict.fromkeys(one.name for one in names))))


def directions_of_file(file: Path, width: int, key: str) -> Tensor:
    """Those in a file that `write` wrote, which the key names, [width, directions], float64. Raises
    UserError where it is none, or of another width."""
    permissions.check_file(key, str(file), permissions.WEIGHTS)
    found = _read(file, file.stat().st_mtime_ns if file.exists() else 0, key)["directions"]
    if found.shape[1] != width:
        raise UserError(
            f"{key} is {str(file)!r}, of representations {found.shape[1]} wide; these are {width}"
            " wide"
        )
    return found.double().T


def write(file: Path, representations: Sequence[Tensor], about: Mapping[str, object]) -> int:
    """Writes the principal directions of several models' representations, each [n, width], and
    their mean; how many they are. Raises UserError where widths differ."""
    widths = [r.shape[1] for r in representations]
    if len(set(widths)) > 1:
        raise UserError(
            f"the models' representations are {', '.join(map(str, widths))} wide; one basis needs"
            " one width, as representation=pretrained-logits may give"
        )
    pooled = torch.cat([r.double() for r in representations])
    mean = pooled.mean(0)
    gram = (pooled - mean).T @ (pooled - mean)
    count = min(MOST, widths[0], len(pooled) - 1)
    found = {
        "directions": _rounded(_principal(gram)[:, :count].T).float().contiguous(),
        "mean": mean.float(),
    }
    write_atomically(file, safetensors.torch.save(found, {"about": json.dumps(dict(about))}))
    return count


@lru_cache(maxsize=8)
def _read(file: Path, changed: int, key: str) -> dict[str, Tensor]:
    """changed: when the file was written, so that another one is read anew."""
    try:
        found = safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{key} is {str(file)!r}, which cannot be read: {error}") from None
    if sorted(found) != ["directions", "mean"] or found["directions"].ndim != 2:
        raise UserError(
            f"{key} is {str(file)!r}, which is no basis; `pfedlora align --basis FILE` writes one"
        )
    return found


@lru_cache(maxsize=32)
def _read_by(
    classifiers: tuple[Classifier, ...], own: Classifier | None, count: int
) -> tuple[Tensor, Tensor]:
    """own: that of the model, where R is its features."""
    directions = _directions(classifiers)
    if count > directions.shape[1]:
        most = f"at most {directions.shape[1]}, the directions that the pretrained classifiers have"
        raise wrong("adapter.hidden-dim", count, most, "adapter.down=basis")
    chosen = directions[:, :count].T
    if own is None:
        return chosen.float(), torch.zeros(count)
    weight, bias = (tensor.double() for tensor in own)
    return _rounded(chosen @ weight).float(), _rounded(chosen @ bias).float()


@lru_cache(maxsize=8)
def _directions(classifiers: tuple[Classifier, ...]) -> Tensor:
    """Those of the outputs, [outputs, directions], the strongest first. Every classifier counts as
    much."""
    outputs = [len(weight) for weight, _ in classifiers]
    if len(set(outputs)) > 1:
        raise UserError(
            "adapter.down is basis, and the pretrained classifiers tell"
            f" {', '.join(map(str, outputs))} classes apart; allowed there: fixed, trained"
        )
    gram = torch.zeros(outputs[0], outputs[0], dtype=torch.float64)
    for weight, _ in classifiers:
        centred = weight.double() - weight.double().mean(0)  # what is added to all says nothing
        gram += centred @ centred.T / centred.square().sum()
    rank = min(outputs[0] - 1, sum(weight.shape[1] for weight, _ in classifiers))
    return _rounded(_principal(gram)[:, :rank])


def _principal(gram: Tensor) -> Tensor:
    """The eigenvectors as columns, the largest eigenvalue first, each with its largest element
    positive."""
    vectors = torch.linalg.eigh(gram).eigenvectors.flip(1)
    return vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()


def _rounded(values: Tensor) -> Tensor:
    return (values * _STEPS).round() / _STEPS
