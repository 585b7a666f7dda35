"""FedRoD. Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image
Classification (ICLR 2022).

Symbols: θ is the extractor, z = f(x; θ); ψ is the generic head, a model's last layer; φ_k is client
k's personalised head, a linear layer beside ψ that begins at zero and never leaves it.

Clients of one model share θ and ψ, as in the paper; clients of different models share ψ alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.last_layer import shared_last_layer
from pfedlora_flwr.methods.method import ONE_WIDTH, Predictors, Tensors, Upload
from pfedlora_flwr.methods.tensors import rebuilt, tensors_of
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class TwoHeads(nn.Module):
    """What a client keeps: its model, of θ_k and ψ_k, and φ_k."""

    def __init__(self, model: ClientModel) -> None:
        super().__init__()
        generic = model.last_layer()
        self.model = model
        self.personal = Linear(
            generic.in_features, generic.out_features, bias=generic.bias is not None
        )
        for parameter in self.personal.parameters():
            nn.init.zeros_(parameter)

    def merged(self) -> ClientModel:
        """x ↦ ψ(z) + φ(z) as a model of the client's own architecture: both heads in its last
        layer."""
        generic, personal = self.model.last_layer(), self.personal
        with torch.device("meta"):  # nothing is drawn
            both = Linear(generic.in_features, generic.out_features, bias=generic.bias is not None)
        both.weight = nn.Parameter((generic.weight + personal.weight).detach())
        if generic.bias is not None:
            both.bias = nn.Parameter((generic.bias + personal.bias).detach())
        return self.model.with_last(both).train(self.training)


class FedRoD(Averaged):
    """The paper's method with a linear personalised head, which is trained and not made by a
    hypernetwork."""

    title = "FedRoD"
    paper = "Chen et al., ICLR 2022, arXiv 2107.00778"
    idea = (
        "A shared head learns as if the client had as many samples of each class; a private head is"
        " added to its logits"
    )
    shares = "whole model, or the generic last layer of different models"
    assumes = ONE_WIDTH
    one_width = True

    @cached_property
    def one_architecture(self) -> bool:
        """Whether all clients have the same model, so that they can share θ, too."""
        return len(set(self.model_names)) == 1

    def state_init(self, seed: int) -> Tensors:
        """θ⁰ and ψ⁰, or ψ⁰."""
        if not self.one_architecture:
            return shared_last_layer(self, seed)
        with seeded(seed):
            return kept(self.client_model(0))

    def private_init(self, client: int, seed: int) -> TwoHeads:
        with seeded(seed):
            return TwoHeads(self.client_model(client))

    def predictor(self, model: TwoHeads) -> ClientModel:
        return model.merged()

    def local_update(
        self, model: TwoHeads, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        self.load_shared(model.model, received)
        log_n = torch.bincount(data.labels, minlength=self.classes).log()  # −∞ for no sample

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            z = model.model.encode(inputs)
            generic = model.model.head(z)
            both = generic.detach() + model.personal(z.detach())
            balanced = cross_entropy(generic + log_n, labels)  # of θ and ψ: balanced softmax
            return balanced + cross_entropy(both, labels)  # of φ: the empirical risk

        visit.sgd("model", model.parameters(), loss, data)
        return Upload(self.shared(model.model), len(data))  # φ_k stays

    def other_predictors(self, model: TwoHeads, received: Tensors) -> Predictors:
        """The generic predictor as it arrived."""
        return {"generic": self.generic(received, model.model)}

    def generic(self, shared: Tensors, own: ClientModel | None) -> Callable[[Tensor], Tensor]:
        """x ↦ ψ(z): ψ alone needs an encoder, the client's own."""
        if self.one_architecture:
            model = rebuilt(lambda: self.client_model(0), shared)
            return model.eval().to(next(iter(shared.values())).device)
        assert own is not None
        return lambda inputs: linear(own.encode(inputs), shared["weight"], shared.get("bias"))

    def shared(self, model: ClientModel) -> Tensors:
        """What of a client's model travels."""
        return kept(model) if self.one_architecture else tensors_of(model.last_layer())

    def load_shared(self, model: ClientModel, received: Tensors) -> None:
        """Sets what `shared` names."""
        if self.one_architecture:
            load_kept(model, received)
        else:
            model.last_layer().load_state_dict(received)
