"""Which classes does a client hold? Read from the layer of its upload that has a row a class, and
from the sum of all uploads.

A class that a client trains on pulls its row and its bias up, one that it lacks is pushed down or
left alone. Cf. arXiv 2504.21436."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from pfedlora_flwr.audit.measure import Floats, Part, best, measure, standardised
from pfedlora_flwr.audit.seen import Seen, SeenRound
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.runs.audits import Attack, ClassAudit

NAMED = "classes"
"""The tensor in which uploads with a row for each class held (FD, FedProto and others) name them,
int64 [m]."""
_UPLOAD, _SUM = "upload", "sum"


def audit_classes(seen: Seen) -> ClassAudit:
    """The attack by each score, of the uploads and of the sum; all empty where nothing that is sent
    has a row a class."""
    rounds, layer = dict[str, dict[str, float]](), list[str]()
    # by source, then by attack, then by client
    scored: dict[str, dict[str, dict[int, list[Part]]]] = {_UPLOAD: {}, _SUM: {}}
    for round in map(seen.round, seen.numbers):
        of_round: dict[str, list[Part]] = {}
        for client in round.clients:
            held = seen.held(client)
            sources, layer = _scores(round, client, seen.method.classes)
            for source, attacks in sources.items():
                for attack, scores in attacks.items():
                    part = Part(held, standardised(scores))
                    scored[source].setdefault(attack, {}).setdefault(client, []).append(part)
                    of_round.setdefault(
                        f"{_SUM}, {attack}" if source == _SUM else attack, []
                    ).append(part)
        if aucs := {
            attack: measured["auc"]
            for attack, parts in of_round.items()
            if (measured := measure(parts, one_source=True))
        }:
            rounds[str(round.number)] = aucs
    found: dict[str, dict[str, Attack]] = {_UPLOAD: {}, _SUM: {}}
    for source, by_attack in scored.items():
        for attack, by_client in by_attack.items():
            if measured := measure(
                [_pooled(parts) for parts in by_client.values()], one_source=source == _SUM
            ):
                found[source][attack] = measured
    return {
        "layer": ", ".join(layer) or None,
        "upload": best(found[_UPLOAD]),
        "sum": best(found[_SUM]),
        "attacks": found[_UPLOAD] or found[_SUM],
        "rounds": rounds,
    }


def by_class(tensors: Tensors, classes: int) -> list[str]:
    """The names of the layer that has a row a class, weight and bias: the last module of which all
    tensors are matrices or vectors and some have `classes` rows. Empty if there is none, and of
    means by class (`class_means.py`), whose rows are named."""
    if NAMED in tensors:
        return []
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        modules.setdefault(name.rpartition(".")[0], {})[name] = tensor
    found = [
        [
            name
            for name, tensor in inside.items()
            if tensor.is_floating_point() and tensor.ndim and len(tensor) == classes
        ]
        for inside in modules.values()
        # a convolution may have as many filters
        if all(tensor.ndim <= 2 for tensor in inside.values())
    ]
    return next((names for names in reversed(found) if names), [])


def change(before: Tensors, after: Tensors, layer: list[str]) -> dict[str, Floats]:
    """By score, a number for each class, [C]: the change of the bias, and the norm of the change of
    the row.

    What the client did not receive has changed from zero.
    """
    scores: dict[str, list[Floats]] = {}
    for name in layer:
        now, was = after[name].double().numpy(), before.get(name)
        if was is not None and was.shape == after[name].shape:
            moved = now - was.double().numpy()
        else:
            moved = now
        if moved.ndim == 1:
            scores.setdefault("bias", []).append(moved)
        else:
            scores.setdefault("row norm", []).append(np.linalg.norm(moved, axis=1))
    return {name: np.sum(found, axis=0) for name, found in scores.items()}


def _scores(
    round: SeenRound, client: int, classes: int
) -> tuple[dict[str, Mapping[str, Floats]], list[str]]:
    """A client's scores by source and attack; and the layer that they are from."""
    start = round.start(client)
    if round.upload is None:
        layer = by_class(start, classes)
        return {_SUM: change(start, round.merged(client), layer)} if layer else {}, layer
    left = round.left(client)
    if NAMED in left:
        return {
            _UPLOAD: {"named": np.isin(np.arange(classes), left[NAMED].numpy()).astype(np.float64)}
        }, [NAMED]
    layer = by_class(left, classes)
    alike = layer and all(name in start and start[name].shape == left[name].shape for name in layer)
    of_sum = {_SUM: change(start, round.merged(client), layer)} if alike else {}
    return {_UPLOAD: change(start, left, layer), **of_sum}, layer


def _pooled(parts: list[Part]) -> Part:
    return Part(
        np.concatenate([part.truth for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )
