"""FD against plain loops: the loss, the means taken while training, targets from the *other*
holders, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfedlora_flwr.methods.method import Refused, Upload
from tests.methods import obvious
from tests.plain import maker, samples, visit

method = maker({"method": "fd", "models": "cnn5", "batch-size": 8})
LABELS = [0, 0, 3, 3, 3, 7, 7, 1]


def report(rows: dict[int, list[float]]) -> Upload:
    return Upload(
        {
            "classes": torch.tensor(sorted(rows)),
            "means": torch.tensor([rows[c] for c in sorted(rows)]),
        },
        5,
    )


def as_dict(tensors: dict[str, torch.Tensor]) -> dict[int, list[float]]:
    return dict(zip(tensors["classes"].tolist(), tensors["means"].tolist(), strict=True))


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_loss_is_ce_plus_lambda_times_soft_ce_where_there_is_a_target(weight: float) -> None:
    fd, data = method(**{"fd.lambda": weight}), samples(LABELS)
    model = fd.private_init(0, 1)
    logits = obvious.array(model(data.inputs))
    targets = {c: np.random.default_rng(c).normal(size=10).astype(np.float32) for c in (0, 7, 9)}
    received = {
        "classes": torch.tensor([0, 7, 9]),
        "means": torch.tensor(np.stack(list(targets.values()))),
    }
    expected = obvious.cross_entropy(logits, LABELS)
    for row, y in zip(logits, LABELS, strict=True):
        if y in targets:
            expected += (
                weight * obvious.soft_cross_entropy(targets[y].astype(float), row) / len(LABELS)
            )
    made = visit(fd.experiment)
    fd.local_update(model, received, data, made)
    assert made.losses["model"] == pytest.approx(expected, rel=1e-5)


def test_gradient_pulls_towards_the_target() -> None:
    """d/dlogits of the soft term is λ (softmax(logits) − softmax(target)) / B: seen in the last
    layer's bias."""
    fd, data = method(**{"momentum": 0.0, "lr": 0.1, "fd.lambda": 3.0}), samples([4] * 8)
    model = fd.private_init(0, 1)
    before, logits = model.fc3.bias.detach().clone(), obvious.array(model(data.inputs))
    target = np.arange(10.0)
    fd.local_update(
        model,
        {"classes": torch.tensor([4]), "means": torch.tensor(target[None]).float()},
        data,
        visit(fd.experiment),
    )
    own = np.mean([obvious.softmax(row) - np.eye(10)[4] for row in logits], axis=0)
    pulled = np.mean([obvious.softmax(row) - obvious.softmax(target) for row in logits], axis=0)
    np.testing.assert_allclose(
        obvious.array(model.fc3.bias), obvious.array(before) - 0.1 * (own + 3 * pulled), atol=1e-6
    )


@pytest.mark.slow
def test_means_are_taken_while_it_trains_over_all_epochs() -> None:
    fd, data = method(**{"batch-size": 3, "local-epochs": 2, "lr": 0.1}), samples(LABELS)
    model, twin = fd.private_init(0, 1), fd.private_init(0, 1)
    upload = fd.local_update(model, fd.download(fd.state_init(0), 0, 1), data, visit(fd.experiment))
    optimizer, generator = (
        torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9),
        visit(fd.experiment).generator,
    )
    seen, labels = [], []
    for _ in range(2):
        for index in torch.randperm(8, generator=generator).split(3):
            logits = twin(data.inputs[index])
            seen += list(obvious.array(logits))
            labels += data.labels[index].tolist()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, data.labels[index]).backward()
            optimizer.step()
    expected = obvious.class_means(np.stack(seen), labels)
    assert upload.tensors["classes"].tolist() == list(expected) == [0, 1, 3, 7]
    np.testing.assert_allclose(
        obvious.array(upload.tensors["means"]), np.stack(list(expected.values())), atol=1e-5
    )


def test_target_is_the_unweighted_mean_of_the_other_holders() -> None:
    fd = method(classes=2)
    uploads = {
        0: report({0: [1.0, 2.0], 1: [9.0, 9.0]}),
        3: report({0: [3.0, 6.0]}),
        5: Upload(report({0: [5.0, 1.0]}).tensors, 10_000),
    }
    state = fd.aggregate(uploads, fd.state_init(0), 1)
    assert as_dict(fd.download(state, 0, 2)) == {0: [4.0, 3.5]}, (
        "the only holder of class 1 has no target for it"
    )
    assert as_dict(fd.download(state, 3, 2)) == {0: [3.0, 1.5], 1: [9.0, 9.0]}
    assert as_dict(fd.download(state, 8, 2)) == {
        0: [3.0, 3.0],
        1: [9.0, 9.0],
    }, "a client sampled for the first time, late"


def test_server_agrees_with_a_plain_memory_over_rounds_of_changing_clients() -> None:
    """Clients come late, miss rounds and come back: the last means of each count, whenever they
    were sent."""
    random, fd = np.random.default_rng(0), method(classes=6)
    state, memory = fd.state_init(0), {}
    for round in range(1, 9):
        uploads = {}
        for k in sorted(random.choice(7, 3, replace=False).tolist()):
            held = random.choice(6, random.integers(1, 5), replace=False).tolist()
            uploads[k] = report(
                {c: random.normal(size=6).astype(np.float32).tolist() for c in held}
            )
            memory[k] = as_dict(uploads[k].tensors)
        kept = {name: t.clone() for name, t in state.items()}
        new = fd.aggregate(uploads, state, round)
        assert all(torch.equal(state[name], kept[name]) for name in kept), (
            "aggregate changed the state it was given"
        )
        state = new
        for k in range(8):
            others = {
                c: [memory[j][c] for j in memory if j != k and c in memory[j]] for c in range(6)
            }
            expected = {c: np.mean(rows, axis=0) for c, rows in others.items() if rows}
            got = as_dict(fd.download(state, k, round + 1))
            assert list(got) == list(expected)
            for c, mean in expected.items():
                np.testing.assert_allclose(
                    got[c], mean, rtol=1e-6, err_msg=f"round {round}, client {k}, class {c}"
                )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (
            {"classes": torch.zeros(0, dtype=torch.int64), "means": torch.zeros(0, 10)},
            "expected some",
        ),
        (  # their differences overflow to what is positive
            {"classes": torch.tensor([0, 2**63 - 1, -(2**63), -1, 5]), "means": torch.zeros(5, 10)},
            "ascending",
        ),
    ],
)
def test_refuses_what_is_no_report(change: dict[str, torch.Tensor], word: str) -> None:
    fd = method()
    good = {"classes": torch.tensor([1, 3]), "means": torch.zeros(2, 10)}
    fd.check(Upload(good, 5), fd.state_init(0), 0)
    with pytest.raises(Refused, match=word):
        fd.check(Upload(good | change, 5), fd.state_init(0), 0)
