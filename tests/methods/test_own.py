"""A user's own method, guarded: what it may declare, change and draw."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.fedproto import FedProto
from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.methods.standalone import Standalone
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit
from tests.plain import samples

HERE = "tests.methods.test_own"


class Keeps(Standalone):
    """Whose `aggregate` does what its option says."""

    @dataclass(frozen=True)
    class Options(Standalone.Options):
        pass

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.velocity: dict[str, float] = {}
        self.sums = torch.zeros(2)
        self.counts = np.zeros(2)
        self.does = ""

    @cached_property
    def table(self) -> list[int]:
        return [1, 2]

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        assert self.table
        match self.does:
            case "assigns":
                self.velocity = {"w": 1.0}
            case "fills":
                self.velocity["w"] = 0.9
            case "adds":
                self.sums.add_(1)
            case "counts":
                self.counts[0] += 1
            case "forgets":
                del self.sums
        return state


@pytest.mark.parametrize(
    ("does", "what"),
    [
        ("assigns", "velocity"),
        ("fills", "velocity"),
        ("adds", "sums"),
        ("counts", "counts"),
        ("forgets", "sums"),
    ],
)
def test_aggregate_may_change_nothing_of_the_method(does: str, what: str) -> None:
    e = from_flat({"method": f"{HERE}:Keeps"})
    method = Setup(e).method
    assert method.aggregate({}, {}, 1) == {}, "a cached property is none"
    method._method.does = does  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"aggregate changed self.{what}, which"):
        method.aggregate({}, {}, 2)


class Draws(Standalone):
    """Which draws from the global generators."""

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        drawn = [float(torch.rand(1)), np.random.rand(), random.random()]
        return Upload({"drawn": torch.tensor(drawn)}, len(data))


def test_a_visits_draws_are_the_seeds_and_none_after_it_are() -> None:
    e = from_flat({"method": f"{HERE}:Draws", "models": "cnn5"})
    method, data = Setup(e).method, samples([0, 1])
    model = method.initial_model(0)
    drawn, after = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        upload, _ = visits.visit(method, model, {}, data, 0, 1)
        drawn.append(upload.tensors["drawn"])
        after.append((float(torch.rand(1)), np.random.rand(), random.random()))
    assert torch.equal(*drawn)
    assert not {*after[0]} & {*after[1]}, "a user's noise would be known from the run's seed"


class NoOptions(Standalone):
    Options = None  # type: ignore[assignment]


class Undeclared(Standalone):
    class Options(Standalone.Options):
        rate: float = 1.0


class Inherits(FedProto):
    class Options(FedProto.Options):
        """The same."""


def test_options_are_a_frozen_dataclass() -> None:
    for name in ("NoOptions", "Undeclared"):
        with pytest.raises(UserError, match="its Options is no frozen dataclass"):
            registry.find(f"{HERE}:{name}")
    for name in ("Inherits", "Keeps", "Draws"):
        assert issubclass(registry.find(f"{HERE}:{name}"), Method)
