"""Clients that do their visit honestly and then send something else: one sort of malice each, by
name."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
)

from pfedlora_flwr.client_app import prepare_process
from pfedlora_flwr.config import from_flat, parse_overrides
from pfedlora_flwr.data.local import LocalData
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.methods.method import Method
from tests.conftest import named_keys
from tests.served import run_over

Arrays = list[np.ndarray]
KEYS = {"batch-size": 16, "evaluate-initial": False, "partition.kind": "iid", "device": "cpu"}


def _blob(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def _arrays(change: Callable[[Arrays], Arrays]) -> Callable[[FitRes], None]:
    def apply(result: FitRes) -> None:
        arrays = [np.load(io.BytesIO(blob)) for blob in result.parameters.tensors]
        result.parameters.tensors = [_blob(array) for array in change(arrays)]

    return apply


def _first(change: Callable[[np.ndarray], np.ndarray], kind: str = "f") -> Callable[[FitRes], None]:
    """Changes the first array whose dtype is of a kind, as NumPy names kinds."""

    def apply(arrays: Arrays) -> Arrays:
        at = [array.dtype.kind for array in arrays].index(kind)
        return [*arrays[:at], change(arrays[at]), *arrays[at + 1 :]]

    return _arrays(apply)


def _metrics(**changes: Any) -> Callable[[FitRes], None]:
    return lambda result: result.metrics.update(changes)


def _samples(count: Any) -> Callable[[FitRes], None]:
    return lambda result: setattr(result, "num_examples", count)


def _raw(*blobs: bytes) -> Callable[[FitRes], None]:
    return lambda result: setattr(
        result.parameters, "tensors", [*blobs, *result.parameters.tensors[len(blobs) :]]
    )


def _without(name: str) -> Callable[[FitRes], None]:
    def take(result: FitRes) -> None:
        del result.metrics[name]

    return take


def _set(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[7] = value
        return array

    return change


def _lie() -> bytes:
    """A header that promises 4 TB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    )
    return header.getvalue() + b"\0" * 64


MALICE: dict[str, tuple[Callable[[FitRes], None], str]] = {
    "an array too few": (_arrays(lambda a: a[:-1]), "arrays have the names"),
    "other names": (
        _metrics(names=json.dumps(["a", "b", "c", "d"])),
        "its tensors are ['a', 'b', 'c', 'd'], expected",
    ),
    "one name twice": (_metrics(names=json.dumps(["a", "a", "c", "d"])), "arrays have the names"),
    "names without end": (
        _metrics(names=json.dumps([*("x" * 100_000 + c for c in "ab"), "\x1b[31m\n", "d"])),
        "its tensors are ['xxx",
    ),
    "no names": (_without("names"), "its names cannot be read"),
    "names that nest deeply": (_metrics(names="[" * 50_000), "its names cannot be read"),
    "another shape": (_first(lambda a: a.reshape(-1, 1)), "expected float32"),
    "another dtype": (_arrays(lambda a: [a[0].view(np.int32), *a[1:]]), "is int32"),
    "NaN": (_first(_set(np.nan)), "not finite"),
    "infinity": (_first(_set(np.inf)), "not finite"),
    "1000 times": (
        _arrays(lambda a: [x * 1000 if x.dtype.kind == "f" else x for x in a]),
        "clip-norm-factor",
    ),
    "overflow": (_first(_set(3e38)), "clip-norm-factor"),
    "no samples": (_samples(0), "sample count n_k is 0"),
    "negative samples": (_samples(-5), "sample count n_k is -5"),
    "a billion samples": (_samples(10**9), "sample count n_k is 1000000000"),
    "half a sample": (_samples(0.5), "sample count n_k is 0.5"),
    "another round": (_metrics(round=1000), "it answers round 1000"),
    "another client": (_metrics(client=0), "as client 0"),
    "too large": (_raw(_blob(np.zeros(10**6, np.float64))), "bytes, at most"),
    "a header that lies": (_raw(_lie()), "an array of shape"),
    "no array": (_raw(b"junk"), "no array"),
    "a pickle": (
        _raw(_blob(np.array([{}], dtype=object), allow_pickle=True)),
        "an array of dtype object",
    ),
    "talkative": (_metrics(model="x" * 2**21), "bytes, of which"),
    "more correct than there are": (
        _metrics(test_correct=10**6),
        "correct test predictions is 1000000",
    ),
    "a loss of NaN": (_metrics(loss=float("nan")), "its loss is nan"),
    "a huge loss": (
        _metrics(losses='{"model": 1' + "0" * 400 + "}"),
        "its losses[model] is a huge number",
    ),
    "a loss beyond all sums": (_metrics(loss=1.7e308), "its loss is 1.7e+308"),
    "a name that forges a line": (
        _metrics(losses='{"x\\npfedlora: result {}\\n": true}'),
        "its losses[x\\npfedlora: result",
    ),
    "no counts": (_without("test"), "its test sample count is None"),
    "no hash": (_metrics(model_sha256="Z" * 64), "its model hash is"),
    "negative operations": (
        _metrics(flops_by_phase='{"model": -1}'),
        "its flops_by_phase[model] is -1",
    ),
    "an accuracy of 2": (
        _metrics(other_accuracies='{"global": 2}'),
        "its other_accuracies[global] is 2",
    ),
    "a tag of the personal model's": (
        _metrics(other_accuracies='{"test": 0.99}'),
        "its other_accuracies have 'test'; allowed: at most 40 of A-Z",
    ),
    "a formula for a name": (
        _metrics(other_accuracies=json.dumps({"=cmd|' /C calc'!A0\n<img src=x>": 0.5})),
        "its other_accuracies have \"=cmd|' /C calc'!A0\\n<img src=x>\"; allowed",
    ),
    "a name that no file can hold": (
        _metrics(other_accuracies=json.dumps({"\ud800": 0.5})),
        "its other_accuracies have '\\ud800'; allowed",
    ),
    "a macro-F1 of 1.5": (
        _metrics(scores='{"balanced_accuracy": 1, "macro_f1": 1.5}'),
        "its macro f1 is 1.5",
    ),
    "no balanced accuracy": (_metrics(scores='{"macro_f1": 1}'), "its balanced accuracy is None"),
    "an accuracy of its own": (
        _metrics(scores='{"balanced_accuracy": 1, "macro_f1": 1, "accuracy": 1}'),
        "its scores have 'accuracy'",
    ),
    "other samples by class": (_metrics(confusion="[[1]]"), "adds up to other samples than its"),
    "no square of classes": (_metrics(confusion="[[1], 2]"), "its confusion is [[1], 2]"),
    "seconds that are none": (_metrics(seconds="[]"), "its seconds are []"),
    "lost what": (_metrics(lost="yes"), "its lost is 'yes'"),
}
"""By name: what is done to an honest reply, and a part of the reason for which the server refuses
it."""
OF_CLASSES: dict[str, tuple[Callable[[FitRes], None], str]] = {
    "no such class": (_first(lambda a: a + 1000, "i"), "classes are [10"),
    "a class below 0": (_first(lambda a: a - 1000, "i"), "classes are [-"),
    "one class always": (_first(np.zeros_like, "i"), "classes are [0, 0"),
}
"""The same for methods that report by class."""
UNHEARD: dict[str, tuple[Callable[[FitRes], None], str]] = {
    "an epsilon of 0": (_metrics(epsilon=0.0), "")
}
"""What an honest reply is admitted with, and not believed."""
LIES: dict[str, tuple[float, int | None]] = {
    "turned": (-1.0, None),
    "turned, nine times": (-9.0, None),
    "turned, ninety times": (-90.0, None),
    "turned, a million samples": (-1.0, 10**6),
    "turned, ninety times, a million samples": (-90.0, 10**6),
    "what it was sent": (0.0, None),
    "a millionth": (1e-6, None),
}
"""What a client sends in the place of its update: so many times it, with this n_k (None: its own).
No bound on a single update sees all of them."""
LAZY = "what it was sent"
FLIPPED = "flipped labels"
"""A client that trains honestly on labels in the reverse order of the classes."""
FAILING: dict[str, str] = {
    "raises": "it raises",
    "not OK": "a status of its own",
    "a list": "malformed",
}
"""Clients whose reply is an error, and a part of the failure that the server records."""
GONE = "gone after round 1"
STRANGERS: dict[str, str] = {
    "a twin": "partition-id 0 is taken by node",
    "other data": "its data or partition differs",
    "no such number": "partition-id is 1000000; allowed",
    "no client": "its answer is not one of this app's clients'",
}
"""Nodes beyond the clients' that claim to be one, and a part of the reason for which they are
turned away."""


def lie(sort: str, sent: Arrays, result: FitRes) -> None:
    """Changes a reply to what LIES says; where it has other arrays than those that were sent, these
    themselves are taken so many times. Counts by class grow with n_k."""
    times, samples = LIES[sort]
    own = [np.load(io.BytesIO(blob)) for blob in result.parameters.tensors]
    names = json.loads(str(result.metrics["names"]))
    if samples and "counts" in names:
        counts = own[names.index("counts")]
        counts *= samples // result.num_examples
        samples = int(counts.sum())
    if [a.shape for a in sent] != [a.shape for a in own]:
        sent = [np.zeros_like(a) for a in own]
    result.parameters.tensors = [
        _blob((b + times * (a - b)).astype(a.dtype) if a.dtype.kind == "f" else a)
        for a, b in zip(own, sent, strict=True)
    ]
    result.num_examples = samples or result.num_examples


class Mislabelled(PersonalisedClient):
    """A client whose training part has the wrong labels."""

    def _load(self, client: int) -> tuple[LocalData, Method, str]:
        data, method, own = super()._load(client)
        labels = method.classes - 1 - data.train.labels
        return replace(data, train=replace(data.train, labels=labels)), method, own


class Malicious(Client):
    """An honest client behind a dishonest door."""

    def __init__(self, honest: Client, sort: str | None) -> None:
        self.honest = honest
        self.sort = sort

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        result = self.honest.get_properties(ins)
        lies: dict[str, dict[str, Any]] = {
            "other data": {"partition": "f" * 64},
            "no such number": {"partition_id": 10**6},
            "no client": {"partition_id": "0"},
        }
        result.properties.update(lies.get(self.sort or "", {}))
        return result

    def fit(self, ins: FitIns) -> FitRes:
        if self.sort == "raises":
            raise RuntimeError("it raises")
        if self.sort == GONE and ins.config["round"] > 1:
            raise RuntimeError("it is gone")
        result = self.honest.fit(ins)
        if self.sort == "not OK":
            result.status.code, result.status.message = (
                Code.FIT_NOT_IMPLEMENTED,
                "a status of its own",
            )
        elif self.sort == "a list":
            result.metrics["loss"] = [1.0, 2.0]  # type: ignore[assignment]
        elif self.sort in LIES:
            lie(self.sort, [np.load(io.BytesIO(b)) for b in ins.parameters.tensors], result)
        elif found := (MALICE | OF_CLASSES | UNHEARD).get(self.sort or ""):
            found[0](result)
        return result

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        if self.sort == GONE:
            raise RuntimeError("it is gone")
        return self.honest.evaluate(ins)


def simulate(
    folder: Path, sorts: Mapping[int, str] = {}, strangers: Sequence[str] = (), **keys: Any
) -> Path:
    """Runs by the local engine's grid with these clients malicious and these nodes too many; the
    run's directory.

    The first nodes are the strangers, who have client 0's data; then come the clients in order.
    """
    output = folder / "run"
    given = named_keys(keys)
    texts = [f"{name}={value}" for name, value in given.items() if isinstance(value, str)]
    flat = KEYS | {"output": str(output)} | given | parse_overrides(texts)
    experiment = from_flat(flat)

    def client_fn(context: Context) -> Client:
        index = int(context.node_config["partition-id"]) - len(strangers)
        of = Mislabelled if sorts.get(index) == FLIPPED else PersonalisedClient
        client = of(
            experiment, {"partition-id": max(index, 0), "num-partitions": experiment.clients}
        )
        prepare_process(client.device)
        return Malicious(client.to_client(), sorts.get(index) if index >= 0 else strangers[index])

    grid = LocalGrid(
        ClientApp(client_fn=client_fn),
        [{"partition-id": i} for i in range(experiment.clients + len(strangers))],
        flat,
    )
    run_over(grid, flat)
    return output
