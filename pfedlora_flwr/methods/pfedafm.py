"""pFedAFM. Yi, Yu, Ren, Wang, Liu, Li: pFedAFM: Adaptive Feature Mixture for Batch-Level
Personalization in Heterogeneous Federated Learning (2024, arXiv 2404.17847).

Symbols: F_k(ω_k) is the client's own model, F_ex its extractor and F_hd its last layer; G(θ) is a
small extractor, the only part that is shared; α_k ∈ [0, 1]^d is the client's, and mixes the two
representations number by number into R̃."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import ONE_WIDTH, SMALL, Predictors, Tensors, Upload
from pfedlora_flwr.methods.tensors import frozen
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.composite import Composite
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class FeatureMixture(Composite):
    """What a client keeps: F_k, G as the last visit received it, which F_hd and α_k were fitted to,
    and α_k."""

    trained: Callable[[Tensor], Tensor] | None = None
    """`encode` of G as this visit has trained it: for `other_predictors`, and no part of what is
    kept."""

    def __init__(self, local: ClientModel, small: ClientModel) -> None:
        super().__init__(local, small)
        self.alpha = nn.Parameter(torch.ones(local.width))

    def encode(self, inputs: Tensor) -> Tensor:
        """R̃, [B, d]."""
        return self.mix(inputs, self.small.encode)

    def mix(self, inputs: Tensor, shared: Callable[[Tensor], Tensor]) -> Tensor:
        """R̃ = α ⊙ F_ex(x) + (1 − α) ⊙ G(x), [B, d], with `shared` for G."""
        return self.alpha * self.local.encode(inputs) + (1 - self.alpha) * shared(inputs)

    def bound(self) -> None:
        """α ← the nearest in [0, 1]^d."""
        with torch.no_grad():
            self.alpha.clamp_(0, 1)


class PFedAFM(Averaged):
    """Algorithm 1 of the paper."""

    title = "pFedAFM"
    paper = "Yi et al. 2024, arXiv 2404.17847"
    idea = (
        "A private vector mixes the client's own extractor and a small shared one, element by"
        " element; the two are trained in turn"
    )
    shares = "small extractor"
    merges = "mean, composite"
    assumes = f"{ONE_WIDTH}; {SMALL}"
    shares_small = True
    one_width = True

    def state_init(self, seed: int) -> Tensors:
        """θ⁰: an extractor alone."""
        with seeded(seed):
            return kept(self._small())

    def private_init(self, client: int, seed: int) -> FeatureMixture:
        with seeded(seed):
            # the client's own first, so that it starts as with every other method
            return FeatureMixture(self.client_model(client), self._small())

    def local_update(
        self, model: FeatureMixture, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Freeze the extractor, train the model and α; then freeze the model, train a copy of the
        extractor under its last layer."""
        load_kept(model.small, received)  # θ_k ← θ^{t-1}
        small = copy.deepcopy(model.small)  # which is trained; G stays as it was received
        model.small.eval()  # frozen: no running statistics, no dropout (in a model of the user's)

        def mixture_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            model.bound()  # after each step: nothing reads α in between
            return cross_entropy(model(inputs), labels)

        def small_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(model.head(small.encode(inputs)), labels)  # F_hd(G(x))

        with frozen(model.small):
            visit.sgd("model", model.parameters(), mixture_loss, data)
        model.bound()
        with frozen(model.local):
            visit.sgd("extractor", small.parameters(), small_loss, data)
        model.trained = small.eval().encode
        return Upload(kept(small), len(data))  # θ_k^t goes up, ω_k^t and α_k^t stay

    def other_predictors(self, model: FeatureMixture, received: Tensors) -> Predictors:
        """The mixture with the extractor as this visit has trained it, not as it arrived."""
        trained = model.trained
        if not trained:
            return {}
        return {"trained-small": lambda inputs: model.head(model.mix(inputs, trained))}

    def _small(self) -> ClientModel:
        return registry.small_extractor(self.model_names, self.task, self.shared_width)
