"""What actors a simulation has: on this machine, on its GPUs, and on the nodes of a Ray cluster."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from pfedlora_flwr.client_app import prepare_process
from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.launch import resources as module
from pfedlora_flwr.launch.cluster import Node
from pfedlora_flwr.launch.resources import Resources, gpu_share, resources
from pfedlora_flwr.launch.worker import shares
from pfedlora_flwr.training.device import GPU_SHARE
from tests.conftest import named_keys


def held(**keys: object) -> Resources:
    return resources(run_config({"partition.kind": "iid"} | named_keys(keys)))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> int:
    """Eight of them, as PyTorch tells, and cores enough."""
    monkeypatch.setattr(module, "most_at_once", lambda: 32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    return 8


def cluster(monkeypatch: pytest.MonkeyPatch, *has: tuple[int, int]) -> None:
    """Nodes with so many CPUs and GPUs each, and a host of enough cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 64, raising=False)
    nodes = tuple(Node(f"{i}" * 8, f"10.0.0.{i}", *counts) for i, counts in enumerate(has))
    monkeypatch.setattr(module, "find_nodes", lambda address: nodes)


def test_every_gpu_has_an_actor_and_all_have_as_many(gpus: int) -> None:
    assert held(clients=100) == Resources(8, gpus=8, per_gpu=1)
    assert held(clients=3) == Resources(3, gpus=8, per_gpu=1)
    shared = held(clients=100, actors=20)
    assert shared == Resources(16, gpus=8, per_gpu=2)
    assert held(clients=9, actors=20) == Resources(8, gpus=8, per_gpu=1)
    assert (held(clients=100).gpu, shared.gpu) == (1, 0.5)
    assert "16 actors of 20, 2 a GPU of 8, each with 50% of its memory" in shared.words()
    assert held(clients=100, device="cpu").gpus == 0


@pytest.mark.parametrize("per_gpu", range(1, 33))
def test_as_many_actors_fit_as_share_a_gpu(per_gpu: int) -> None:
    """By the counts of Flower, in 64 bits of what travels in 32, and of Ray, in ten thousandths,
    rounded."""
    share = gpu_share(per_gpu)
    assert share == np.float32(share)
    assert [int(gpus / share) for gpus in range(1, 9)] == [gpus * per_gpu for gpus in range(1, 9)]
    assert round(share * 10_000) * per_gpu <= 10_000


def test_an_actor_is_bounded_to_its_share_of_the_gpus_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fractions: list[float] = []
    monkeypatch.setenv(GPU_SHARE, "0.25")
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: type("P", (), {"total_memory": 64 * 2**30}),
    )
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    monkeypatch.setattr(MODELS, "limit", 0)
    prepare_process.__wrapped__(torch.device("cuda"))
    assert fractions == [0.25]
    assert MODELS.limit == 4 * 2**30


def test_a_clusters_actors_are_those_that_fit_on_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, (8, 0), (4, 0), (0, 0))
    whole = held(clients=100, ray="10.0.0.1:6379")
    assert (whole.actors, whole.cpus, [node.cpus for node in whole.nodes]) == (12, 1, [8, 4])
    few = held(clients=5, ray="10.0.0.1:6379")  # of 3 CPUs: 2 and 1; of 2 they would be 6
    assert (few.actors, few.cpus) == (3, 3)
    assert held(clients=100, actors=6, ray="10.0.0.1:6379").cpus == 2
    assert held(clients=1, ray="10.0.0.1:6379").actors == 1


def test_a_clusters_gpus_have_as_many_actors_each(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, (16, 0), (16, 4), (2, 4))
    found = held(clients=100, ray="10.0.0.1:6379")
    assert (
        found.actors,
        found.gpus,
        found.per_gpu,
        found.gpu,
        [node.gpus for node in found.nodes],
    ) == (6, 8, 1, 1.0, [4, 4])
    assert held(clients=100, actors=16, ray="10.0.0.1:6379").per_gpu == 2
    assert held(clients=100, device="cpu", ray="10.0.0.1:6379").actors == 34


def test_a_cluster_without_room_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, (0, 0))
    with pytest.raises(
        UserError, match=r"no node of the Ray cluster at 10\.0\.0\.1:6379 has a CPU for an actor"
    ):
        held(ray="10.0.0.1:6379")
    with pytest.raises(
        UserError,
        match=r"device is .cuda. and no node of the Ray cluster at 10\.0\.0\.1:6379 has a GPU",
    ):
        held(ray="10.0.0.1:6379", device="cuda")


def test_flowers_bound_on_clients_at_once_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, *[(64, 0)] * 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 8, raising=False)
    found = held(clients=500, dataset="synthetic:9000", ray="10.0.0.1:6379")
    assert (found.actors, found.cpus, found.at_once) == (12, 17, 12)  # 3 a node
    assert (
        found.words()
        == "12 actors of 256 on 4 Ray nodes; Flower trains at most 12 clients at once here"
    )
    monkeypatch.setattr(module, "cores", lambda: 64)
    alone = held(clients=500, dataset="synthetic:9000", device="cpu")
    assert alone.words() == "12 actors of 64; Flower trains at most 12 clients at once here"


def test_ray_address_is_obeyed_but_for_local(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, (4, 0))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert held(clients=100).nodes
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert not held(clients=100).nodes


@pytest.mark.parametrize(
    ("gpus", "count", "owned", "memory"),
    [
        ("0,1,2,3", 2, [("0", "2"), ("1", "3")], [1.0, 1.0]),
        ("0,1", 3, [("0",), ("1",), ("0",)], [0.5, 1.0, 0.5]),
        ("", 2, [(), ()], [1.0, 1.0]),
    ],
)
def test_runs_at_once_divide_the_gpus_and_their_memory(
    monkeypatch: pytest.MonkeyPatch,
    gpus: str,
    count: int,
    owned: list[tuple[str, ...]],
    memory: list[float],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    found = shares(count)
    assert [share.gpus for share in found] == owned
    assert [share.memory for share in found] == memory
