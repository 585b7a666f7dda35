"""FedDPA. Yang, Long, Shen, Jiang, Blumenstein: Dual-Personalizing Adapter for Federated Foundation
Models (NeurIPS 2024). This is FedDPA-T, which trains both adapters at every visit.

Symbols: index g is the global adapter, l the client's own; a is the own one's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.lora_factors import A, B, held, load_some
from pfedlora_flwr.methods.method import Predictors, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.lora_layers import FIRST, LOCAL, add_second, cut_off, mix
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit


class FedDPA(FedIT):
    """From the second round on the own adapter is trained first, the global one frozen and
    detached: y = W x + a s B_l A_l x + (1−a) sg[s B_g A_g x]; then the global one alone:
    y = W x + s B_g A_g x. The first of the two predicts."""

    title = "FedDPA"
    paper = "Yang et al., NeurIPS 2024, arXiv 2403.19211"
    idea = "A global and a private LoRA are trained in turn; their mixture predicts"
    shares = "the global LoRA's A and B"
    sends = (f"{A}{FIRST}.", f"{B}{FIRST}.")

    @dataclass(frozen=True)
    class Options(FedIT.Options):
        alpha: float = key(
            0.5, "a, the private adapter's share in the mixture that predicts", low=0, high=1
        )

    @property
    def mixture(self) -> Mapping[str, float]:
        return {FIRST: 1 - self.options.alpha, LOCAL: self.options.alpha}

    def private_init(self, client: int, seed: int) -> nn.Module:
        with seeded(seed):
            model = self.client_model(client)
            add_second(model, self.model_of(client).lora_init)
        mix(model, self.mixture)
        return model

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        load_some(model, received)
        if visit.round > 1:
            with held(model, f".{FIRST}."), cut_off(model, FIRST):
                train_locally(model, data, visit)
        mix(model, {FIRST: 1.0})
        with held(model, f".{LOCAL}."):
            train_locally(model, data, visit, "global")
        mix(model, self.mixture)
        return Upload(self.shared(model), len(data))

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        def alone(which: str) -> Callable[[Tensor], Tensor]:
            def predict(inputs: Tensor) -> Tensor:
                mix(model, {which: 1.0})
                try:
                    return model(inputs)
                finally:
                    mix(model, self.mixture)

            return predict

        return {"global": alone(FIRST), "local": alone(LOCAL)}
