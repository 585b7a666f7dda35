"""Was a sample trained on? The score is the loss of a client's samples with the client's upload:
training samples may have a lower loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.audit.measure import Bools, Floats, Part, best, measure, standardised
from pfedlora_flwr.audit.seen import Seen, SeenRound
from pfedlora_flwr.audit.views import shared_predictor
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import numpy_generator
from pfedlora_flwr.runs.audits import MembershipAudit
from pfedlora_flwr.runs.trained import load_trained
from pfedlora_flwr.training.loop import Samples, infer

MOST = 1000
"""Samples of either part of a client that are scored."""
NO_PREDICTION = "membership: what is sent makes no prediction by itself or behind an encoder"
_OWN = "its own"
_FROZEN = (
    "membership: a frozen encoder stays the initial one, which the server knows: another client's"
    " and the client's own are not tried beside it"
)
_ABSENT = "not every encoder is here"


def audit_membership(seen: Seen, notes: list[str]) -> MembershipAudit | None:
    """The attack by each score and encoder on each client's last upload; None where what is sent
    makes no prediction, or no client has samples to compare.

    notes: gets a line that says so, where clients are left out, and where an encoder is not here
    any more.
    """
    scored: dict[tuple[str, str], list[Part]] = {}  # by score and encoder
    last = {client: number for number in seen.numbers for client in seen.clients(number)}
    without = list[int]()
    for round, client in _visits(seen, last):
        samples, trained_on = candidates(seen, client)
        if not len(samples):
            without.append(client)
            continue
        start = round.start(client)
        left = round.left(client) if round.upload else round.merged(client)
        for whose, own in _encoders(seen, client, round, last, notes):
            before, after = (
                losses(shared_predictor(seen.method, shared, own), samples)
                for shared in (start, left)
            )
            for score, values in (("loss", -after), ("fall", before - after)):
                scored.setdefault((score, whose), []).append(Part(trained_on, standardised(values)))
    measured = {
        key: attack
        for key, parts in scored.items()
        if (attack := measure(parts, one_source=seen.source == "sum"))
    }
    attacks = {
        f"{score}, {whose} encoder" if whose else score: attack
        for (score, whose), attack in measured.items()
        if whose != _OWN
    }
    if without:
        notes.append(_left_out(without, len(last)))
    if (headline := best(attacks)) is None:
        if len(without) < len(last):
            notes.append(NO_PREDICTION)
        return None
    bounds = {score: attack for (score, whose), attack in measured.items() if whose == _OWN}
    of: Literal["upload", "sum"] = "upload" if seen.source == "uploads" else "sum"
    return {**headline, "of": of, "attacks": attacks, "bound": best(bounds), "bounds": bounds}


def _left_out(without: Sequence[int], of: int) -> str:
    names = some([str(client) for client in sorted(without)])
    return (
        f"membership: {len(without)} of {of} clients left out, without a class both in their"
        f" training and in their held-out part: {names}"
    )


def _visits(seen: Seen, last: Mapping[int, int]) -> Iterator[tuple[SeenRound, int]]:
    """The last visit of each client, whose round is in `last`; of the rounds one at a time is
    held."""
    for number in sorted(set(last.values())):
        round = seen.round(number)
        for client in (client for client in round.clients if last[client] == number):
            yield round, client


def candidates(seen: Seen, client: int) -> tuple[Samples, Bools]:
    """At most `MOST` samples that the client trained on and as many that it did not, and which they
    are, [n]: as many of a class in both, or a class that is rare in one would tell them apart."""
    data, draws = seen.data(client), numpy_generator(seen.experiment.seed, "audit/samples", client)
    parts = []
    for part in ([data.train], [data.validation, data.test]):
        inputs, labels = torch.cat([s.inputs for s in part]), torch.cat([s.labels for s in part])
        index = torch.from_numpy(draws.permutation(len(labels)))
        parts.append((inputs[index], labels[index]))
    counts = (labels.bincount(minlength=seen.method.classes) for _, labels in parts)
    of_class = _at_most(torch.minimum(*counts), MOST)
    chosen = [
        (inputs[first := _first(labels, of_class)], labels[first]) for inputs, labels in parts
    ]
    inputs, labels = (torch.cat(both) for both in zip(*chosen, strict=True))
    members = np.arange(len(labels)) < len(chosen[0][1])
    return Samples(inputs, labels, data.train.scale, data.train.shift), members


def _at_most(of_class: Tensor, most: int) -> Tensor:
    """The numbers [C], lowered alike to so many together where they are more."""
    upto = of_class.cumsum(0)
    if (total := int(upto[-1])) <= most:
        return of_class
    return (upto * most // total).diff(prepend=upto.new_zeros(1))


def _first(labels: Tensor, of_class: Tensor) -> Tensor:
    """The places of the first so many of each class, [n]."""
    places = [(labels == c).nonzero()[:count, 0] for c, count in enumerate(of_class.tolist())]
    return torch.cat(places).sort().values


def losses(predict: Callable[[Tensor], Tensor] | None, samples: Samples) -> Floats:
    """The cross-entropy of each sample, float64 [n]; one that is not finite counts as the largest
    of the others."""
    assert predict is not None
    found: Floats = (
        cross_entropy(infer(predict, samples), samples.labels, reduction="none").double().numpy()
    )
    finite = np.isfinite(found)
    return np.where(finite, found, found[finite].max(initial=0))


def _encoders(
    seen: Seen, client: int, round: SeenRound, last: Mapping[int, int], notes: list[str]
) -> Iterator[tuple[str, ClientModel | None]]:
    """The models behind whose encoders a client's upload is put, by whose they are: none where the
    upload is a whole model.

    The initial one the server can make from the public seed; another client's it has from a client
    that works with it; the client's own it has not: a bound. Where nothing before the last layer is
    trained, the initial one is the client's own, and stands alone."""
    method, shared = seen.method, round.start(client)
    if shared_predictor(method, shared):
        yield "", None
        return
    initial = method.predictor(method.initial_model(client).eval())
    if not shared_predictor(method, shared, initial):
        return
    yield "initial", initial
    if not initial.extractor_parameters():
        if _FROZEN not in notes:
            notes.append(_FROZEN)
        return
    others = [k for k in last if k != client]
    likest = [("another client's", _likest(seen, client, others))] if others else []
    for whose, owner in [*likest, (_OWN, client)]:
        try:
            trained = load_trained(seen.run.path, owner)
            if owner == client and trained.version != round.number:
                raise UserError(
                    f"client {client}: its model is of round {trained.version}, its last upload of"
                    f" round {round.number}"
                )
        except UserError as error:
            # the first says it for all that are gone; damaged ones are named each
            whole = not seen.run.client_store(owner).versions()
            said = _ABSENT if whole else str(error)
            if not any(said in note for note in notes):
                notes.append(f"{_ABSENT}: {error}")
            continue
        yield whose, trained.method.predictor(trained.module)


def _likest(seen: Seen, client: int, others: Sequence[int]) -> int:
    """The next client that has the same architecture, or just the next one."""
    e = seen.experiment
    return min(
        others,
        key=lambda k: (
            seen.method.model_of(k) != seen.method.model_of(client),
            (k - client) % e.clients,
        ),
    )
