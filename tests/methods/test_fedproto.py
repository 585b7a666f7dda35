"""FedProto: whole rounds against a slow loop, the prototypes of a clean pass, and the mean by
class, weighted or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from tests.methods import obvious, slow, slow_server
from tests.plain import maker, samples, visit

method = maker({"method": "fedproto", "models": "cnn5", "batch-size": 8})
LABELS = [0, 0, 3, 3, 3, 7, 7, 1]


def report(rows: dict[int, tuple[float, int]]) -> Upload:
    """By class, a prototype that has one value in all of its 500 dimensions, and its count."""
    means = torch.tensor([[rows[c][0]] * 500 for c in sorted(rows)])
    counts = torch.tensor([rows[c][1] for c in sorted(rows)])
    return Upload(
        {"classes": torch.tensor(sorted(rows)), "means": means, "counts": counts}, int(counts.sum())
    )


KEYS = {"method": "fedproto", "seed": slow_server.SEED, "fedproto.lambda": 2.0}
WRONG = ("detached", "sum", "equal weights")


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        sent = slow_server.towards(kept, received, client, mse_loss, wrong)
        held = client.y.tolist()
        return sent | {"counts": torch.tensor([held.count(c) for c in sent["classes"]]).double()}

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        """Rows that end with their counts."""
        wide = {
            k: one | {"means": torch.cat([one["means"], one["counts"][:, None]], 1)}
            for k, one in sent.items()
        }
        return slow_server.remembered(wide, state)

    def mean(rows: Tensor) -> Tensor:
        weights = torch.ones(len(rows)) if wrong == "equal weights" else rows[:, -1]
        return (rows[:, :-1] * weights[:, None]).sum(0) / weights.sum()

    def download(state: Tensors, client: int) -> Tensors:
        return slow_server.merged(state, 500, mean)

    return slow.largest_difference(turn, server, download, **KEYS)


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
