"""FD against plain loops: the loss, the means taken while training, targets from the *other*
holders, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfedlora_flwr.methods.method import Upload
from tests.methods import obvious
from tests.plain import maker, samples, visit

method = maker({"method": "fd", "models": "cnn5", "batch-size": 8})
LABELS = [0, 0, 3, 3, 3, 7, 7, 1]


def report(rows: dict[int, list[float]], samples: int) -> Upload:
    means = torch.tensor([rows[c] for c in sorted(rows)])
    return Upload({"classes": torch.tensor(sorted(rows)), "means": means}, samples)


def as_dict(tensors: dict[str, torch.Tensor]) -> dict[int, list[float]]:
    return dict(zip(tensors["classes"].tolist(), tensors["means"].tolist(), strict=True))


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_a_step_descends_ce_plus_lambda_times_soft_ce_where_there_is_a_target(
    weight: float,
) -> None:
    """d/dlogits of a soft term is λ (softmax(logits) − softmax(target)) / B: seen in the last
    layer's bias."""
    keys = {"fd.lambda": weight, "momentum": 0.0, "lr": 0.1}
    fd, data = method(**keys), samples(LABELS)
    model, made = fd.private_init(0, 1), visit(fd.experiment)
    before, logits = obvious.array(model.fc3.bias).copy(), obvious.array(model(data.inputs))
    targets = {c: np.random.default_rng(c).normal(size=10).astype(np.float32) for c in (0, 7, 9)}
    means = torch.tensor(np.stack(list(targets.values())))
    loss, slope = obvious.cross_entropy(logits, LABELS), np.zeros(10)
    for row, y in zip(logits, LABELS, strict=True):
        slope += (obvious.softmax(row) - np.eye(10)[y]) / len(LABELS)
        if y in targets:
            target = targets[y].astype(float)
            loss += weight * obvious.soft_cross_entropy(target, row) / len(LABELS)
            slope += weight * (obvious.softmax(row) - obvious.softmax(target)) / len(LABELS)
    fd.local_update(model, {"classes": torch.tensor([*targets]), "means": means}, data, made)
    assert made.losses["model"] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(obvious.array(model.fc3.bias), before - 0.1 * slope, atol=1e-6)


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


def test_server_agrees_with_a_plain_memory_over_rounds_of_changing_clients() -> None:
    """Clients come late, miss rounds and come back: the last means of each count, whenever they
    were sent."""
    random, fd = np.random.default_rng(0), method(classes=6)
    state, memory = fd.state_init(0), {}
    for round in range(1, 9):
        uploads = {}
        for k in sorted(random.choice(7, 3, replace=False).tolist()):
            held = random.choice(6, random.integers(1, 5), replace=False).tolist()
            rows = {c: random.normal(size=6).astype(np.float32).tolist() for c in held}
            uploads[k] = report(rows, 10**k)  # which weighs nothing
            memory[k] = as_dict(uploads[k].tensors)
        state = fd.aggregate(uploads, state, round)
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
