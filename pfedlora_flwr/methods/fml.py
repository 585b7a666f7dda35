"""FML. Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning (2020).

Symbols: the client's own model is *local* and never leaves it; the *small* one (the paper's meme
model) comes from the server, learns with the local one, and goes back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import SMALL, Method, Tensors, Upload
from pfedlora_flwr.methods.mutual import kl, received_model, small_model
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class FML(Averaged):
    """Algorithm 1 of the paper."""

    title = "FML"
    paper = "Shen et al. 2020, arXiv 2006.16765"
    idea = "The client's own model and a small shared model learn from each other's predictions"
    shares = "small model"
    assumes = SMALL
    shares_small = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        alpha: float = key(0.5, "α, the weight of the labels for the local model", low=0, high=1)
        beta: float = key(0.5, "β, the weight of the labels for the small model", low=0, high=1)

    def state_init(self, seed: int) -> Tensors:
        with seeded(seed):
            return kept(small_model(self))

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Deep mutual learning. The two losses share no gradient, so one SGD on their sum is one
        SGD on each."""
        alpha, beta = self.options.alpha, self.options.beta
        small = received_model(self, received, data.labels.device)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            local_logits, small_logits = model(inputs), small(inputs)
            local_loss = alpha * cross_entropy(local_logits, labels) + (1 - alpha) * kl(
                local_logits, small_logits
            )
            small_loss = beta * cross_entropy(small_logits, labels) + (1 - beta) * kl(
                small_logits, local_logits
            )
            return local_loss + small_loss

        visit.sgd("model", [*model.parameters(), *small.parameters()], loss, data)
        return Upload(kept(small), len(data))
