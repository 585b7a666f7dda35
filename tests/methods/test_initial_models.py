"""How client models begin: each by itself, or all of one architecture as one model."""

from __future__ import annotations

import torch
from torch import nn

from pfedlora_flwr.methods.tensors import tensors_of
from tests.plain import Plain


def begins(client: int, **keys: object) -> nn.Module:
    return Plain({"clients": 10, "models": "cnn5,cnn4,cnn5", **keys}).model(client)


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = tensors_of(one), tensors_of(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_each_client_begins_by_itself() -> None:
    assert not same(begins(0), begins(2))
    assert not same(begins(0), begins(3))


def test_all_clients_of_one_architecture_begin_as_its_first_client_would_alone() -> None:
    common = {"initial-models": "architecture"}
    for client in (0, 2, 3, 5):
        assert same(begins(client, **common), begins(0)), (
            "cnn5, whatever its place among the models"
        )
    for client in (1, 4):
        assert same(begins(client, **common), begins(1))
    assert not same(begins(0, **common, seed=1), begins(0))


def test_what_else_a_client_keeps_begins_as_one_too() -> None:
    """FML's clients have a small model beside their own."""
    common = {"initial-models": "architecture", "method": "fml"}
    assert same(begins(0, **common), begins(3, **common))
    assert not same(begins(0, method="fml"), begins(3, method="fml"))
