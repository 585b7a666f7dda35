"""A built-in method is one file and one line of the registry: help, options, reports and training
follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grown import Grown

METHOD = """
from dataclasses import dataclass

import pytest

from pfedlora_flwr.experiment import NoOptions
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Method, Upload
from pfedlora_flwr.methods.tensors import tensors_of, weighted_mean
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.methods.standalone import train_locally


class Mine(Method):
    @dataclass(frozen=True)
    class Options(NoOptions):
        share: float = key(1.0, "how much of the own last layer is sent", above=0, high=1)

    title = "My Method"

    def state_init(self, seed):
        with seeded(seed):
            return tensors_of(self.client_model(0).last_layer())

    def local_update(self, model, received, data, visit):
        model.last_layer().load_state_dict(received)
        train_locally(model, data, visit)
        own = tensors_of(model.last_layer())
        return Upload({n: self.options.share * t + (1 - self.options.share) * received[n] for n, t in own.items()}, len(data))

    def aggregate(self, uploads, state, round):
        return weighted_mean(uploads)
"""
USE = """
import torch
from pfedlora_flwr.config import all_keys
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style
from tests.plain import CELLS, Plain

assert registry.NAMES[-1] == "mine"
assert registry.title("mine") == "My Method"
assert registry.ordered(["mine", "pfedlora", "other:Own"]) == ["mine", "other:Own", "pfedlora"]
assert all_keys()["mine.share"].allowed == "a number > 0 and ≤ 1"
assert len({style.of_method(name) for name in registry.NAMES}) == len(registry.NAMES)
assert style.of_method("mine") != style.of_method("other:Own")
assert ("mine", "heterogeneous") in CELLS
plain = Plain({"method": "mine", "mine.share": 0.5, "clients": 2, "partition.kind": "iid", "batch-size": 64})
before = plain.state
plain.train(1)
for name, tensor in plain.uploads[1].tensors.items():
    own = dict(plain.models[1].last_layer().named_parameters())[name]
    assert torch.allclose(tensor, (own + before[name]) / 2)
"""


@pytest.mark.slow
def test_a_method_is_one_file_and_one_line(tmp_path: Path) -> None:
    grown = Grown(tmp_path)
    grown.add_file("methods/mine.py", METHOD)
    grown.add_line("methods/registry.py", "_CLASSES", '"mine": "Mine",')
    grown.run(USE)
