"""pFedMoE. Yi, Yu, Ren, Zhang, Wang, Liu, Li: pFedMoE: Data-Level Personalization with Mixture of
Experts for Model-Heterogeneous Personalized Federated Learning (2024, arXiv 2402.01350).

Symbols: F_k(ω_k) is the client's own model, whose extractor is the local expert; G(θ) is a small
extractor, the global expert, and the only part that is shared; H_k(φ_k) is the client's gate, whose
weights a_G and a_F mix the experts' representations for each sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import ONE_WIDTH, SMALL, Method, Predictors, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.composite import Composite
from pfedlora_flwr.models.gate import Gate
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.kinds import TEXT
from pfedlora_flwr.training.loop import Samples, Visit


class Mixture(Composite):
    """What a client keeps: F_k, G as it left the last visit, and H_k."""

    def __init__(self, local: ClientModel, small: ClientModel, inputs: int, hidden: int) -> None:
        super().__init__(local, small)
        self.gate = Gate(inputs, hidden)

    def encode(self, inputs: Tensor) -> Tensor:
        """R = a_G · G(x) + a_F · F_ex(x), [B, d]."""
        a_g, a_f = self.gate(inputs).split(1, 1)  # [B, 1] each
        return a_g * self.small.encode(inputs) + a_f * self.local.encode(inputs)


class PFedMoE(Averaged):
    """The paper's method, as docs/fidelity.md says from which sources."""

    title = "pFedMoE"
    paper = "Yi et al. 2024, arXiv 2402.01350"
    idea = "A private gate weighs the client's own extractor and a small shared one for each sample"
    shares = "small extractor"
    merges = "mean, composite"
    assumes = f"{ONE_WIDTH}; {SMALL}"
    shares_small = True
    one_width = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        gate_hidden_dim: int = key(128, "m, the width of the gate's hidden layer", low=1)

    def state_init(self, seed: int) -> Tensors:
        """θ⁰, the global expert: an extractor alone. Raises UserError for inputs that the gate
        cannot normalise: texts, and those of one number."""
        if self.task.kind == TEXT:
            raise UserError(
                "method pfedmoe normalises each input by itself, and tokens are no quantities;"
                " allowed: images, series, vectors"
            )
        if math.prod(self.task.shape) < 2:
            raise UserError(
                "method pfedmoe normalises each input by itself, and these have 1 number; allowed:"
                " at least 2"
            )
        with seeded(seed):
            return kept(self._small())

    def private_init(self, client: int, seed: int) -> Mixture:
        with seeded(seed):
            local = self.client_model(client)  # first, so that it starts as with every other method
            return Mixture(
                local, self._small(), math.prod(self.task.shape), self.options.gate_hidden_dim
            )

    def local_update(
        self, model: Mixture, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Both experts, the gate and the last layer are trained end to end."""
        load_kept(model.small, received)  # θ_k ← θ^{t-1}
        train_locally(model, data, visit)
        return Upload(kept(model.small), len(data))  # θ_k^t goes up, ω_k^t and φ_k^t stay

    def other_predictors(self, model: Mixture, received: Tensors) -> Predictors:
        """The last layer on either expert alone."""
        return {
            "global-expert": lambda inputs: model.head(model.small.encode(inputs)),
            "local-expert": model.local,
        }

    def _small(self) -> ClientModel:
        return registry.small_extractor(self.model_names, self.task, self.shared_width)
