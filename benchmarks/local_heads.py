"""Classifiers in closed form on what a client's own frozen backbone gives, beside the study of
pretrained backbones: the nearest class mean, and ridge regression on the classes (scikit-learn's),
on representations as they are and without their mean and scale. No other client has a part in them.

    python -m benchmarks.local_heads benchmarks/pretrained.yaml --samples 10,50 --data-path DIR

prints a CSV, a row for each candidate and seed: mean accuracies over the clients, in [0, 1]. The
weights lie in the current folder, as for `compare`."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import yaml
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import NearestCentroid

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site
from pfedlora_flwr.data.outputs import with_outputs_kept
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method

COLUMNS = ("samples", "representation", "seed", "head", "norm", "alpha", "validation", "accuracy")
ALPHAS = (10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
HEADS: dict[tuple[str, str], Callable[[], Any]] = {("nearest class mean", ""): NearestCentroid} | {
    ("ridge", f"{alpha:g}"): lambda alpha=alpha: RidgeClassifier(alpha=alpha) for alpha in ALPHAS
}
SEEDS = range(5)
Part = tuple[Any, Any]
"""Representations, [n, width], and labels, [n]."""


def rows(e: Experiment, method: Method, data_path: str) -> Iterator[tuple[object, ...]]:
    """A row of each candidate for one seed."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for client in range(e.clients):
        parts = representations(e, method, client, data_path)
        for norm, change in (("none", lambda r: r), ("layer", normalised)):
            x, y = change(parts[0][0]), parts[0][1]
            for (head, alpha), make in HEADS.items():
                with np.errstate(invalid="ignore"):  # a deviation that one sample a class has not
                    model = make().fit(x, y)
                right = [float(np.mean(model.predict(change(r)) == y)) for r, y in parts[1:]]
                found.setdefault((head, norm, alpha), []).append((right[0], right[1]))
    for candidate, scores in found.items():
        yield (*candidate, *(fmean(column) for column in zip(*scores, strict=True)))


def representations(e: Experiment, method: Method, client: int, data_path: str) -> list[Part]:
    """A client's training, validation and test parts, as its frozen backbone sees them."""
    data = Site.find(e, client, {"data-path": data_path}).load(torch.device("cpu"))
    data = with_outputs_kept(method.client_model(client), data, e)
    parts = data.train, data.validation, data.test
    assert all(part.known for part in parts), "its backbone is not frozen"
    return [(part.known[1].numpy(), part.labels.numpy()) for part in parts if part.known]


def normalised(r: Any) -> Any:
    """Each row without its mean and of unit variance, as by representation-norm=layer."""
    return torch.nn.functional.layer_norm(torch.from_numpy(r), r.shape[1:]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--samples", required=True, help="training images of a client, several")
    parser.add_argument("--data-path", default="")
    said = parser.parse_args()
    base = yaml.safe_load(said.config.read_text(encoding="utf-8"))["base"]
    partition = {f"partition.{key}": value for key, value in base.pop("partition").items()}
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for samples in said.samples.split(","):
        for reads in ("features", "pretrained-logits"):
            for seed in SEEDS:
                own = {"partition.samples-per-client": int(samples), "representation": reads}
                e = from_flat(base | partition | own | {"method": "standalone", "seed": seed})
                method = registry.make(e, Site.find(e, 0, {"data-path": said.data_path}).task)
                for row in rows(e, method, said.data_path):
                    out.writerow((samples, reads, seed, *row))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
