"""pFedLoRA. Yi, Yu, Wang, Liu, Li: pFedLoRA: Model-Heterogeneous Personalized Federated Learning with LoRA Tuning.

Symbols: ω_k is the client's model, an encoder f_k and a head h_k; θ is the adapter A that takes the head's place and is shared.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Method, Tensors, Upload, seeded, tensors_of, weighted_mean
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.cnn import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class PFedLoRA(Method):
    """Algorithm 1 (appendix A)."""

    def state_init(self, seed: int) -> Tensors:
        """θ⁰, the global adapter."""
        with seeded(seed):
            return tensors_of(self._adapter(self.shared_width("width", "one adapter", "set adapter.kind=decomposed")))

    def local_update(self, model: ClientModel, received: Tensors, data: Samples, visit: Visit) -> Upload:
        """Freeze the adapter, train the model; then freeze the model, train the adapter."""
        e = self.experiment
        adapter = self._adapter(model.width).to(data.labels.device)
        adapter.load_state_dict(received)  # θ_k ← θ^{t-1}

        def model_loss(images: Tensor, labels: Tensor) -> Tensor:
            representation = model.encode(images)  # R = f_k(x)
            own = cross_entropy(model.head(representation), labels)  # ℓ_2, Eq. 6
            through_adapter = cross_entropy(adapter(representation), labels)  # ℓ_1, Eq. 6
            return e.mu * own + (1 - e.mu) * through_adapter  # ℓ_ω, Eq. 7

        adapter.requires_grad_(False)  # frozen, not detached: its loss flows through it into f_k
        visit.sgd("model", model.parameters(), model_loss, data)  # ω_k^t ← ω_k^{t-1} − η_ω ∇ℓ_ω, Eq. 8
        adapter.requires_grad_(True)
        model.eval()  # frozen: no running statistics, no dropout (in a model of the user's)

        def adapter_loss(representation: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(adapter(representation), labels)  # ℓ_θ, Eq. 10

        def adapter_loss_of_images(images: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                representation = model.encode(images)  # R̃ = f_k(x)
            return adapter_loss(representation, labels)

        epochs, lr = e.adapter_epochs or e.local_epochs, e.adapter_lr or e.lr
        if e.augment:  # each epoch sees other images, so R̃ is computed anew
            visit.sgd("adapter", adapter.parameters(), adapter_loss_of_images, data, epochs=epochs, lr=lr)
        else:  # f_k is frozen and the images are the same in every epoch: R̃ is computed once
            features = Samples(visit.infer("adapter", model.encode, data), data.labels)
            visit.sgd("adapter", adapter.parameters(), adapter_loss, features, epochs=epochs, lr=lr, augment=False)
        return Upload(tensors_of(adapter), len(data))  # θ_k^t goes up, ω_k^t stays

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t, n over the admitted clients (Eq. 12)."""
        return weighted_mean(uploads)

    def _adapter(self, width: int) -> Adapter:
        e = self.experiment
        return Adapter(width, e.adapter_hidden_dim, self.classes, "reduced" if e.cut == "fc1" else "decomposed", e.adapter_init)
