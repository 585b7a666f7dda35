"""The training loop against an obvious one, and the captured steps' bookkeeping as far as a CPU can
show it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.rng import torch_generator
from pfedlora_flwr.training import graphs
from pfedlora_flwr.training.graphs import Steps
from pfedlora_flwr.training.loop import (
    Draws,
    Samples,
    Visit,
    count_correct,
    flip_and_crop,
    infer,
    padding_of,
)
from tests.conftest import keys_in, run_locally


def visit(**keys: object) -> Visit:
    experiment = from_flat({"batch-size": 8, **keys})
    return Visit(experiment, 0, 1, torch_generator(3, "train"))


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 10))


def some(n: int = 30) -> Samples:
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (n, 4, 4, 3), dtype=torch.uint8)
    return Samples(
        pixels,
        torch.arange(n) % 10,
        torch.tensor([0.01, 0.02, 0.03]),
        torch.tensor([-1.0, -2.0, -3.0]),
    )


def test_inputs_are_scaled_and_shifted_by_channel() -> None:
    data = some()
    by_hand = data.inputs[:5].numpy().astype("f8") * [0.01, 0.02, 0.03] + [-1.0, -2.0, -3.0]
    assert np.allclose(data.batch(slice(0, 5)).numpy(), by_hand.transpose(0, 3, 1, 2), atol=1e-5)
    assert data.batch(torch.tensor([3, 1])).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "keys", [{}, {"weight-decay": 0.1, "clip-norm": 0.5, "momentum": 0.5, "local-epochs": 3}]
)
def test_sgd_is_an_obvious_loop(keys: dict[str, object]) -> None:
    """By hand: v ← m v + (g + λ w), w ← w − η v, over batches of a seeded permutation; the last,
    smaller batch counts too."""
    data, model, made = some(), classifier(), visit(lr=0.1, **keys)
    made.sgd("model", model.parameters(), lambda x, y: cross_entropy(model(x), y), data)
    e, twin, generator = made.experiment, classifier(), torch_generator(3, "train")
    velocity = [torch.zeros_like(p) for p in twin.parameters()]
    for _ in range(e.local_epochs):
        losses = []
        for index in torch.randperm(30, generator=generator).split(8):
            loss = cross_entropy(twin(data.batch(index)), data.labels[index])
            gradients = torch.autograd.grad(loss, list(twin.parameters()))
            norm = torch.sqrt(sum((g**2).sum() for g in gradients))
            factor = min(1.0, e.clip_norm / float(norm)) if e.clip_norm else 1.0
            with torch.no_grad():
                for p, v, g in zip(twin.parameters(), velocity, gradients, strict=True):
                    v.mul_(e.momentum).add_(factor * g + e.weight_decay * p)
                    p.sub_(0.1 * v)
            losses.append(loss.item() * len(index))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert made.losses["model"] == pytest.approx(sum(losses) / 30, rel=1e-5)


def test_no_epochs_and_a_rate_of_0_are_not_the_experiments() -> None:
    data, model = some(), classifier()
    before = model[1].weight.clone()
    for given in ({"epochs": 0}, {"lr": 0.0}):
        made = visit(**{"local-epochs": 2})
        made.sgd(
            "model", model.parameters(), lambda x, y: cross_entropy(model(x), y), data, **given
        )
        assert torch.equal(model[1].weight, before)
    assert made.flops["model"] > 0, "an epoch at rate 0 computes"
    made.sgd("none", model.parameters(), lambda x, y: cross_entropy(model(x), y), data, epochs=0)
    assert "none" not in made.flops | made.losses


def test_a_loop_of_ones_own_is_counted_as_ours_is() -> None:
    data, model, ours, own = some(32), classifier(), visit(), visit()
    ours.sgd("model", model.parameters(), lambda x, y: cross_entropy(model(x), y), data)
    with own.counted("model"):
        for index in torch.arange(32).split(8):
            cross_entropy(model(data.batch(index)), data.labels[index]).backward()
    assert own.flops == ours.flops


def test_frozen_parameters_stay() -> None:
    data, model, made = some(), classifier(), visit()
    model[1].bias.requires_grad_(False)
    before = model[1].bias.clone()
    made.sgd("model", model.parameters(), lambda x, y: cross_entropy(model(x), y), data)
    assert torch.equal(model[1].bias, before)


def test_bf16_follows_fp32_from_afar() -> None:
    data = some()
    trained = {}
    for precision in ("fp32", "bf16"):
        model = trained[precision] = classifier()
        visit(precision=precision).sgd(
            "model", model.parameters(), lambda x, y, m=model: cross_entropy(m(x), y), data
        )
    one, other = (trained[p][1].weight for p in ("fp32", "bf16"))
    assert not torch.equal(one, other)
    assert (one - other).norm() / one.norm() < 0.02
    assert other.dtype == torch.float32


@pytest.mark.parametrize(
    ("height", "width", "padding"), [(32, 32, 4), (64, 48, 6), (9, 20, 1), (6, 6, 1)]
)
def test_flip_and_crop_by_hand(height: int, width: int, padding: int) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.normal(size=(6, 3, height, width)).astype("f4"))
    assert padding_of(images.permute(0, 2, 3, 1)) == padding
    flip, place = (
        torch.tensor([0, 1, 1, 0, 1, 0], dtype=torch.bool),
        torch.from_numpy(rng.integers(0, 2 * padding + 1, (2, 6))),
    )
    ours = flip_and_crop(images, flip, place, padding)
    for i in range(6):
        image = images[i].numpy()[:, :, ::-1] if flip[i] else images[i].numpy()
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        top, left = place[:, i]
        assert np.array_equal(ours[i].numpy(), padded[:, top : top + height, left : left + width])


def test_draws_are_new_each_epoch_in_tensors_that_stay() -> None:
    draws = Draws(50, torch_generator(0, "train"), torch.device("cpu"), padding=4)
    where = [t.data_ptr() for t in (draws.order, draws.flip, draws.place)]
    draws.redraw()
    first = draws.order.clone(), draws.place.clone()
    draws.redraw()
    assert not torch.equal(first[0], draws.order)
    assert not torch.equal(first[1], draws.place)
    assert sorted(draws.order.tolist()) == list(range(50))
    assert int(draws.place.min()) >= 0
    assert int(draws.place.max()) == 8
    assert where == [t.data_ptr() for t in (draws.order, draws.flip, draws.place)]


class Recorded:
    """Stands where a CUDA graph stands: runs the step on the entries that a replay would see."""

    def __init__(self, step: object, order: Tensor, batch: int) -> None:
        self.step, self.order, self.batch = step, order, batch
        self.runs: list[tuple[int, int]] = []

    def run(self, start: int, steps: int) -> None:
        self.runs.append((start, steps))
        for i in range(steps):
            self.step(self.order[start + i * self.batch : start + (i + 1) * self.batch])


@pytest.mark.parametrize(
    ("n", "sizes"), [(17, [8, 9]), (16, [8, 8]), (18, [8, 8, 2]), (9, [9]), (1, [1])]
)
def test_a_last_batch_of_one_joins_the_one_before_where_it_must(n: int, sizes: list[int]) -> None:
    seen: list[list[int]] = []
    Steps(
        lambda index: seen.append(index.tolist()), torch.arange(n), 8, batches_of_one=False
    ).epoch()
    assert [len(batch) for batch in seen] == sizes
    assert [i for batch in seen for i in batch] == list(range(n))


@pytest.mark.slow
def test_a_federation_with_batch_normalisation_has_no_batch_of_one(tmp_path: Path) -> None:
    """100 rows, 4 clients: 21 training samples each, of which batches of 20 leave one."""
    rows = np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", inputs=rows, labels=np.arange(100) % 2)
    keys = keys_in("clients=4 partition.kind=iid rounds=1 batch-size=20") | {
        "dataset": f"npz:{tmp_path / 'rows.npz'}"
    }
    keys["models"] = "mlp1,tests.models.modules:Normalised"
    assert run_locally(tmp_path / "run", keys).result["status"] == "completed"
    with pytest.raises(
        UserError, match="batch-size is 1; allowed: at least 2 for models with batch normalisation"
    ):
        run_locally(tmp_path / "one", keys | {"batch-size": 1})
    with pytest.raises(
        UserError,
        match="augment is true; allowed: false for vectors: only images are flipped and cropped",
    ):
        run_locally(tmp_path / "augmented", keys | {"augment": True})
    # a small model that clients share is trained as a whole, although the clients' are frozen
    keys |= {"models": "tests.models.modules:Normalised", "train": "head"}
    assert run_locally(tmp_path / "frozen", keys | {"batch-size": 1}).result["rounds"] == 1
    shared = keys | {"method": "fml"}
    assert run_locally(tmp_path / "shared", shared).result["status"] == "completed"
    with pytest.raises(UserError, match="batch-size is 1; allowed: at least 2"):
        run_locally(tmp_path / "shared-one", shared | {"batch-size": 1})


@pytest.mark.parametrize("n", [80, 83, 20, 8])  # ten, ten and a rest, two and a rest, one batch
@pytest.mark.parametrize("works", [True, False])
def test_captured_epochs_take_every_batch_once_in_order(
    n: int, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Recorded] = []

    def capture(step: object, order: Tensor, batch: int) -> Recorded | None:
        made.append(Recorded(step, order, batch))
        return made[-1] if works else None

    monkeypatch.setattr(graphs, "capture", capture)
    seen: list[list[int]] = []
    order = torch.arange(n)
    steps = Steps(lambda index: seen.append(index.tolist()), order, 8)
    steps._capturable = True
    for epoch in range(5):
        order.copy_(torch.randperm(n, generator=torch_generator(epoch, "train")))
        seen.clear()
        steps.epoch()
        assert seen == [part.tolist() for part in order.split(8)]
    rest = [n % 8] if works and n % 8 else []
    assert [graph.batch for graph in made] == [8, *rest], "each size once, or never again"
    if works:
        ends = [graph.runs[-1] for graph in made]
        assert ends == [(0, n // 8), (n - n % 8, 1)][: len(made)], "a later epoch is all replayed"


def test_nothing_is_captured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "capture", lambda *a: pytest.fail("captured"))
    Steps(lambda index: None, torch.arange(80), 8).epoch()


def test_infer_and_count_correct_see_every_sample() -> None:
    data, model = some(700), classifier()
    scores = infer(model, data)
    assert scores.shape == (700, 10)
    assert torch.allclose(scores, model(data.batch(slice(None))), atol=1e-5)
    assert count_correct(model, data) == int(
        (model(data.batch(slice(None))).argmax(1) == data.labels).sum()
    )
