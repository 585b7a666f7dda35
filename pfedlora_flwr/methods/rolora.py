"""RoLoRA. Chen, Guo, Ju, Dalal, Zhu, Khisti: Robust Federated Finetuning of Large Language Models
via Alternating Optimization of LoRA (NeurIPS 2025).

Symbols: t is the round, from 1."""

from __future__ import annotations

from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.lora_factors import A, B, held, load_some
from pfedlora_flwr.methods.method import ByClient, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class RoLoRA(FedIT):
    """One factor a round is trained and averaged, the other common and frozen, so that each mean is
    exact:

    odd t:  B_k ← argmin loss(W + s B_k A^{t−1}), B^t = Σ p_k B_k, A^t = A^{t−1};
    even t: A_k ← argmin loss(W + s B^{t−1} A_k), A^t = Σ p_k A_k, B^t = B^{t−1}.

    It begins with B: while B = 0, A has no gradient. Both go down, since a client may have missed
    rounds."""

    title = "RoLoRA"
    paper = "Chen et al., NeurIPS 2025, arXiv 2502.01755"
    idea = "LoRA's B and A are trained and averaged in turn, the other one frozen"
    shares = "up: LoRA's B or A in turn; down: both"

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        load_some(model, received)
        frozen = self.frozen_in(visit.round, received)
        with held(model, frozen):
            train_locally(model, data, visit)
        sent = {name: t for name, t in self.shared(model).items() if frozen not in name}
        return Upload(sent, len(data))

    def renewed(self, state: Tensors, round: int) -> Tensors:
        frozen = self.frozen_in(round, state)
        return {name: t for name, t in state.items() if frozen not in name}

    def frozen_in(self, round: int, state: Tensors) -> str:
        """The mark of the factor that is not trained in a round. Under a control a client to which
        B = 0 came down begins with B in an even round, too."""
        control = self.experiment.control
        begins = control and not any(t.any() for name, t in state.items() if B in name)
        return A if round % 2 or begins else B

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        return state | weighted_mean(uploads)

    def aggregation_error(self, uploads: ByClient, before: Tensors, after: Tensors) -> float | None:
        whole = {k: Upload(before | one.tensors, one.samples) for k, one in uploads.items()}
        return super().aggregation_error(whole, before, after)
