"""FedRE. Yao, Wang, Wu, Song, Chen, Wang, Tian, Chen, Li, Li: FedRE: A Representation Entanglement
Framework for Model-Heterogeneous Federated Learning (CVPR 2026, arXiv 2511.22265).

Symbols: R̄_{k,c} is the mean representation of client k's samples of class c, as in FedGH; r̃_k is
their random convex mixture, ỹ_k the same mixture of the classes' one-hot labels; θ is the global
header."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.fedgh import FedGH
from pfedlora_flwr.methods.method import ByClient, Refused, Tensors, Upload, check_layout
from pfedlora_flwr.methods.server_training import ServerOptions
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit

ROUNDING = 1e-4
"""How far the sum of a mixture's weights may be from 1."""


class FedRE(FedGH):
    """FedGH whose clients send one vector a round instead of one for each class."""

    title = "FedRE"
    paper = "Yao et al., CVPR 2026, arXiv 2511.22265"
    idea = "Like FedGH, from one random mixture of a client's class means and its mixed label"
    class_rows: ClassVar[tuple[str, ...]] = ("label",)
    shares = "one vector and its label up, last layer down"

    @dataclass(frozen=True)
    class Options(ServerOptions):
        pass

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """FedGH's visit; then r̃ = Σ w_c R̄_c and ỹ_c = w_c, w drawn from U(0, 1) and normalised,
        anew in every round."""
        report = super().local_update(model, received, data, visit).tensors
        classes, means = report["classes"], report["means"]
        # in (0, 1]: their sum is never 0
        weights = 1 - torch.rand(len(classes), generator=visit.generator)
        weights = (weights / weights.sum()).to(means.device)
        label = means.new_zeros(self.classes).index_copy_(0, classes, weights)
        return Upload(
            {"representation": (weights[:, None] * means).sum(0), "label": label}, len(data)
        )

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """θ ← θ − η_s ∇ Σ_k −Σ_c ỹ_{k,c} log softmax(θ(r̃_k))_c, the sum, not the mean, over the
        vectors of a batch."""
        inputs, targets = (
            torch.stack([u.tensors[name] for u in uploads.values()])
            for name in ("representation", "label")
        )
        return self.train_header(
            state, inputs, targets, partial(cross_entropy, reduction="sum"), round
        )

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        classes, width = state["weight"].shape
        check_layout(
            upload.tensors,
            {
                "representation": torch.empty(width, device="meta"),
                "label": torch.empty(classes, device="meta"),
            },
        )
        label = upload.tensors["label"]
        if not bool((label >= 0).all()) or not abs(float(label.sum()) - 1) <= ROUNDING:
            raise Refused(f"label is {label[:20].tolist()}, expected weights ≥ 0 that sum to 1")

    def largest_upload(self, state: Tensors) -> int:
        return 4 * sum(state["weight"].shape)
