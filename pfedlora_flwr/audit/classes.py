"""Which classes does a client hold? Read from the layer of its upload that has a row a class, and from the sum of all uploads.

A class that a client trains on pulls its row and its bias up, one that it lacks is pushed down or left alone. Cf. arXiv 2504.21436.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from pfedlora_flwr.audit.measure import Floats, Part, best, measure, standardised
from pfedlora_flwr.audit.seen import Seen, SeenRound
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.runs.rows import Attack, ClassAudit

NAMED = "classes"
"""The tensor in which uploads with a row for each class held (FD, FedProto and others) name them, int64 [m]."""
_SUM = "sum, "


def audit_classes(seen: Seen) -> ClassAudit:
    """The attack by each score, of the uploads and of the sum; all empty where nothing that is sent has a row a class."""
    e, classes = seen.experiment, seen.method.classes
    scored: dict[str, dict[int, list[Part]]] = {}  # by attack, then by client
    rounds: dict[str, dict[str, float]] = {}
    layer: list[str] = []
    for round in map(seen.round, seen.numbers):
        of_round: dict[str, list[Part]] = {}
        for client in round.clients:
            held = seen.held(client)
            found, layer = _scores(round, client, classes)
            for attack, scores in found.items():
                part = Part(held, standardised(scores))
                scored.setdefault(attack, {}).setdefault(client, []).append(part)
                of_round.setdefault(attack, []).append(part)
        aucs = {attack: measured["auc"] for attack, parts in of_round.items() if (measured := measure(parts, e.seed))}
        if aucs:
            rounds[str(round.number)] = aucs
    attacks: dict[str, Attack] = {}
    for attack, by_client in scored.items():
        if measured := measure([_pooled(parts) for parts in by_client.values()], e.seed):
            attacks[attack] = measured
    of_sum = {name.removeprefix(_SUM): attack for name, attack in attacks.items() if name.startswith(_SUM)}
    of_uploads = {name: attack for name, attack in attacks.items() if not name.startswith(_SUM)}
    return {
        "layer": ", ".join(layer) or None,
        "upload": best(of_uploads),
        "sum": best(of_sum),
        "attacks": of_uploads or of_sum,
        "rounds": rounds,
    }


def by_class(tensors: Tensors, classes: int) -> list[str]:
    """The names of the layer that has a row a class, weight and bias: the last module of which all tensors are matrices or vectors
    and some have `classes` rows. Empty where there is none, and of means by class (`class_means.py`), whose rows are named."""
    if NAMED in tensors:
        return []
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        modules.setdefault(name.rpartition(".")[0], {})[name] = tensor
    found = [
        [name for name, tensor in inside.items() if tensor.is_floating_point() and tensor.ndim and len(tensor) == classes]
        for inside in modules.values()
        if all(tensor.ndim <= 2 for tensor in inside.values())  # a convolution may have as many filters
    ]
    return next((names for names in reversed(found) if names), [])


def change(before: Tensors, after: Tensors, layer: list[str]) -> dict[str, Floats]:
    """By score, a number for each class, [C]: the change of the bias, and the norm of the change of the row.

    What the client did not receive has changed from zero.
    """
    scores: dict[str, list[Floats]] = {}
    for name in layer:
        now, was = after[name].double().numpy(), before.get(name)
        moved = now - was.double().numpy() if was is not None and was.shape == after[name].shape else now
        if moved.ndim == 1:
            scores.setdefault("bias", []).append(moved)
        else:
            scores.setdefault("row norm", []).append(np.linalg.norm(moved, axis=1))
    return {name: np.sum(found, axis=0) for name, found in scores.items()}


def _scores(round: SeenRound, client: int, classes: int) -> tuple[Mapping[str, Floats], list[str]]:
    """A client's scores by attack, those of the sum under names of their own; and the layer that they are from."""
    start = round.start(client)
    if round.upload is None:
        layer = by_class(start, classes)
        return _of_sum(round, client, layer), layer
    left = round.left(client)
    if NAMED in left:
        return {"named": np.isin(np.arange(classes), left[NAMED].numpy()).astype(np.float64)}, [NAMED]
    layer = by_class(left, classes)
    alike = all(name in start and start[name].shape == left[name].shape for name in layer)
    return change(start, left, layer) | (_of_sum(round, client, layer) if alike else {}), layer


def _of_sum(round: SeenRound, client: int, layer: list[str]) -> dict[str, Floats]:
    if not layer:
        return {}
    return {_SUM + name: scores for name, scores in change(round.start(client), round.merged(client), layer).items()}


def _pooled(parts: list[Part]) -> Part:
    return Part(np.concatenate([part.truth for part in parts]), np.concatenate([part.scores for part in parts]))
