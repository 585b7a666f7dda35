"""FedRE: whole rounds against a slow loop, mixtures that sum to 1, and a sum of weighted
cross-entropies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.fedre import FedRE
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from tests.methods import obvious, slow, slow_server
from tests.plain import make, samples, visit

KEYS = {
    "method": "fedre",
    "seed": slow_server.SEED,
    "fedre.server-lr": 0.2,
    "fedre.server-epochs": 3,
    "fedre.server-batch": 1,
}


def method(classes: int = 10, **keys: object) -> FedRE:
    made = make(from_flat({"method": "fedre", "models": "cnn5", **keys}), classes)
    assert isinstance(made, FedRE)
    return made


def mixture(weights: dict[int, float], seed: int = 0) -> Upload:
    label = torch.tensor([weights.get(c, 0.0) for c in range(10)])
    return Upload(
        {
            "representation": torch.rand(500, generator=torch.Generator().manual_seed(seed)),
            "label": label,
        },
        5,
    )


def largest_difference(wrong: str = "", batch: int = 1) -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        kept["fc3.weight"].copy_(received["weight"])
        kept["fc3.bias"].copy_(received["bias"])
        slow_server.train(kept, client)
        report = slow_server.report(kept, client)
        drawn = 1 - torch.rand(len(report["classes"]), generator=client.generator).double()
        weights = drawn.softmax(0) if wrong == "softmax" else drawn / drawn.sum()
        representation, label = torch.zeros(500).double(), torch.zeros(10).double()
        for w, c, mean in zip(
            weights, report["classes"].int().tolist(), report["means"], strict=True
        ):
            representation += mean / len(weights) if wrong == "plain mean" else w * mean
            label[c] += w
        return {"representation": representation, "label": label}

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        """Σ_c ỹ_c · (gradient of softmax regression with label c), by hand."""
        weight, bias = state["weight"].clone(), state["bias"].clone()
        vectors = [sent[k] for k in sorted(sent)]
        for index in slow_server.batches(len(vectors), batch, 3, "header", round):
            gw, gb = torch.zeros_like(weight), torch.zeros_like(bias)
            for i in index:
                r, label = vectors[i]["representation"], vectors[i]["label"]
                p = (weight @ r + bias).softmax(0)
                error = sum(
                    label[c] * (p - torch.eye(10, dtype=torch.float64)[c]) for c in range(10)
                )
                gw += torch.outer(error, r) / (len(index) if wrong == "mean" else 1)
                gb += error / (len(index) if wrong == "mean" else 1)
            weight, bias = weight - 0.2 * gw, bias - 0.2 * gb
        return {"weight": weight, "bias": bias}

    return slow.largest_difference(turn, server, **(KEYS | {"fedre.server-batch": batch}))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 32])
def test_two_rounds_are_those_of_a_slow_loop(batch: int) -> None:
    assert largest_difference(batch=batch) < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize("wrong", ["softmax", "plain mean", "mean"])
def test_a_wrong_loop_is_noticed(wrong: str) -> None:
    assert largest_difference(wrong, batch=32) > 1e-3


def test_an_upload_is_a_convex_mixture_drawn_anew_in_each_round() -> None:
    fedre, data = method(**{"batch-size": 8}), samples([1, 1, 4, 9, 9, 9])
    labels = []
    for round in (1, 2):
        model = fedre.private_init(0, 1)
        upload = fedre.local_update(
            model, fedre.state_init(1), data, visit(fedre.experiment, 0, round)
        )
        label = obvious.array(upload.tensors["label"])
        means = obvious.class_means(obvious.array(model.encode(data.inputs)), data.labels.tolist())
        assert np.flatnonzero(label).tolist() == [1, 4, 9]
        assert label.sum() == pytest.approx(1)
        np.testing.assert_allclose(
            obvious.array(upload.tensors["representation"]),
            sum(label[c] * means[c] for c in means),
            atol=1e-5,
        )
        labels.append(label)
    assert not np.allclose(*labels)


def test_one_class_alone_is_its_mean_and_a_last_batch_of_one_is_no_trouble() -> None:
    fedre = method(**{"batch-size": 4})
    upload = fedre.local_update(
        fedre.private_init(0, 1), fedre.state_init(1), samples([2] * 5), visit(fedre.experiment)
    )
    assert upload.tensors["label"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert all(
        torch.isfinite(t).all()
        for t in fedre.aggregate({0: upload}, fedre.state_init(1), 1).values()
    )


def test_the_loss_is_the_weighted_sum_of_cross_entropies() -> None:
    """Seen in the bias after one step on two vectors: b − η Σ_k Σ_c ỹ_{k,c} (softmax − e_c)."""
    fedre, uploads = (
        method(**{"fedre.server-lr": 0.1}),
        {0: mixture({0: 0.25, 7: 0.75}), 2: mixture({3: 1.0}, seed=1)},
    )
    state = fedre.state_init(1)
    weight, bias = obvious.array(state["weight"]), obvious.array(state["bias"])
    pulled = np.zeros(10)
    for upload in uploads.values():
        p = obvious.softmax(weight @ obvious.array(upload.tensors["representation"]) + bias)
        pulled += sum(
            w * (p - np.eye(10)[c]) for c, w in enumerate(obvious.array(upload.tensors["label"]))
        )
    np.testing.assert_allclose(
        obvious.array(fedre.aggregate(uploads, state, 1)["bias"]), bias - 0.1 * pulled, atol=1e-6
    )


def test_aggregate_is_pure() -> None:
    fedre = method(**{"fedre.server-batch": 2})
    state, uploads = fedre.state_init(1), {k: mixture({k: 1.0}, seed=k) for k in range(5)}
    first, again = fedre.aggregate(uploads, state, 3), fedre.aggregate(uploads, state, 3)
    assert all(
        torch.equal(first[n], again[n]) and not torch.equal(first[n], state[n]) for n in state
    )


def test_a_client_that_misses_rounds_keeps_its_predictor() -> None:
    slow.assert_a_missed_round_changes_nothing(**KEYS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"representation": torch.zeros(499)}, "representation"),
        ({"label": torch.zeros(11)}, "label"),
        ({"label": torch.full((10,), 0.1, dtype=torch.float64)}, "float64"),
        ({"label": torch.full((10,), 0.11)}, "sum to 1"),
        ({"label": torch.tensor([1.5, -0.5] + [0.0] * 8)}, "≥ 0"),
        ({"label": torch.full((10,), torch.nan)}, "≥ 0"),
        ({"extra": torch.zeros(1)}, "extra"),
    ],
)
def test_refuses_what_is_no_mixture(change: dict[str, Tensor], word: str) -> None:
    fedre = method()
    good, state = mixture({3: 0.5, 4: 0.5}).tensors, fedre.state_init(0)
    fedre.check(Upload(good, 5), state, 0)
    with pytest.raises(Refused, match=word):
        fedre.check(Upload(good | change, 5), state, 0)
    assert fedre.largest_upload(state) == 4 * 510
