"""The loss by which methods train on labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight
from torch import Tensor
from torch.nn import functional

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import checked
from pfedlora_flwr.methods import registry
from pfedlora_flwr.training.loss import balanced, cross_entropy, trained_by, weighted
from tests.conftest import keys_in, result_of, run_locally

KEYS = {"clients": 3, "participation": 0.67, "rounds": 2, "dataset": "synthetic:90"}
KEYS |= {"models": "tests.methods.narrow:Narrow", "partition.kind": "iid"}
CALLS: list[int] = []


def counting(logits: Tensor, labels: Tensor) -> Tensor:
    CALLS.append(len(labels))
    return functional.cross_entropy(logits, labels, label_smoothing=0.1)


def several(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


def broken(logits: Tensor, labels: Tensor) -> Tensor:
    raise RuntimeError("it hurts")


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = torch.tensor([0] * 30 + [2] * 9 + [3])
    logits = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    each = functional.cross_entropy(logits, labels, reduction="none").numpy()
    weights = compute_sample_weight("balanced", labels.numpy())
    found = balanced(labels, 5)(logits, labels)
    assert float(found) == pytest.approx(np.average(each, weights=weights), rel=1e-6)
    with trained_by(balanced(labels, 5)):
        assert cross_entropy(logits, labels) == found
    assert cross_entropy(logits, labels) == functional.cross_entropy(logits, labels)


@pytest.mark.slow
def test_weights_of_ones_own_are_those_of_a_weighted_mean(tmp_path: Path) -> None:
    labels, weights = torch.tensor([0, 2, 1, 2]), [0.5, 3.0, 1.0]
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    each = functional.cross_entropy(logits, labels, reduction="none").numpy()
    found = weighted(torch.tensor(weights))(logits, labels)
    own = np.array(weights)[labels]
    assert float(found) == pytest.approx(np.average(each, weights=own), rel=1e-6)
    equal = {"loss.class-weights": ",".join(["2"] * 10)}
    same = [run_locally(tmp_path / name, KEYS | keys) for name, keys in (("a", {}), ("b", equal))]
    hashes = [result_of(d.output)["accuracy"] for d in same]
    assert hashes[0] == hashes[1], "equal weights change nothing"


def test_no_method_trains_clients_by_another_cross_entropy() -> None:
    """Those of servers, and of soft targets, are not on a client's labels."""
    folder = Path(registry.__file__).parent
    named = {
        file.stem: sorted({line.strip() for line in re.findall(r".*[^.]cross_entropy.*", text)})
        for file in folder.glob("*.py")
        if "cross_entropy" in (text := file.read_text())
        and "from pfedlora_flwr.training.loss import cross_entropy" not in text
    }
    assert named.keys() <= {"fedre", "fedgh"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pfedlora", "fedavg", "fedproto", "fml"])
def test_a_loss_of_ones_own_trains(tmp_path: Path, method: str) -> None:
    CALLS.clear()
    keys = KEYS | {"method": method}
    function = {"loss.function": "tests.training.test_loss:counting"}
    plain, own = (tmp_path / name for name in ("plain", "own"))
    assert run_locally(plain, keys).code == 0
    assert not CALLS
    assert run_locally(own, keys | function).code == 0
    assert CALLS
    hashes = [result_of(f)["models_sha256"] for f in (plain, own)]
    assert hashes[0] != hashes[1]


@pytest.mark.slow
def test_rare_classes_are_found_more_often_with_balanced_weights(tmp_path: Path) -> None:
    rng, recall = np.random.default_rng(0), []
    labels = (rng.random(600) < 0.08).astype(int)
    inputs = rng.normal(size=(600, 4)) + 0.9 * labels[:, None]
    np.savez(tmp_path / "t.npz", inputs=inputs, labels=labels)
    keys = keys_in("clients=2 partition.kind=iid rounds=8 models=mlp1") | {
        "dataset": f"npz:{tmp_path}/t.npz"
    }
    for weights in ("none", "balanced"):
        done = run_locally(tmp_path / weights, keys | {"method": "fedavg", "loss.weights": weights})
        assert done.code == 0
        result = result_of(tmp_path / weights)
        recall.append(result["balanced_accuracy"]["final"])
    assert recall[1] > recall[0] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"loss.function": "tests.training.test_loss:several"},
            "returned a tensor .16., expected a",
        ),
        ({"loss.function": "tests.training.test_loss:broken"}, "loss .*broken.* it hurts"),
    ],
    ids=str,
)
def test_what_is_no_loss_is_one_line(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    done = run_locally(tmp_path / "run", KEYS | {"batch-size": 16} | keys)
    assert done.code == 1
    assert re.search(told, done.stderr)


def test_two_losses_are_refused_and_a_wrong_object_is_named(tmp_path: Path) -> None:
    both = {"loss.function": "tests.training.test_loss:several", "loss.weights": "balanced"}
    with pytest.raises(UserError, match=r"loss.weights is '?balanced'?; allowed: none, with loss"):
        run_locally(tmp_path / "run", KEYS | both)
    both = {"loss.class-weights": "1,2", "loss.weights": "balanced"}
    with pytest.raises(UserError, match=r"allowed: none, with loss.class-weights"):
        run_locally(tmp_path / "run", KEYS | both)
    with pytest.raises(UserError, match=r"loss.class-weights is .1,-2.; allowed: .*numbers > 0"):
        run_locally(tmp_path / "run", KEYS | {"loss.class-weights": "1,-2"})
    with pytest.raises(UserError, match=r"class-weights is '1,2'; allowed: .* each of 10 classes"):
        run_locally(tmp_path / "run", KEYS | {"loss.class-weights": "1,2"})
    with pytest.raises(UserError, match=r"module .tests.training.test_loss. has no .none."):
        run_locally(tmp_path / "run", KEYS | {"loss.function": "tests.training.test_loss:none"})
    with pytest.raises(UserError, match="returned float, expected a scalar tensor"):
        checked("m:f", lambda logits, labels: 0.5)(torch.zeros(1, 2), torch.zeros(1).long())  # type: ignore[return-value]
