"""FedLDA's federations by other code: what the frozen backbones give of each image, computed
once, and linear discriminant analysis of the pooled coordinates by NumPy and SciPy. What a
federation of sums ends with is a function of these alone, whoever holds which sample.

    python -m benchmarks.pooled_lda benchmarks/one-round.yaml --outputs DIR --data-path DIR
        [--set partition.kind=dirichlet …] [--samples 10,30,50] [--seeds 0,1,2,3,4]
        [--coordinates pretrained-logits,features,anchors:FILE]

prints a CSV, a row for each candidate and seed: mean accuracies over the clients, in [0, 1], among
the classes that a client holds and among all, of LDA by all clients' samples and by a client's own,
by shrinkage s. On features ridge regression on a client's own, too (scikit-learn's), by its alpha
in place of s. The weights lie in the current folder, as for `compare`; DIR keeps the outputs."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import torch
import yaml
from scipy.linalg import cho_factor, cho_solve
from sklearn.linear_model import RidgeClassifier

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models import anchored, named, registry
from pfedlora_flwr.models.pretrained import frozen_encoder
from pfedlora_flwr.models.spec import ModelSpec, specs_of
from pfedlora_flwr.training.kinds import of_inputs
from pfedlora_flwr.training.loop import Samples, infer

COLUMNS = (
    *("federation", "samples", "coordinates", "head", "sharing", "asked", "seed"),
    *("strength", "validation", "test"),
)
CANDIDATES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Of ridge regression on rows of length 1."""
CHUNK = 500
Array = Any
Head = tuple[Array, Array, Array]
"""Classes, weights [d, c] and biases [c] of their scores."""


class Features:
    """What a backbone sees of a dataset's images, [n, width], float32: computed when it is asked
    for, once."""

    def __init__(self, e: Experiment, data_path: str, spec: ModelSpec, folder: Path) -> None:
        name = spec.name.partition(":weights=")[0].rpartition(":")[2]
        setup = DataSetup(e, data_path)
        self.dataset, task = setup.dataset, setup.task
        encoder = frozen_encoder(
            registry.build(ModelSpec(spec.name, train="head", model_input=e.model_input), task)
        )
        made = named.made_with(spec.name)
        assert encoder is not None
        assert made is not None
        self.encoder, self.made = encoder, made
        folder.mkdir(parents=True, exist_ok=True)
        shape = len(self.dataset.labels), encoder.width
        files = [folder / f"{e.dataset}-{name}-{e.model_input}{end}" for end in (".f32", ".done")]
        mode: Literal["r+", "w+"] = "r+" if files[1].exists() else "w+"
        self.values = np.memmap(files[0], np.float32, mode, shape=shape)
        self.done = np.memmap(files[1], np.bool_, mode, shape=shape[:1])

    def __call__(self, indices: Array) -> Array:
        missing = np.asarray(indices)[~self.done[indices]]
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            self.values[part] = self.of(np.asarray(self.dataset.inputs[part])).numpy()
            self.values.flush()
            self.done[part] = True
        return np.asarray(self.values[indices])

    def of(self, inputs: Array) -> torch.Tensor:
        """Of other images, too."""
        labels = torch.zeros(len(inputs), dtype=torch.int64)
        kind = of_inputs(inputs)
        images = torch.from_numpy(inputs.copy())
        samples: Samples = kind.samples(images, labels, self.made.mean, self.made.std)
        return infer(self.encoder.encode, samples)


def unit(r: Array) -> Array:
    """Rows without their mean and of unit variance, over √width (PyTorch's layer_norm's ε)."""
    r = r.astype(np.float64)
    r = r - r.mean(1, keepdims=True)
    return r / np.sqrt((r**2).mean(1, keepdims=True) + 1e-5) / r.shape[1] ** 0.5


class Coordinates:
    """z of samples, by client: its backbone is that of the models in turn."""

    def __init__(self, e: Experiment, data_path: str, folder: Path, kind: str) -> None:
        specs = specs_of(e)
        self.kind = kind
        self.features = [Features(e, data_path, spec, folder) for spec in specs]
        self.maps: list[tuple[Array, Array]] = []
        for spec, own in zip(specs, self.features, strict=True):
            if kind == "pretrained-logits":
                state = safetensors.numpy.load_file(spec.name.partition(":weights=")[2])
                self.maps.append((state["classifier.weight"].T, state["classifier.bias"]))
            elif kind.startswith("anchors:"):
                self.maps.append(_by_anchors(e, own, Path(kind[8:])))

    def __call__(self, client: int, indices: Array) -> Array:
        which = client % len(self.features)
        r = self.features[which](indices)
        if self.maps:
            matrix, bias = self.maps[which]
            r = r @ matrix + bias
        return unit(r)


def _by_anchors(e: Experiment, own: Features, file: Path) -> tuple[Array, Array]:
    """The map of a backbone, by the other of the two formulas of a ridge."""
    found = anchored.read(anchored.stamp_at(file))
    a = own.of(found.inputs).double().numpy()
    r = found.reference.double().numpy()
    mean, of_r = a.mean(0), r.mean(0)
    weight = e.anchors_ridge * ((a - mean) ** 2).sum(1).mean()
    gram = (a - mean).T @ (a - mean) + weight * np.eye(a.shape[1])
    matrix = np.linalg.solve(gram, (a - mean).T @ (r - of_r))
    return matrix, -mean @ matrix


def lda(z: Array, labels: Array, s: float) -> Head:
    """With one sample a class: nearest means."""
    classes, inverse = np.unique(labels, return_inverse=True)
    means = np.zeros((len(classes), z.shape[1]))
    np.add.at(means, inverse, z)
    means /= np.bincount(inverse)[:, None]
    left = z - means[inverse]
    trace = float((left**2).sum()) / len(z)
    if trace < 1e-10:
        return classes, means.T, -0.5 * (means**2).sum(1)
    d = z.shape[1]
    if len(z) < d:  # by the inverse of an n × n matrix (Woodbury)
        ridge = s * trace / d
        small = cho_factor(np.eye(len(z)) * ridge + (1 - s) / len(z) * left @ left.T)
        inner = cho_solve(small, left @ means.T)
        a = (means.T - (1 - s) / len(z) * left.T @ inner) / ridge
    else:
        a = cho_solve(
            cho_factor((1 - s) / len(z) * left.T @ left + s * trace / d * np.eye(d)), means.T
        )
    return classes, a, -0.5 * np.einsum("cd,dc->c", means, a)


def accuracy(head: Head, z: Array, labels: Array, held: Array) -> float:
    """Among the classes `held`."""
    classes, a, b = head
    among = np.isin(classes, held)
    scores = z @ a[:, among] + b[among]
    return float(np.mean(classes[among][scores.argmax(1)] == labels))


def rows(
    e: Experiment, data_path: str, at: Coordinates, *, with_alone: bool
) -> Iterator[tuple[object, ...]]:
    """A row of each candidate for one seed."""
    setup = DataSetup(e, data_path)
    labels = np.asarray(setup.dataset.labels)
    clients = [
        [(at(k, part), labels[part]) for part in (split.train, split.validation, split.test)]
        for k, split in enumerate(setup.trained)
    ]
    z = np.concatenate([parts[0][0] for parts in clients])
    y = np.concatenate([parts[0][1] for parts in clients])
    for s in CANDIDATES:
        shared = lda(z, y, s)
        alone = (lda(*train, s) for train, *_ in clients)
        yield from _scored(e, "lda", "mean", s, clients, (shared for _ in clients), np.unique(y))
        if with_alone:
            yield from _scored(e, "lda", "none", s, clients, alone, np.unique(y))
    for alpha in ALPHAS if with_alone and at.kind == "features" else ():
        alone = (ridge(*train, alpha) for train, *_ in clients)
        yield from _scored(e, "ridge", "none", alpha, clients, alone, np.unique(y))


def ridge(z: Array, labels: Array, alpha: float) -> Head:
    """scikit-learn's classifier by ridge regression, as the scores of its classes."""
    model = RidgeClassifier(alpha=alpha).fit(z, labels)
    return model.classes_, model.coef_.T, model.intercept_


def _scored(
    e: Experiment,
    name: str,
    sharing: str,
    strength: float,
    clients: Sequence[Sequence[tuple[Array, Array]]],
    heads: Iterable[Head],
    known: Array,
) -> Iterator[tuple[object, ...]]:
    """A row of each way to be asked: among a client's classes, and among all that are `known`."""
    found: dict[str, list[list[float]]] = {"held": [], "all": []}
    for (train, *others), head in zip(clients, heads, strict=True):
        for asked, scores in found.items():
            among = np.unique(train[1]) if asked == "held" else known
            scores.append([accuracy(head, *part, among) for part in others])
    for asked, scores in found.items():
        yield name, sharing, asked, e.seed, strength, *(fmean(c) for c in zip(*scores, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--outputs", type=Path, required=True)
    parser.add_argument("--data-path", default="")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--samples", default="10,30,50", help="training images of a client")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--coordinates", default="pretrained-logits")
    parser.add_argument("--name", default="classes", help="of the federation, the first column")
    parser.add_argument("--only-shared", action="store_true", help="no client alone")
    said = parser.parse_args()
    base = yaml.safe_load(said.config.read_text(encoding="utf-8"))["base"]
    base |= {f"partition.{key}": value for key, value in base.pop("partition", {}).items()}
    base |= {"method": "fedlda"} | {
        k: yaml.safe_load(v) for k, v in (one.split("=", 1) for one in said.set)
    }
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for kind in said.coordinates.split(","):
        at = None
        for samples in said.samples.split(","):
            for seed in said.seeds.split(","):
                own = {"partition.samples-per-client": int(samples), "seed": int(seed)}
                e = from_flat(base | own)
                at = at or Coordinates(e, said.data_path, said.outputs, kind)
                for row in rows(e, said.data_path, at, with_alone=not said.only_shared):
                    out.writerow((said.name, samples, kind, *row))
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
