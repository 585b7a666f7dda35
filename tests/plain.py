"""A federation in a dozen lines: the same methods, data and random draws as a real run, without
Flower, disk or processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.data.local import LocalData, Site
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.methods.sums import OfSums
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import derive, sample_clients, torch_generator
from pfedlora_flwr.training.loop import Samples, Visit
from tests.conftest import named_keys


class Plain:
    """`train` runs rounds; `state` is the server's, `models` the clients'; the rest is the last
    round's, by client."""

    def __init__(self, keys: Mapping[str, object] | None = None, **more: object) -> None:
        """`keys` are a run's; in the names of `more` an underscore stands for a hyphen, two for a
        dot."""
        named = named_keys(more)
        self.config = run_config({**(keys or {}), **named})
        self.experiment = self.config.experiment
        self.method = make(self.experiment)
        self.state = self.method.state_init(derive(self.experiment.seed, "state"))
        self.models: dict[int, nn.Module] = {}
        self.round = 0
        self.received: dict[int, Tensors] = {}
        self.uploads: dict[int, Upload] = {}
        self.visits: dict[int, Visit] = {}

    def train(self, rounds: int, alone: int | None = None) -> None:
        """alone: the only client there is, in the rounds in which it is sampled."""
        for _ in range(rounds):
            e, n = self.experiment, self.round + 1
            self.play(
                k
                for k in sample_clients(e.seed, n, e.clients_in(n), e.sampled_in(n))
                if alone in (None, k)
            )

    def play(self, clients: Iterable[int]) -> None:
        """One round of these clients."""
        self.round += 1
        self.received, self.uploads, self.visits = {}, {}, {}
        for k in clients:
            self.received[k] = self.method.download(self.state, k, self.round)
            self.uploads[k], self.visits[k] = visits.visit(
                self.method, self.model(k), self.received[k], self.data(k).train, k, self.round
            )
            self.method.check(self.uploads[k], self.method.renewed(self.state, self.round), k)
        if self.uploads:
            self.state = self.method.aggregate(self.uploads, self.state, self.round)

    def model(self, client: int) -> nn.Module:
        if client not in self.models:
            self.models[client] = self.method.initial_model(client)
        return self.models[client]

    def data(self, client: int) -> LocalData:
        where = {"data-path": self.config.execution.data_path}
        return Site.find(self.experiment, client, where).load(torch.device("cpu"))

    def accuracy(self) -> float:
        """Mean test accuracy over all clients."""
        shares = [
            visits.evaluate(self.method, self.model(k), self.data(k)).accuracy("test")
            for k in range(self.experiment.clients)
        ]
        return sum(shares) / len(shares)


def runs(method: str, setting: str) -> bool:
    """Whether a method of ours takes the client models of a setting."""
    try:
        from_flat({"method": method, "setting": setting})
    except UserError:
        return False
    return True


LORA = tuple(name for name in registry.NAMES if registry.find(name).shares_lora)
"""Our methods that need a pretrained model with LoRA in it."""
ANY_MODEL = tuple(name for name in registry.NAMES if name not in LORA)
"""The others."""
SUMS = tuple(name for name in ANY_MODEL if issubclass(registry.find(name), OfSums))
"""Those of them that train nothing: all clients have one frozen encoder here."""
SETTINGS = ("heterogeneous", "homogeneous")
CELLS = [
    (method, setting) for method in registry.NAMES for setting in SETTINGS if runs(method, setting)
]
"""Every method of ours in every setting that it takes."""


def of_each(names: Iterable[str], kinds: str) -> list[Any]:
    """Parameters: those that stand for a kind, and the others by `make methods-test` alone."""
    return [
        pytest.param(name, marks=() if name in kinds.split() else pytest.mark.methods)
        for name in names
    ]


def make(experiment: Experiment, classes: int = 10) -> Method:
    """The experiment's method."""
    return registry.make(experiment, Task(classes))


def maker(base: dict[str, object]) -> Callable[..., Any]:
    """Makes the method of these keys, for so many classes, with others by name."""

    def made(classes: int = 10, **keys: object) -> Any:
        return make(from_flat(base | keys), classes)

    return made


def visit(experiment: Experiment, client: int = 0, round: int = 1) -> Visit:
    """A client's visit, with the draws that a real run would make."""
    return Visit(
        experiment, client, round, torch_generator(experiment.seed, "train", client, round)
    )


def samples(labels: list[int], seed: int = 0) -> Samples:
    """Random images for these labels."""
    inputs = torch.randn(len(labels), 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return Samples(inputs, torch.tensor(labels))
