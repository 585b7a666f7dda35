"""FedIT. Zhang, Vahidian, Kuo, Li, Zhang, Yu, Zhou, Wang, Chen: Towards Building the Federated GPT:
Federated Instruction Tuning (ICASSP 2024)."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.lora_factors import (
    A,
    B,
    Product,
    error,
    load_some,
    products,
    scale_of,
)
from pfedlora_flwr.methods.method import ByClient, Tensors, Upload, check_layout
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit


class FedIT(Averaged):
    """FedAvg of LoRA's factors: A ← Σ p_k A_k, B ← Σ p_k B_k."""

    title = "FedIT"
    paper = "Zhang et al., ICASSP 2024, arXiv 2305.05644"
    idea = "LoRA's two factors are averaged, each by itself"
    shares = "LoRA's A and B"
    assumes = "one base and one rank, `train=lora`"
    one_model = True
    shares_lora = True
    sends: ClassVar[tuple[str, ...]] = (A, B)
    """What marks the factors that travel."""

    def state_init(self, seed: int) -> Tensors:
        with seeded(seed):
            return self.shared(self.client_model(0))

    def shared(self, model: ClientModel) -> Tensors:
        """What travels of a model: factors, and the head where `lora.head` is shared."""
        head = model.last_names() if self.experiment.lora.head == "shared" else set()
        return {
            name: tensor
            for name, tensor in kept(model).items()
            if name in head or any(mark in name for mark in self.sends)
        }

    @cached_property
    def layouts(self) -> dict[ModelSpec, Tensors]:
        """By client model: what such a client sends, by name, as it is first."""
        found = {}
        for k, name in enumerate(self.model_names):
            with seeded(0):
                found[name] = self.shared(self.client_model(k))
        return found

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        load_some(model, received)
        train_locally(model, data, visit)
        return Upload(self.shared(model), len(data))

    def aggregation_error(self, uploads: ByClient, before: Tensors, after: Tensors) -> float | None:
        scale = self.state_scale
        return error(
            self.shares_of(uploads), self.products(before, scale), self.products(after, scale)
        )

    def shares_of(self, uploads: ByClient) -> list[tuple[float, list[Product]]]:
        """By upload: p_k, and s_k B_k and A_k of each layer."""
        total = sum(upload.samples for upload in uploads.values())
        return [
            (one.samples / total, self.products(one.tensors, scale_of(self.model_of(k))))
            for k, one in uploads.items()
        ]

    @property
    def state_scale(self) -> float:
        """s of the factors in the state."""
        return scale_of(self.model_names[0])

    def products(self, tensors: Tensors, scale: float) -> list[Product]:
        """ΔW of each layer, of what travels."""
        return products(tensors, scale)


class SingleUploads(FedIT):
    """A method whose server needs each client's upload, of the layout of the client's own LoRA and
    not of the download."""

    averages = False

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        check_layout(upload.tensors, self.layouts[self.model_of(client)])

    def largest_upload(self, state: Tensors) -> int:
        return max(sum(t.nbytes for t in layout.values()) for layout in self.layouts.values())
