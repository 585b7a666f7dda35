"""FedProto against plain loops: a step, the prototypes of a clean pass, and the weighted mean by
class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Refused, Upload
from tests.methods import obvious
from tests.plain import maker, samples, visit

method = maker({"method": "fedproto", "models": "cnn5", "batch-size": 8})
LABELS = [0, 0, 3, 3, 3, 7, 7, 1]


def prototypes(classes: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    return {
        "classes": torch.tensor(classes),
        "means": torch.rand(len(classes), 500, generator=torch.Generator().manual_seed(seed)),
    }


def report(rows: dict[int, tuple[float, int]]) -> Upload:
    """By class, a prototype that has one value in all of its 500 dimensions, and its count."""
    means = torch.tensor([[rows[c][0]] * 500 for c in sorted(rows)])
    counts = torch.tensor([rows[c][1] for c in sorted(rows)])
    return Upload(
        {"classes": torch.tensor(sorted(rows)), "means": means, "counts": counts}, int(counts.sum())
    )


@pytest.mark.parametrize("weight", [0.0, 1.0, 4.0])
def test_a_step_descends_ce_plus_lambda_times_mse_where_there_is_a_prototype(weight: float) -> None:
    proto, data = method(**{"lr": 0.1, "fedproto.lambda": weight}), samples(LABELS)
    model, twin, received = (
        proto.private_init(0, 1),
        proto.private_init(0, 1),
        prototypes([0, 7, 9]),
    )
    known = dict(zip([0, 7, 9], received["means"], strict=True))
    loss = cross_entropy(twin(data.inputs), data.labels)
    for row, y in zip(twin.encode(data.inputs), LABELS, strict=True):
        if y in known:
            loss = loss + weight * (row - known[y]).square().mean() / len(LABELS)
    made = visit(proto.experiment)
    proto.local_update(model, received, data, made)
    assert made.losses["model"] == pytest.approx(loss.item(), rel=1e-5)
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for now, start, slope in zip(model.parameters(), twin.parameters(), gradients, strict=True):
        assert torch.allclose(now, start - 0.1 * slope, atol=1e-6)


def test_prototypes_are_the_means_of_a_clean_pass_after_training() -> None:
    proto, data = method(**{"augment": True, "lr": 0.1}), samples(LABELS)
    model = proto.private_init(0, 1)
    upload = proto.local_update(
        model, proto.download(proto.state_init(0), 0, 1), data, visit(proto.experiment)
    )
    expected = obvious.class_means(obvious.array(model.encode(data.inputs)), LABELS)
    assert upload.tensors["classes"].tolist() == list(expected) == [0, 1, 3, 7]
    assert upload.tensors["counts"].tolist() == [2, 1, 3, 2]
    np.testing.assert_allclose(
        obvious.array(upload.tensors["means"]), np.stack(list(expected.values())), atol=1e-6
    )


@pytest.mark.parametrize("weighting", ["count", "equal"])
def test_global_prototype_is_the_mean_of_all_reporters_last_ones(weighting: str) -> None:
    proto = method(**{"fedproto.weighting": weighting})
    state = proto.aggregate(
        {0: report({2: (1.0, 3), 5: (8.0, 1)}), 1: report({2: (4.0, 1)})}, proto.state_init(0), 1
    )
    # client 0 misses round 2, 6 comes late
    state = proto.aggregate({1: report({2: (5.0, 1)}), 6: report({2: (9.0, 2)})}, state, 2)
    got = proto.download(state, 0, 3)
    two = (3 * 1 + 1 * 5 + 2 * 9) / 6 if weighting == "count" else (1 + 5 + 9) / 3
    assert got["classes"].tolist() == [2, 5]
    np.testing.assert_allclose(obvious.array(got["means"]), [[two] * 500, [8.0] * 500], rtol=1e-6)
    assert all(torch.equal(got[name], proto.download(state, 4, 3)[name]) for name in got), (
        "the same for everyone"
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"counts": torch.tensor([2, 2])}, "sum to its 5"),
        ({"counts": torch.tensor([0, 5])}, "numbers ≥ 1"),
        ({"counts": torch.tensor([6, -1])}, "numbers ≥ 1"),
        (  # their sum overflows to 5
            {
                "classes": torch.arange(5),
                "means": torch.zeros(5, 500),
                "counts": torch.tensor([2**62] * 4 + [5]),
            },
            "sum to its 5",
        ),
        ({"counts": torch.tensor([2.0, 3.0])}, "counts"),
        ({"counts": torch.tensor([5])}, "counts"),
    ],
)
def test_refuses_what_is_no_report(change: dict[str, torch.Tensor], word: str) -> None:
    proto = method()
    good = {
        "classes": torch.tensor([1, 3]),
        "means": torch.zeros(2, 500),
        "counts": torch.tensor([2, 3]),
    }
    proto.check(Upload(good, 5), proto.state_init(0), 0)
    with pytest.raises(Refused, match=word):
        proto.check(Upload(good | change, 5), proto.state_init(0), 0)
