"""pFedLoRA. Yi, Yu, Wang, Liu, Li: pFedLoRA: Model-Heterogeneous Personalized Federated Learning with LoRA Tuning.

Symbols: ω_k is the client's model, an encoder f_k and a head h_k; θ is the adapter A that takes the head's place and is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Method, Tensors, Upload, frozen, tensors_of, weighted_mean
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit


class PFedLoRA(Method):
    """Algorithm 1 (appendix A)."""

    title = "pFedLoRA"
    averages = True
    one_width = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        prefix: ClassVar[str | None] = ""
        adapter_kind: str = key(
            "auto",
            "reduced (after FC1) or decomposed (after FC2); auto: by the setting",
            name="adapter.kind",
            choices=("auto", "reduced", "decomposed"),
        )
        adapter_hidden_dim: int = key(
            60,
            "h, the adapter's hidden width (its rank)",
            name="adapter.hidden-dim",
            low=1,
            high=10_000,
        )
        adapter_init: str = key(
            "random",
            "PyTorch's default, or first Gaussian and second zero",
            name="adapter.init",
            choices=("random", "lora"),
        )
        mu: float = key(
            0.5,
            "μ, the weight of a client's own loss (Eq. 7; the paper uses 0.5 ≤ μ < 1)",
            low=0,
            high=1,
        )
        adapter_epochs: int | None = key(
            None, "epochs of adapter training a round; auto: local-epochs", low=1
        )
        adapter_lr: float | None = key(None, "η_θ, the adapter's learning rate; auto: lr", above=0)

    def state_init(self, seed: int) -> Tensors:
        """θ⁰, the global adapter. Raises UserError where a reduced one cannot fit all models: no neck widens an FC1."""
        if len(set(self.widths.values())) > 1:
            told = ", ".join(f"{name} {width}" for name, width in self.widths.items())
            raise UserError(
                f"one adapter cannot fit representations of different widths ({told}); set adapter.kind=decomposed"
            )
        with seeded(derive(seed, "adapter")):
            return tensors_of(self._adapter(self.shared_width))

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Freeze the adapter, train the model; then freeze the model, train the adapter."""
        adapter = self.received_adapter(model, received, data)
        self.train_model(model, adapter, data, visit)
        self.train_adapter(model, adapter, data, visit)
        return Upload(tensors_of(adapter), len(data))  # θ_k^t goes up, ω_k^t stays

    def received_adapter(self, model: ClientModel, received: Tensors, data: Samples) -> Adapter:
        """θ_k ← θ^{t-1}, where the data is."""
        adapter = self._adapter(model.widths[self.layers - 1]).to(data.labels.device)
        adapter.load_state_dict(received)
        return adapter

    def train_model(
        self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit
    ) -> None:
        """ω_k^t ← ω_k^{t-1} − η_ω ∇ℓ_ω (Eq. 8). The adapter is frozen, not detached: its loss flows through it into f_k."""
        mu, layers = self.own_weight(visit.round), self.layers

        def model_loss(images: Tensor, labels: Tensor) -> Tensor:
            representation = model.encode(images, layers)  # R = f_k(x)
            own = cross_entropy(model.head(representation, layers), labels)  # ℓ_2, Eq. 6
            through_adapter = cross_entropy(adapter(representation), labels)  # ℓ_1, Eq. 6
            return mu * own + (1 - mu) * through_adapter  # ℓ_ω, Eq. 7

        with frozen(adapter):
            visit.sgd("model", model.parameters(), model_loss, data)

    def train_adapter(
        self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit
    ) -> None:
        """θ_k^t ← θ^{t-1} − η_θ ∇ℓ_θ, with f_k frozen."""
        e, o, layers = self.experiment, self.options, self.layers
        model.eval()  # frozen: no running statistics, no dropout (in a model of the user's)

        def adapter_loss(representation: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(adapter(representation), labels)  # ℓ_θ, Eq. 10

        def adapter_loss_of_images(images: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                representation = model.encode(images, layers)  # R̃ = f_k(x)
            return adapter_loss(representation, labels)

        epochs, lr = o.adapter_epochs or e.local_epochs, o.adapter_lr or e.lr
        if e.augment:  # each epoch sees other images, so R̃ is computed anew
            visit.sgd(
                "adapter", adapter.parameters(), adapter_loss_of_images, data, epochs=epochs, lr=lr
            )
        else:  # f_k is frozen and the images are the same in every epoch: R̃ is computed once
            features = Samples(
                visit.infer("adapter", lambda images: model.encode(images, layers), data),
                data.labels,
            )
            visit.sgd(
                "adapter",
                adapter.parameters(),
                adapter_loss,
                features,
                epochs=epochs,
                lr=lr,
                augment=False,
            )

    def own_weight(self, round: int) -> float:
        """μ of Eq. 7 in this round: the same in all."""
        return self.options.mu

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t, n over the admitted clients (Eq. 12)."""
        return weighted_mean(uploads)

    def shared_predictor(
        self, shared: Tensors, own: ClientModel | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """θ needs an encoder, and f_k stays with its client."""
        if own is None:
            return None
        adapter = self._adapter(own.widths[self.layers - 1])
        adapter.load_state_dict(shared)
        return lambda images: adapter(own.encode(images, self.layers))

    def _adapter(self, width: int) -> Adapter:
        o = self.options
        return Adapter(width, o.adapter_hidden_dim, self.classes, self.kind, o.adapter_init)

    @property
    def kind(self) -> str:
        """The adapter's kind; `auto` is the paper's for the setting."""
        auto = "reduced" if self.experiment.setting == "homogeneous" else "decomposed"
        return auto if self.options.adapter_kind == "auto" else self.options.adapter_kind

    @property
    def layers(self) -> int:
        """How many of the model's last layers the adapter stands beside: FC2 and FC3 if it is reduced, else FC3."""
        return 2 if self.kind == "reduced" else 1
