"""Training on the server from clients' reports, for FedGH, FedRE, FedTGP and FedORGP.

It runs on the CPU in float32, and nothing of it depends on anything but its arguments: the same
reports give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import ByClient, Method, Tensors
from pfedlora_flwr.training.optimizers import SGD


@dataclass(frozen=True)
class ServerOptions(Method.Options):
    """The keys of a method that trains on the server."""

    server_lr: float = key(0.01, "learning rate of the server's SGD", above=0)
    server_epochs: int = key(1, "passes over a round's reports on the server", low=1)
    server_batch: int = key(32, "reports per step on the server; 0: all at once", low=0)


def train(
    module: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    rows: int,
    options: ServerOptions,
    generator: torch.Generator,
) -> None:
    """Plain SGD of `module` on `loss_of(index)`, the loss of the reports `index` int64 [B], in
    shuffled passes over all `rows`."""
    optimizer = SGD(list(module.parameters()), options.server_lr, momentum=0.0, weight_decay=0.0)
    for _ in range(options.server_epochs):
        for index in torch.randperm(rows, generator=generator).split(options.server_batch or rows):
            optimizer.zero_grad()
            loss_of(index).backward()
            optimizer.step()


def stacked(uploads: ByClient) -> Tensors:
    """All clients' rows below each other, in the mapping's order."""
    names = next(iter(uploads.values())).tensors
    return {
        name: torch.cat([upload.tensors[name] for upload in uploads.values()]) for name in names
    }
