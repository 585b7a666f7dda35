"""Variants of pFedLoRA that are ours and not the paper's, to look for one that gains from sharing (docs/results/gain).

    pfedlora run -o method=benchmarks.variants:Variant -o method-options="rows=classes softmax=held"

Every option's default is the paper's: without options a run of this class gives pFedLoRA's accuracies. Options go by the
names of pFedLoRA's keys, and those below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Refused, Tensors, Upload, check_layout
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit

_VELOCITY = "velocity."


class Variant(PFedLoRA):
    """pFedLoRA with other ways to train, merge and use the adapter."""

    title = "pFedLoRA variant"
    averages = False

    @dataclass(frozen=True)
    class Options(PFedLoRA.Options):
        rows: str = key("samples", "weights in the mean of a class's row of the last matrix", choices=("samples", "classes"))
        softmax: str = key("all", "classes in the adapter's losses: all, or those that the client holds", choices=("all", "held"))
        average: str = key("factors", "what is averaged: both matrices, or their product, cut to rank h", choices=("factors", "product"))
        down: str = key("trained", "the first matrix: trained, or as it began, orthogonal", choices=("trained", "fixed"))
        features: str = key("raw", "what the adapter reads: R, or R without its mean and of unit variance", choices=("raw", "normalised"))
        order: str = key("model", "what a visit trains first", choices=("model", "adapter"))
        predict: str = key("own", "the head alone, or μ · its logits + (1 − μ) · the adapter's", choices=("own", "both"))
        warmup: int = key(0, "rounds in which the weight of the own loss falls from 1 to μ", low=0)
        server_momentum: float = key(0.0, "β of the server: v ← βv + mean − θ, θ ← θ + v", low=0, below=1)

    @classmethod
    def check_experiment(cls, experiment: Any) -> None:
        if experiment.options.average == "product" and (experiment.setting == "homogeneous" or experiment.options.down == "fixed"):
            raise UserError("average=product; allowed: factors, or setting=heterogeneous and down=trained: two linear matrices")

    def state_init(self, seed: int) -> Tensors:
        theta = super().state_init(seed)
        if self.options.down == "fixed":
            with seeded(seed):
                nn.init.orthogonal_(theta["down.weight"])
            theta["down.bias"].zero_()
        velocity = {_VELOCITY + name: torch.zeros_like(t) for name, t in theta.items()} if self.options.server_momentum else {}
        return theta | velocity

    def private_init(self, client: int, seed: int) -> ClientModel:
        with seeded(seed):
            model = self.client_model(client)  # first, so that it starts as with every other method
            if self.options.predict == "own":
                return model
            return Both(model, self._adapter(model.widths[self.layers - 1]), self.options.mu, self.layers)

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        return {name: tensor for name, tensor in state.items() if not name.startswith(_VELOCITY)}

    def local_update(self, model: ClientModel, received: Tensors, data: Samples, visit: Visit) -> Upload:
        if isinstance(model, Both):
            upload = super().local_update(model.local, received, data, visit)
            model.adapter.load_state_dict(upload.tensors)
        else:
            upload = super().local_update(model, received, data, visit)
        if self.options.rows == "classes":
            upload.tensors["counts"] = torch.bincount(data.labels, minlength=self.classes)
        return upload

    def received_adapter(self, model: ClientModel, received: Tensors, data: Samples) -> Adapter:
        adapter = super().received_adapter(model, received, data)
        if self.options.softmax == "held":
            held = torch.zeros(self.classes, dtype=torch.bool, device=data.labels.device).index_fill_(0, data.labels, True)
            adapter.outside = ~held
        return adapter

    def train_model(self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit) -> None:
        if self.options.order == "adapter":
            super().train_adapter(model, adapter, data, visit)
            model.train()
        super().train_model(model, adapter, data, visit)

    def train_adapter(self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit) -> None:
        if self.options.order == "model":
            super().train_adapter(model, adapter, data, visit)

    def own_weight(self, round: int) -> float:
        mu, warmup = self.options.mu, self.options.warmup
        return mu + (1 - mu) * max(0.0, 1 - (round - 1) / warmup) if warmup else mu

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        theta = self.download(state, 0, round)
        samples = torch.tensor([upload.samples for upload in uploads.values()], dtype=torch.float64)  # [K]
        rows = samples[:, None].expand(-1, self.classes)  # [K, C]
        if self.options.rows == "classes":
            rows = torch.stack([upload.tensors["counts"] for upload in uploads.values()]).double()
        stacked = {name: torch.stack([upload.tensors[name] for upload in uploads.values()]).double() for name in theta}
        if self.options.average == "product":
            merged = self._products(stacked, rows, theta)
        else:
            weights = samples[:, None].expand(-1, len(theta["down.weight"]))
            merged = {n: _mean(stacked[n], rows if n.startswith("up.") else weights, theta[n].double()) for n in theta}
        merged = {name: tensor.to(theta[name].dtype) for name, tensor in merged.items()}
        if not (beta := self.options.server_momentum):
            return merged
        velocity = {name: beta * state[_VELOCITY + name] + merged[name] - theta[name] for name in theta}
        return {n: theta[n] + v for n, v in velocity.items()} | {_VELOCITY + n: v for n, v in velocity.items()}

    def _products(self, stacked: Tensors, rows: Tensor, theta: Tensors) -> Tensors:
        """The rank-h factors, of equal norms, of the mean of B_k A_k, and the mean of its bias B_k a_k + b_k."""

        def of(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
            return t["up.weight"] @ t["down.weight"], (t["up.weight"] @ t["down.bias"][..., None]).squeeze(-1) + t["up.bias"]

        (products, biases), (product, bias) = of(stacked), of({name: tensor.double() for name, tensor in theta.items()})
        u, s, v = torch.linalg.svd(_mean(products, rows, product), full_matrices=False)
        h, root = len(theta["down.bias"]), s.sqrt()
        up, down = torch.zeros_like(stacked["up.weight"][0]), torch.zeros_like(stacked["down.weight"][0])
        kept = min(h, len(s))  # where h is above the rank, the other columns and rows are zero
        up[:, :kept], down[:kept] = u[:, :kept] * root[:kept], root[:kept, None] * v[:kept]
        zero = torch.zeros(h, dtype=torch.float64)
        return {"down.weight": down, "down.bias": zero, "up.weight": up, "up.bias": _mean(biases, rows, bias)}

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        like = self.download(state, client, 0)
        counted = {"counts": torch.zeros(self.classes, dtype=torch.int64)} if self.options.rows == "classes" else {}
        check_layout(upload.tensors, like | counted)
        if counted and (int(upload.tensors["counts"].min()) < 0 or int(upload.tensors["counts"].sum()) != upload.samples):
            raise Refused(f"counts sum to {int(upload.tensors['counts'].sum())}, expected its {upload.samples} samples")

    def largest_upload(self, state: Tensors) -> int:
        return super().largest_upload(state) + 8 * self.classes

    def _adapter(self, width: int) -> Adapter:
        o = self.options
        return Reading(width, o.adapter_hidden_dim, self.classes, self.kind, o.adapter_init, o.features == "normalised", o.down == "fixed")


class Reading(Adapter):
    """An adapter that may normalise what it reads, leave out classes, and keep its first matrix."""

    outside: Tensor | None = None
    """The classes left out, bool [C]."""

    def __init__(self, width: int, hidden: int, classes: int, kind: str, init: str, normalise: bool, fixed: bool) -> None:
        super().__init__(width, hidden, classes, kind, init)
        self.normalise = normalise
        if fixed:
            self.down.requires_grad_(False)

    def forward(self, representation: Tensor) -> Tensor:
        if self.normalise:
            representation = layer_norm(representation, representation.shape[1:])
        logits = super().forward(representation)
        return logits if self.outside is None else logits.masked_fill(self.outside, float("-inf"))


class Both(ClientModel):
    """A client's model and the adapter as its last visit left it: logits of both, the own ones weighted by μ."""

    def __init__(self, local: ClientModel, adapter: Adapter, mu: float, layers: int) -> None:
        super().__init__()
        self.local, self.adapter, self.mu, self.layers = local, adapter, mu, layers
        self.widths = local.widths
        self.description = f"{local.description} with an adapter"

    def forward(self, images: Tensor) -> Tensor:
        representation = self.local.encode(images, self.layers)
        return self.mu * self.local.head(representation, self.layers) + (1 - self.mu) * self.adapter(representation)


def _mean(values: Tensor, weights: Tensor, otherwise: Tensor) -> Tensor:
    """Σ_k w_kc v_kc / Σ_k w_kc for each c, [K, C, …] and [K, C] → [C, …]; a c without weights is as in `otherwise`."""
    total = weights.sum(0)
    shares = (weights / total.clamp(min=1)).view(*weights.shape, *[1] * (values.ndim - 2))
    return torch.where((total > 0).view(-1, *[1] * (values.ndim - 2)), (shares * values).sum(0), otherwise)
