"""Links against clients that lie: bounds on the weights that they claim, and means that a few of
them cannot move far."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from statistics import median_low
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfedlora_flwr.errors import some
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.link import Link, Server
from pfedlora_flwr.methods.method import ByClient, Method, Tensors, Upload
from pfedlora_flwr.methods.robust import krum, rule_of
from pfedlora_flwr.rng import SERVER
from pfedlora_flwr.runs.rows import REFUSED

if TYPE_CHECKING:
    from pfedlora_flwr.federation.round import Round

logger = logging.getLogger(__name__)


class Claims(Link):
    """Bounds each n_k by the client's first one in the run, since a site's data stay as they are,
    and then by `max-weight` times the round's median (of an even number the lower). So it does with
    each class's samples, of methods whose clients tell them."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and e.max_weight > 0

    def server_in(self, uploads: ByClient, state: Tensors, round: Round) -> ByClient:
        first = self.server.state.claims
        for client, upload in uploads.items():
            if upload.samples != first.setdefault(client, upload.samples):
                text = "round %d: client %d claims %d samples, and claimed %d before"
                logger.warning(text, round.number, client, upload.samples, first[client])
        earlier = {client: min(u.samples, first[client]) for client, u in uploads.items()}
        limit = self._limit(list(earlier.values()))
        weights = {client: min(claim, limit) for client, claim in earlier.items()}
        round.weights = {c: w for c, w in weights.items() if w < uploads[c].samples}
        if round.weights:
            told = [f"{c} as {w} for {uploads[c].samples}" for c, w in round.weights.items()]
            text = "round %d: max-weight is %g: these clients' samples count less: %s"
            logger.warning(text, round.number, self.experiment.max_weight, some(told))
        of_classes = self._of_classes(uploads)
        return {
            client: Upload(_bounded(upload.tensors, of_classes), weights[client])
            for client, upload in uploads.items()
        }

    def _limit(self, claims: list[int]) -> int:
        return max(1, int(self.experiment.max_weight * median_low(claims)))

    def _of_classes(self, uploads: ByClient) -> dict[int, int]:
        """The most samples that count, by class."""
        claims: dict[int, list[int]] = {}
        for upload in uploads.values():
            if "counts" in upload.tensors:
                sent = (upload.tensors[name].tolist() for name in ("classes", "counts"))
                for label, count in zip(*sent, strict=True):
                    claims.setdefault(label, []).append(count)
        return {label: self._limit(found) for label, found in claims.items()}


def _bounded(tensors: Tensors, most: Mapping[int, int]) -> Tensors:
    if not most:
        return tensors
    limits = torch.tensor([most[label] for label in tensors["classes"].tolist()])
    return tensors | {"counts": tensors["counts"].minimum(limits)}


class Robust(Link):
    """Puts one upload in the place of a round's: what `aggregation` makes of them, which the method
    then takes the mean of. Class rows a method merges itself."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and e.aggregation != "mean"

    def __init__(self, experiment: Experiment, method: Method, server: Server | None) -> None:
        super().__init__(experiment, method, server)
        rule = rule_of(experiment)
        assert rule is not None
        self.rule = rule
        self._told: list[int] = []

    def too_few(self, uploads: ByClient, round: Round) -> str:
        """An update that was refused was one of the lies; a client without an answer may have been
        honest."""
        refused = [
            client
            for client, why in round.failures.items()
            if why.startswith(REFUSED) and client not in round.diverged
        ]
        left = max(0, self.rule.liars - len(refused))
        if len(uploads) >= self.rule.needs(left):
            return ""
        return (
            f"{len(uploads)} clients succeeded, and aggregation={self.rule.kind} needs"
            f" {self.rule.needs(left)} for {left} liars among them"
        )

    def server_in(self, uploads: ByClient, state: Tensors, round: Round) -> ByClient:
        if self.method.averages_rows and all("classes" in u.tensors for u in uploads.values()):
            return uploads
        if self.rule.kind == "krum":
            taken = krum(uploads, self.rule.liars)
            logger.info("round %d: krum takes the update of client %d", round.number, taken)
        return {SERVER: Upload(self.rule.merged(uploads), 1)}

    def server_out(
        self, merged: Tensors, uploads: ByClient, state: Tensors, round: Round
    ) -> Tensors:
        """Tells which class rows have too few holders."""
        if SERVER in uploads:
            return merged
        if "classes" in merged:  # all clients' last rows
            held: Tensor = merged["classes"]
        else:
            held = torch.cat([upload.tensors["classes"] for upload in uploads.values()])
        classes, holders = held.unique(return_counts=True)
        few = classes[holders < self.rule.fewest].tolist()
        if few and few != self._told:
            text = (
                "round %d: the rows of class %s have fewer than %d holders: they stay as they are"
            )
            logger.warning(text, round.number, some(list(map(str, few))), self.rule.fewest)
        self._told = few
        return merged
