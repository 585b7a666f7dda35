"""FedALT. Bian, Wang, Zhang, Xu: FedALT: Federated Fine-Tuning through Adaptive Local Training with
Rest-of-World LoRA (AAAI 2026).

Symbols: A_k and B_k are client k's individual LoRA, A_R and B_R its rest-of-world LoRA, the mean of
the other clients'; G_k is its mixer, which weighs the two by the input x of a layer."""

from __future__ import annotations

import torch
from torch import nn

from pfedlora_flwr.methods.fedit import SingleUploads
from pfedlora_flwr.methods.lora_factors import A, B, is_factor, load_some, mean_of_heads
from pfedlora_flwr.methods.method import ByClient, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.models.lora_layers import FIRST, REST, add_gated, open_gates
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit

CLIENTS, SAMPLES = "clients", "samples"


class FedALT(SingleUploads):
    """y = W x + g_1(x) s B_k A_k x + g_2(x) s B_R A_R x with g(x) = softmax(G_k x). A client trains
    A_k, B_k and G_k from visit to visit; no download replaces them. A_R and B_R are frozen; until
    others have reported g_1 is 1, so that a client alone is Standalone.

    The server remembers each client's last upload, so a client may miss rounds: once clients
    have reported the state has `clients`, ascending, and `samples`, int64 [K], and of each uploaded
    tensor K of them, stacked."""

    title = "FedALT"
    paper = "Bian et al., AAAI 2026, arXiv 2503.11880"
    idea = "A private LoRA and a frozen mean of the others' are weighed by a trained gate"
    shares = "up: LoRA's A and B; down: the means of the others'"
    merges = "mean of the others'"
    returns_own = False
    sends = (f"{A}{FIRST}.", f"{B}{FIRST}.")

    def state_init(self, seed: int) -> Tensors:
        """Nobody has reported."""
        return {}

    def private_init(self, client: int, seed: int) -> nn.Module:
        with seeded(seed):
            model = self.client_model(client)
            add_gated(model, self.model_of(client).lora_init)
        return model

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """A_R = Σ_{j≠k} n_j A_j / Σ_{j≠k} n_j, B_R alike; and the mean of all heads, where these
        are shared."""
        reports = reported(state)
        others = {
            j: Upload({rest_of(n): t for n, t in one.tensors.items() if is_factor(n)}, one.samples)
            for j, one in reports.items()
            if j != client
        }
        sent = weighted_mean(others) if others else {}
        return sent | mean_of_heads(reports) if reports else sent

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        load_some(model, received)
        if any(is_factor(name) for name in received):
            open_gates(model)
        train_locally(model, data, visit)
        return Upload(self.shared(model), len(data))

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        last = sorted((reported(state) | dict(uploads)).items())
        numbers = {CLIENTS: [k for k, _ in last], SAMPLES: [one.samples for _, one in last]}
        return {name: torch.tensor(of) for name, of in numbers.items()} | {
            name: torch.stack([one.tensors[name] for _, one in last]) for name in last[0][1].tensors
        }

    def aggregation_error(self, uploads: ByClient, before: Tensors, after: Tensors) -> float | None:
        """None: each client has its own mean."""
        return None


def reported(state: Tensors) -> dict[int, Upload]:
    """By client: its last upload."""
    if not state:
        return {}
    tensors = {name: rows for name, rows in state.items() if name not in (CLIENTS, SAMPLES)}
    return {
        int(k): Upload({name: rows[at] for name, rows in tensors.items()}, int(state[SAMPLES][at]))
        for at, k in enumerate(state[CLIENTS])
    }


def rest_of(name: str) -> str:
    """What a factor's mean is called at the client that receives it."""
    return name.replace(f".{FIRST}.", f".{REST}.")
