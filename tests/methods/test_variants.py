"""The variants of pFedLoRA of benchmarks/variants.py, each against what its option says."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm

from benchmarks.variants import Both, Variant
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import torch_generator
from pfedlora_flwr.training.loop import Samples, Visit

LABELS = torch.tensor([2, 5, 5, 7] * 4)


BASE = {"method": "benchmarks.variants:Variant", "models": "cnn5", "batch-size": 8, "local-epochs": 2}


def variant(options: str = "", **keys: object) -> Variant:
    return Variant(from_flat({**BASE, "method-options": options, **keys}), Task(10))


def trained(method: PFedLoRA, state: Tensors, round: int = 1, *, seed: int = 0) -> tuple[torch.nn.Module, Upload]:
    """A client's model and upload after a visit with `state`."""
    images = torch.randn(len(LABELS), 3, 32, 32, generator=torch_generator(seed, "images"))
    model = method.private_init(0, 3)
    visit = Visit(method.experiment, 0, round, torch_generator(seed, "train"))
    return model, method.local_update(model, method.download(state, 0, round), Samples(images, LABELS), visit)


def uploads(method: Variant, state: Tensors, counts: list[list[int]]) -> dict[int, Upload]:
    """One upload for each list of class counts, with random tensors laid out like the download."""
    generator = torch_generator(1, "uploads")
    found = {}
    for client, held in enumerate(counts):
        tensors = {name: torch.randn(t.shape, generator=generator) for name, t in method.download(state, client, 1).items()}
        found[client] = Upload(tensors | {"counts": torch.tensor(held)}, sum(held))
    return found


def test_without_options_it_is_pfedlora() -> None:
    ours, paper = variant(), PFedLoRA(from_flat({"models": "cnn5", "batch-size": 8, "local-epochs": 2}), Task(10))
    state = paper.state_init(5)
    assert all(torch.equal(t, state[name]) for name, t in ours.state_init(5).items())
    (ours_model, ours_upload), (model, upload) = trained(ours, state), trained(paper, state)
    assert all(torch.equal(t, ours_upload.tensors[name]) for name, t in upload.tensors.items())
    assert all(torch.equal(t, ours_model.state_dict()[name]) for name, t in model.state_dict().items())
    several = {0: upload, 1: trained(paper, state, seed=1)[1]}
    for name, mean in paper.aggregate(several, state, 1).items():
        assert torch.allclose(ours.aggregate(several, state, 1)[name], mean, rtol=1e-6, atol=1e-7), name


def test_rows_are_weighted_by_the_samples_of_their_class() -> None:
    method = variant("rows=classes")
    state = method.state_init(5)
    sent = uploads(method, state, [[3, 1] + [0] * 8, [1, 0, 4] + [0] * 7])
    merged = method.aggregate(sent, state, 1)
    a, b = (sent[k].tensors for k in (0, 1))
    for name in ("up.weight", "up.bias"):
        assert torch.allclose(merged[name][0], (3 * a[name][0] + 1 * b[name][0]) / 4, atol=1e-6)
        assert torch.allclose(merged[name][1], a[name][1])
        assert torch.allclose(merged[name][2], b[name][2])
        assert torch.equal(merged[name][3:], state[name][3:]), "nobody holds these classes"
    assert torch.allclose(merged["down.weight"], (4 * a["down.weight"] + 5 * b["down.weight"]) / 9, atol=1e-6)


def test_counts_are_sent_and_checked() -> None:
    method = variant("rows=classes")
    state = method.state_init(5)
    _, upload = trained(method, state)
    assert upload.tensors["counts"].tolist() == [0, 0, 4, 0, 0, 8, 0, 4, 0, 0]
    method.check(upload, state, 0)
    upload.tensors["counts"][0] = 1
    with pytest.raises(Refused, match="counts sum to 17, expected its 16 samples"):
        method.check(upload, state, 0)


def test_a_product_is_averaged_exactly_where_its_rank_allows() -> None:
    method = variant("average=product rows=classes adapter.hidden-dim=60")
    state = method.state_init(5)
    sent = uploads(method, state, [[3, 1] + [0] * 8, [1, 0, 4] + [0] * 7])
    merged = method.aggregate(sent, state, 1)
    x = torch.randn(6, 500, generator=torch_generator(2, "x"))

    def logits(t: Tensors) -> torch.Tensor:
        return (x @ t["down.weight"].T + t["down.bias"]) @ t["up.weight"].T + t["up.bias"]

    ours, a, b = logits(merged), logits(sent[0].tensors), logits(sent[1].tensors)
    assert torch.allclose(ours[:, 0], (3 * a[:, 0] + b[:, 0]) / 4, rtol=1e-4, atol=1e-3)
    assert torch.allclose(ours[:, 3:], logits(state)[:, 3:], rtol=1e-4, atol=1e-4)
    assert {n: t.shape for n, t in merged.items()} == {n: t.shape for n, t in state.items()}
    with pytest.raises(UserError, match="average=product; allowed"):
        variant("average=product", setting="homogeneous")


def test_classes_not_held_are_left_out_of_the_losses() -> None:
    method = variant("softmax=held")
    state = method.state_init(5)
    _, upload = trained(method, state)
    outside = [c for c in range(10) if c not in LABELS]
    assert torch.equal(upload.tensors["up.weight"][outside], state["up.weight"][outside])
    assert not torch.equal(upload.tensors["up.weight"][5], state["up.weight"][5])
    assert not torch.equal(trained(variant(), state)[1].tensors["up.weight"][outside], state["up.weight"][outside])


def test_a_fixed_first_matrix_is_orthogonal_and_stays() -> None:
    method = variant("down=fixed")
    state = method.state_init(5)
    assert torch.allclose(state["down.weight"] @ state["down.weight"].T, torch.eye(60), atol=1e-5)
    _, upload = trained(method, state)
    assert torch.equal(upload.tensors["down.weight"], state["down.weight"])
    assert not torch.equal(upload.tensors["up.weight"], state["up.weight"])


def test_the_adapter_reads_normalised_features() -> None:
    method, plain = variant("features=normalised"), variant()
    state = method.state_init(5)
    x = torch.rand(4, 500, generator=torch_generator(2, "x"))
    adapters = [m._adapter(500) for m in (method, plain)]
    for adapter in adapters:
        adapter.load_state_dict(state)
    assert torch.allclose(adapters[0](x), adapters[1](layer_norm(x, (500,))))


def test_the_adapter_may_be_trained_first() -> None:
    """Then it is trained behind the model as it came, and the model on the adapter as it goes up."""
    first, still, second = variant("order=adapter"), variant("order=adapter adapter-lr=0.01", lr=1e-12), variant()
    state = first.state_init(5)
    sent, alike, other = (trained(method, state)[1].tensors["up.weight"] for method in (first, still, second))
    assert torch.equal(sent, alike), "the model of this visit had no part in it"
    assert not torch.allclose(sent, other, atol=1e-6)


def test_the_own_loss_begins_at_full_weight() -> None:
    method = variant("warmup=4 mu=0.6")
    assert [method.own_weight(round) for round in (1, 2, 3, 5, 9)] == pytest.approx([1.0, 0.9, 0.8, 0.6, 0.6])
    alone = variant("mu=1")
    state = method.state_init(5)
    warm, own = (trained(m, state)[0].state_dict() for m in (method, alone))
    assert all(torch.equal(warm[name], own[name]) for name in warm)


def test_the_server_moves_with_momentum() -> None:
    method = variant("server-momentum=0.5")
    state = method.state_init(5)
    assert not any("velocity" in name for name in method.download(state, 0, 1))
    sent = uploads(method, state, [[4] + [0] * 9])
    target = {name: t for name, t in sent[0].tensors.items() if name != "counts"}
    once = method.aggregate({0: Upload(target, 4)}, state, 1)
    twice = method.aggregate({0: Upload(target, 4)}, once, 2)
    for name, goal in target.items():
        first = goal - state[name]
        assert torch.allclose(once[name], goal, atol=1e-6)
        assert torch.allclose(twice[name], goal + 0.5 * first, atol=1e-5), name


def test_both_predict() -> None:
    method = variant("predict=both mu=0.75")
    model, upload = trained(method, method.state_init(5))
    assert isinstance(model, Both)
    images = torch.randn(4, 3, 32, 32, generator=torch_generator(4, "images"))
    representation = model.local.encode(images)
    adapter = method._adapter(500)
    adapter.load_state_dict(upload.tensors)
    expected = 0.75 * model.local.head(representation) + 0.25 * adapter(representation)
    assert torch.allclose(method.predict(model, images), expected)
