"""The rules in the mean's place, held against Flower's own, and what a method makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.server.strategy.aggregate import aggregate_median
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.methods.class_means import merged_rows
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.methods.robust import Rule, krum


def uploads_of(clients: int, seed: int = 0) -> dict[int, Upload]:
    draw = torch.Generator().manual_seed(seed)
    return {
        client: Upload(
            {
                "a": torch.randn(4, 3, generator=draw) + (100 if client == 2 else 0),
                "b": torch.randn(5, generator=draw),
                "steps": torch.tensor(7 + client),
            },
            10**client,
        )
        for client in range(clients)
    }


def records(uploads: dict[int, Upload]) -> list[RecordDict]:
    return [
        RecordDict(
            {
                "arrays": ArrayRecord({n: t for n, t in u.tensors.items() if n != "steps"}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        for u in uploads.values()
    ]


@pytest.mark.parametrize("clients", [5, 6, 9])
@pytest.mark.parametrize("liars", [1, 2])
def test_median_and_trimmed_mean_are_flowers(clients: int, liars: int) -> None:
    uploads = uploads_of(clients)
    median, trimmed = (Rule(kind, liars).merged(uploads) for kind in ("median", "trimmed-mean"))
    assert median["steps"].dtype == torch.int64
    for name in ("a", "b"):
        stacked = np.stack([u.tensors[name].numpy() for u in uploads.values()])
        (theirs,) = aggregate_median([([a], 1) for a in stacked])
        np.testing.assert_allclose(median[name], theirs, rtol=1e-5, atol=1e-6)
        theirs = trim_mean(stacked, (liars + 0.25) / clients)
        np.testing.assert_allclose(trimmed[name], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("clients", "liars"), [(5, 1), (7, 2), (10, 1)])
def test_krum_takes_the_client_that_flowers_takes(clients: int, liars: int, seed: int) -> None:
    uploads = uploads_of(clients, seed)
    contents = records(uploads)
    (taken,) = select_multikrum(contents, liars, 1)
    assert krum(uploads, liars) == next(k for k, c in enumerate(contents) if c is taken) != 2
    assert Rule("krum", liars).merged(uploads) is uploads[krum(uploads, liars)].tensors


def test_a_class_with_too_few_holders_has_no_row_and_a_lie_is_not_in_it() -> None:
    e = from_flat({"aggregation": "median"})
    labels = torch.tensor([0, 3, 0, 0, 3])
    values = torch.tensor([[1.0], [5.0], [1e9], [2.0], [6.0]])
    found = merged_rows(e, values, labels, 10, weights=torch.tensor([1, 1, 10**6, 1, 1]))
    assert found["classes"].tolist() == [0]
    assert found["means"].tolist() == [[2.0]]
    none = merged_rows(e, values[:2], labels[:2], 10)
    assert none["means"].shape == (0, 1)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("method", ["fedproto", "fedssa", "fd", "pfedlora_plus"])
def test_the_rows_that_clients_receive_stay_among_the_honest_ones(method: str, rule: str) -> None:
    """Four clients hold class 1, of which one lies; class 2 has two holders, one of them the
    liar."""
    keys: dict[str, Any] = {"method": method, "aggregation": rule, "models": "cnn5"}
    e = from_flat(keys)
    made = Setup(e).method
    before = made.state_init(0)
    uploads = {}
    for client, value in enumerate([1.0, 2.0, 3.0, -1e6]):
        ids = torch.tensor([1, 2] if client > 1 else [1])
        tensors = {"classes": ids, "counts": torch.full_like(ids, 10 ** (2 * client))}
        for name, like in before.items():
            if name == "means" or name.startswith("up."):
                tensors[name] = torch.full((len(ids), *like.shape[1:]), value)
        order = [name for name in before if name in tensors] if "means" in before else tensors
        uploads[client] = Upload({name: tensors[name] for name in order}, 10)
    after = made.aggregate(uploads, before, 1)
    received = made.download(after, 9, 2)
    if method == "pfedlora_plus":
        row, other = received["up.weight"][1], received["up.weight"][2]
        assert torch.equal(other, before["up.weight"][2])
    else:
        assert received["classes"].tolist() == [1]
        row = received["means"][0]
    torch.testing.assert_close(row, torch.full_like(row, 1.5))
