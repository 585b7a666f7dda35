"""Variants of pFedLoRA that are ours and not the paper's, to look for one that gains from sharing.

    pfedlora run -o method=benchmarks.variants:Variant -o method-options="rows=classes down=private"
    pfedlora compare benchmarks/gain.yaml

Every option's default is the paper's, and pFedLoRA's own options go by its keys' names. In words of
FedProto, the rows of `up` are what all clients can mean the same by: a row is a class, whereas
`down` reads each client's representation in a basis of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import ClassMeans
from pfedlora_flwr.methods.method import Refused, Tensors, Upload, check_layout
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.standalone import Standalone
from pfedlora_flwr.methods.tensors import tensors_of, weighted_mean
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit


class Kept(nn.Module):
    """What a client keeps where the first matrix is private: its model, and the matrix."""

    def __init__(self, local: ClientModel, down: Linear) -> None:
        super().__init__()
        self.local = local
        self.down = down


class Variant(PFedLoRA):
    """pFedLoRA with other ways to share and to train the adapter."""

    averages = False

    @dataclass(frozen=True)
    class Options(PFedLoRA.Options):
        rows: str = key(
            "samples",
            "weights of a row of the last matrix: n_k; or classes: its class's samples, and losses"
            " over the classes held",
            choices=("samples", "classes"),
        )
        down: str = key(
            "trained",
            "the first matrix: trained and shared; fixed, orthogonal as it began (it is sent all"
            " the same); or private",
            choices=("trained", "fixed", "private"),
        )
        features: str = key(
            "raw",
            "what the adapter reads: R, or R without its mean and of unit variance",
            choices=("raw", "normalised"),
        )
        order: str = key("model", "what a visit trains first", choices=("model", "adapter"))
        mu_start: float = key(
            1.0, "the weight of the own loss in round 1, of a warm-up", low=0, high=1
        )
        warmup: int = key(0, "rounds in which that weight goes to μ", low=0)
        server_lr: float = key(
            1.0,
            "how far a round moves what is shared to the mean of the uploads; 1: all the way",
            above=0,
            high=1,
        )

    def state_init(self, seed: int) -> Tensors:
        theta = super().state_init(seed)
        if self.options.down == "private":
            return {name: tensor for name, tensor in theta.items() if name.startswith("up.")}
        if self.options.down == "fixed":
            with seeded(seed):
                nn.init.orthogonal_(theta["down.weight"])
            theta["down.bias"].zero_()
        return theta

    def private_init(self, client: int, seed: int) -> nn.Module:
        with seeded(seed):
            local = self.client_model(client)  # first, so that it starts as with every other method
            if self.options.down != "private":
                return local
            return Kept(local, self.adapter_of(local).down)

    def predictor(self, model: nn.Module) -> ClientModel:
        return model.local if isinstance(model, Kept) else super().predictor(model)

    def local_update(
        self, model: nn.Module, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        local = self.predictor(model)
        adapter = self.received_adapter(
            local, received | (_named(model.down) if isinstance(model, Kept) else {}), data
        )
        assert isinstance(adapter, Reading)
        if self.options.rows == "classes":
            adapter.outside = torch.ones(
                self.classes, dtype=torch.bool, device=data.labels.device
            ).index_fill_(0, data.labels, False)
        if self.options.order == "adapter":
            self.train_adapter(local, adapter, data, visit)
            self.train_model(local.train(), adapter, data, visit)
        else:
            self.train_model(local, adapter, data, visit)
            self.train_adapter(local, adapter, data, visit)
        if isinstance(model, Kept):
            model.down.load_state_dict(tensors_of(adapter.down))
        sent = {name: tensor for name, tensor in tensors_of(adapter).items() if name in received}
        if adapter.outside is not None:
            # weight decay has no part in rows that are not the client's
            for name in ("up.weight", "up.bias"):
                sent[name][adapter.outside] = received[name][adapter.outside]
            sent["counts"] = torch.bincount(data.labels, minlength=self.classes)
        return Upload(sent, len(data))

    def own_weight(self, round: int) -> float:
        o = self.options
        left = max(0.0, 1 - (round - 1) / o.warmup) if o.warmup else 0.0
        return left * o.mu_start + (1 - left) * o.mu

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        merged = self.merged(uploads, state)
        rate = self.options.server_lr
        return (
            merged
            if rate == 1
            else {name: state[name].lerp(tensor, rate) for name, tensor in merged.items()}
        )

    def merged(self, uploads: Mapping[int, Upload], state: Tensors) -> Tensors:
        """The means of the uploads; of a class that none of them holds the rows as they were."""
        if self.options.rows == "samples":
            return weighted_mean(uploads)
        whole = [name for name in state if not name.startswith("up.")]
        merged = state | weighted_mean(
            {k: replace(u, tensors={n: u.tensors[n] for n in whole}) for k, u in uploads.items()}
        )
        for name in ("up.weight", "up.bias"):
            rows = ClassMeans(self.classes, state[name][0].numel())
            for upload in uploads.values():
                rows.add(
                    upload.tensors[name].view(self.classes, -1),
                    torch.arange(self.classes),
                    upload.tensors["counts"],
                )
            found = rows.tensors()
            merged[name] = state[name].index_copy(
                0, found["classes"], found["means"].view(-1, *state[name].shape[1:])
            )
        return merged

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        counted = (
            {"counts": torch.zeros(self.classes, dtype=torch.int64)}
            if self.options.rows == "classes"
            else {}
        )
        check_layout(upload.tensors, state | counted)
        counts = upload.tensors.get("counts")
        if counts is not None and (int(counts.min()) < 0 or int(counts.sum()) != upload.samples):
            raise Refused(
                f"counts are {counts[:20].tolist()}, expected numbers ≥ 0 that sum to its"
                f" {upload.samples} samples"
            )

    def largest_upload(self, state: Tensors) -> int:
        return super().largest_upload(state) + (
            8 * self.classes if self.options.rows == "classes" else 0
        )

    def shared_predictor(self, shared: Tensors, own: ClientModel | None = None) -> None:
        """None: what is sent makes no predictor by itself in every variant."""

    def _adapter(self, width: int) -> Adapter:
        o = self.options
        adapter = Reading(width, o.adapter_hidden_dim, self.classes, self.kind, o.adapter_init)
        adapter.normalise = o.features == "normalised"
        if o.down == "fixed":
            adapter.down.requires_grad_(False)
        return adapter


class Reading(Adapter):
    """An adapter that may normalise what it reads, and leave out classes."""

    normalise = False
    outside: Tensor | None = None
    """The classes left out, bool [C]."""

    def forward(self, representation: Tensor) -> Tensor:
        logits = super().forward(
            layer_norm(representation, representation.shape[1:])
            if self.normalise
            else representation
        )
        return logits if self.outside is None else logits.masked_fill(self.outside, float("-inf"))


class NormalisedStandalone(Standalone):
    """Standalone whose last layer reads what `features=normalised` gives an adapter: R without its
    mean and of unit variance."""

    def private_init(self, client: int, seed: int) -> nn.Module:
        model = super().private_init(client, seed)
        self.predictor(model).last_layer().register_forward_pre_hook(_normalised)
        return model


def _normalised(layer: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    (representation,) = inputs
    return layer_norm(representation, representation.shape[1:])


def _named(down: Linear) -> Tensors:
    """A private first matrix under its names in the adapter."""
    return {f"down.{name}": tensor for name, tensor in tensors_of(down).items()}
