"""A first visit of pFedLoRA on CIFAR-100: what phase 1 does to the representation R, and phase 2, in a plain PyTorch loop, to the adapter.

    python docs/results/methods/cifar100/first_visit.py [FOLDER OF THE DATA]

Clients 8, 9 and 64 of the page's runs, seed 0. Half a minute on a core.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site, task_of
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.rng import derive, torch_generator
from pfedlora_flwr.training.loop import Visit, infer

SETTING = {"dataset": "cifar100", "clients": 100, "participation": 0.1, "partition.classes-per-client": 10, "local-epochs": 5}


def show(client: int, mu: float, folder: str) -> None:
    experiment = from_flat({**SETTING, "mu": mu, "data-path": folder})
    method, seed = PFedLoRA(experiment, task_of(experiment)), experiment.seed
    data = Site.find(experiment, client, {}).load(torch.device("cpu")).train
    model = method.predictor(method.private_init(client, derive(seed, "model", client)).to(memory_format=torch.channels_last))
    visit = Visit(experiment, client, 1, torch_generator(seed, "train", client, 1))
    adapter = method.received_adapter(model, method.state_init(derive(seed, "state")), data)
    for when in ("before phase 1", "after it"):
        if when == "after it":
            method.train_model(model.train(), adapter, data, visit)
        r = infer(model.encode, data)
        with torch.no_grad():
            own, through = cross_entropy(model.last_layer()(r), data.labels), cross_entropy(adapter(r), data.labels)
        print(
            f"client {client}, μ = {mu}, {when}: mean |R| {r.norm(dim=1).mean():.1f}, own loss {own:.2f}, through the adapter {through:.2f}"
        )
    for lr in (0.01, 0.003, 0.001):
        found = " ".join(f"{loss:.2f}" for loss in losses(copy.deepcopy(adapter), r, data.labels, lr))
        print(f"  phase 2, learning rate {lr}: mean loss by epoch {found}")


def losses(adapter: torch.nn.Module, r: torch.Tensor, labels: torch.Tensor, lr: float) -> list[float]:
    """The mean loss of each of five epochs of SGD with momentum 0.9 in batches of 64."""
    optimizer = torch.optim.SGD(adapter.parameters(), lr, momentum=0.9)
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(5):
        total = 0.0
        for batch in torch.randperm(len(r), generator=generator).split(64):
            loss = cross_entropy(adapter(r[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        found.append(total / len(r))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    for mu in (0.5, 0.9):
        for client in (8, 9, 64):
            show(client, mu, sys.argv[1] if len(sys.argv) > 1 else "")
