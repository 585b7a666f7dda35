"""pFedES. Yi, Yu, Ren, Wang, Liu, Li: pFedES: Generalized Proxy Feature Extractor Sharing for Model
Heterogeneous Personalized Federated Learning (AAAI 2025, arXiv 2311.06879).

Symbols: F(ω_k) is the client's own model; G(θ) is a tiny extractor that makes of an image x
another, x̂ = G(x), of the same shape, and the only part that is shared; μ weighs the transformed
images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import Method, Predictors, Tensors, Upload
from pfedlora_flwr.methods.tensors import frozen, tensors_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.device import channels_last
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy

FILTERS = 8
"""Of G's first convolution."""


class PFedES(Averaged):
    """Algorithm 1 of the paper."""

    title = "pFedES"
    paper = "Yi et al., AAAI 2025, arXiv 2311.06879"
    idea = (
        "The model also learns from images transformed by a tiny shared extractor; the extractor"
        " then learns through the model"
    )
    shares = "image-to-image extractor"
    assumes = "images"
    needs_images = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        mu: float = key(
            0.5,
            "μ, the weight of the transformed images in a client's loss (the paper: 0 < μ ≤ 0.5)",
            low=0,
            high=1,
        )
        extractor_epochs: int | None = key(
            None, "epochs of extractor training per round; auto: local-epochs", low=1
        )

    def state_init(self, seed: int) -> Tensors:
        with seeded(seed):
            return tensors_of(extractor(self.task.shape[0]))

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Freeze the extractor, train the model on both images; then freeze the model, train the
        extractor through it."""
        mu, device = self.options.mu, data.labels.device
        proxy = loaded(received, device)  # θ_k ← θ^{t-1}

        def model_loss(images: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                transformed = proxy(images)  # x̂ = G(x)
            return mu * cross_entropy(model(transformed), labels) + (1 - mu) * cross_entropy(
                model(images), labels
            )

        def extractor_loss(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(model(proxy(images)), labels)

        visit.sgd("model", model.parameters(), model_loss, data)
        model.eval()  # frozen: no running statistics, no dropout (in a model of the user's)
        with frozen(model):
            visit.sgd(
                "extractor",
                proxy.parameters(),
                extractor_loss,
                data,
                epochs=self.options.extractor_epochs,
            )
        return Upload(tensors_of(proxy), len(data))  # θ_k^t goes up, ω_k^t stays

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        """The client's model on what the extractor that arrived makes of an image."""
        proxy = loaded(received, next(model.parameters()).device)
        return {"through-extractor": lambda images: model(proxy(images))}


def extractor(channels: int) -> nn.Sequential:
    """A fresh G: [B, c, H, W] → the same shape, ≥ 0."""
    first = nn.Conv2d(channels, FILTERS, 3, padding=1)
    second = nn.Conv2d(FILTERS, channels, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


def loaded(tensors: Tensors, device: torch.device) -> nn.Sequential:
    """G with the values that arrived."""
    proxy = extractor(len(tensors["2.bias"]))
    proxy.load_state_dict(tensors)
    return channels_last(proxy.to(device))
