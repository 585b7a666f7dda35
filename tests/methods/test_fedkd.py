"""FedKD against NumPy: the loss, the rank that an energy needs, what is sent, and the server's
bookkeeping of θ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfedlora_flwr.methods.fedkd import FedKD, compress, decompress, truncated_svd
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models import registry
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.ledger import parameters
from tests.methods import obvious
from tests.plain import Plain, maker, samples, visit

method = maker({"method": "fedkd", "batch-size": 8, "rounds": 4})
LABELS = [0, 0, 3, 3, 3, 7, 7, 1]


def matrix(
    rows: int, columns: int, spectrum: list[float] | None = None, seed: int = 0
) -> torch.Tensor:
    """A random matrix, or one with these singular values."""
    random = np.random.default_rng(seed)
    if spectrum is None:
        return torch.tensor(random.normal(size=(rows, columns))).float()
    u, _ = np.linalg.qr(random.normal(size=(rows, len(spectrum))))
    v, _ = np.linalg.qr(random.normal(size=(columns, len(spectrum))))
    return torch.tensor(u * np.array(spectrum) @ v.T).float()


@pytest.mark.parametrize("energy", [0.0, 0.3, 0.95, 0.98, 1.0])
@pytest.mark.parametrize(
    "m",
    [
        matrix(12, 30),
        matrix(30, 12),
        matrix(7, 7),
        matrix(1, 9),
        matrix(20, 15, [5, 3, 2, 1, 0.3, 0.1]),
        matrix(8, 8, [1.0] * 8),
    ],
    ids=["wide", "tall", "square", "row", "rank 6", "flat"],
)
def test_rank_is_the_smallest_that_reaches_the_energy(m: torch.Tensor, energy: float) -> None:
    u, v = truncated_svd(m, energy)
    left, sigma, right = np.linalg.svd(obvious.array(m), full_matrices=False)
    share = np.cumsum(sigma**2) / np.sum(sigma**2)
    rank = next(
        r for r in range(1, len(sigma) + 1) if r == len(sigma) or share[r - 1] >= energy - 1e-9
    )
    assert u.shape == (m.shape[0], rank)
    assert v.shape == (rank, m.shape[1])
    # the best approximation is unique
    if rank < len(sigma) and sigma[rank - 1] - sigma[rank] > 1e-3:
        np.testing.assert_allclose(
            obvious.array(u @ v), left[:, :rank] * sigma[:rank] @ right[:rank], atol=1e-5
        )
    lost = np.sum((obvious.array(m) - obvious.array(u @ v)) ** 2) / np.sum(sigma**2)
    assert lost <= 1 - min(energy, share[rank - 1]) + 1e-6


@pytest.mark.parametrize("energy", [0.0, 0.95, 1.0])
def test_zeros_stay_zeros(energy: float) -> None:
    sent = compress({"w": torch.zeros(40, 30), "b": torch.zeros(40)}, energy)
    assert {n: tuple(t.shape) for n, t in sent.items()} == {
        "w/u": (40, 1),
        "w/v": (1, 30),
        "b": (40,),
    }
    assert all(not t.isnan().any() for t in sent.values())
    assert not decompress(sent, {"w": torch.zeros(40, 30), "b": torch.zeros(40)})["w"].any()


def test_factors_are_sent_where_they_are_smaller() -> None:
    """20×30: rank r costs 50 r, dense 600, so factors up to rank 11. A convolution is flattened to
    [out, -1]; vectors are dense."""
    like = {
        "eleven": matrix(20, 30, [1.0] * 11),
        "twelve": matrix(20, 30, [1.0] * 12),
        "conv": matrix(16, 75, [2.0]).view(16, 3, 5, 5),
    }
    like["bias"] = torch.randn(16)
    sent = compress(like, 1.0)
    shapes = {name: tuple(t.shape) for name, t in sent.items()}
    assert shapes == {
        "eleven/u": (20, 11),
        "eleven/v": (11, 30),
        "twelve": (20, 30),
        "conv/u": (16, 1),
        "conv/v": (1, 75),
        "bias": (16,),
    }
    back = decompress(sent, like)
    assert list(back) == list(like)
    assert all(torch.allclose(back[name], t, atol=1e-5) for name, t in like.items())


def test_what_is_not_finite_is_sent_as_it_is() -> None:
    """So that the server sees that the client has diverged."""
    for value in (torch.nan, torch.inf):
        sent = compress({"w": torch.full((20, 30), value)}, 0.9)
        assert list(sent) == ["w"]


def test_energy_rises_linearly_from_the_first_round_to_the_last() -> None:
    fedkd = method(rounds=4)
    assert [fedkd.energy(round) for round in (1, 2, 3, 4, 5)] == pytest.approx(
        [0.95, 0.96, 0.97, 0.98, 0.98]
    )
    assert method(rounds=1).energy(1) == method(rounds=1).energy(2) == 0.95
    assert (
        method(**{"rounds": 3, "fedkd.energy-start": 0.0, "fedkd.energy-end": 1.0}).energy(2) == 0.5
    )


@pytest.mark.slow
def test_targets_and_denominator_get_no_gradient() -> None:
    """A step from θ̂ equals one on a loss whose targets and denominator were computed beforehand,
    as numbers."""
    fedkd, data = method(**{"lr": 0.1, "fedkd.energy-start": 1.0}), samples(LABELS)
    model, twin, student = (
        fedkd.private_init(0, 1),
        fedkd.private_init(0, 1),
        method().client_model(4),
    )
    moved = {
        name: 0.01 * torch.randn(t.shape, generator=torch.Generator().manual_seed(7))
        for name, t in fedkd.initial.items()
    }
    student.load_state_dict({name: t + moved[name] for name, t in fedkd.initial.items()})
    made = visit(fedkd.experiment)
    upload = fedkd.local_update(model, compress(moved, 1.0), data, made)
    h_t, h_s = twin.local.encode(data.inputs), student.encode(data.inputs)
    y_t, y_s = twin.local.fc3(h_t), student.fc3(h_s)
    projected = h_s @ twin.projection.weight.T
    p, q = torch.tensor(y_t.softmax(1).tolist()), torch.tensor(y_s.softmax(1).tolist())
    target_t, target_s = torch.tensor(h_t.tolist()), torch.tensor(projected.tolist())
    labelled = sum(-y.log_softmax(1)[range(8), LABELS].mean() for y in (y_t, y_s))
    mutual = (q * (q.log() - y_t.log_softmax(1))).sum() / 8 + (
        p * (p.log() - y_s.log_softmax(1))
    ).sum() / 8
    hidden = ((h_t - target_s) ** 2).mean() + ((projected - target_t) ** 2).mean()
    loss = labelled + (mutual + hidden) / labelled.item()
    assert made.losses["model"] == pytest.approx(loss.item(), rel=1e-5)
    both = [*twin.parameters(), *student.parameters()]
    gradients = torch.autograd.grad(loss, both)
    for (name, now), start, gradient in zip(
        model.named_parameters(), twin.parameters(), gradients, strict=False
    ):
        assert torch.allclose(now, start - 0.1 * gradient, atol=1e-6), name
    assert fedkd.predictor(model) is model.local
    updates = decompress(upload.tensors, fedkd.initial)
    for (name, _), gradient in zip(
        student.named_parameters(), gradients[len(list(twin.parameters())) :], strict=True
    ):
        assert torch.allclose(updates[name], -0.1 * gradient, atol=1e-6), name


@pytest.mark.slow
def test_perfect_predictions_divide_by_no_zero() -> None:
    fedkd, data = method(), samples([0] * 8)
    model = fedkd.private_init(0, 1)
    with torch.no_grad():
        model.local.fc3.bias[0] += 1000
        fedkd.initial["fc3.bias"][0] += 1000
    made = visit(fedkd.experiment)
    upload = fedkd.local_update(model, fedkd.state_init(0), data, made)
    assert np.isfinite(made.losses["model"])
    assert all(torch.isfinite(t).all() for t in upload.tensors.values())


@pytest.mark.slow
def test_server_adds_the_mean_update_to_what_the_clients_started_from() -> None:
    """Lossless (energy 1) over rounds of changing clients: θ is θ₀ plus the weighted mean updates
    so far, for whoever comes."""
    fedkd = method(**{"fedkd.energy-start": 1.0, "fedkd.energy-end": 1.0})
    random, state = np.random.default_rng(0), fedkd.state_init(0)
    moved = {name: np.zeros(t.shape) for name, t in fedkd.initial.items()}
    for round, clients in ((1, {0: 10, 2: 30}), (2, {1: 5}), (3, {0: 1, 5: 1})):
        updates = {
            k: {name: random.normal(size=t.shape) for name, t in fedkd.initial.items()}
            for k in clients
        }
        uploads = {
            k: Upload({name: torch.tensor(u).float() for name, u in updates[k].items()}, n)
            for k, n in clients.items()
        }
        state = fedkd.aggregate(uploads, state, round)
        for name, total in moved.items():
            total += sum(updates[k][name] * n for k, n in clients.items()) / sum(clients.values())
            got = obvious.array(
                decompress(fedkd.download(state, 7, round + 1), fedkd.initial)[name]
            )
            np.testing.assert_allclose(got, total, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_compression_is_what_the_clients_start_from() -> None:
    """With loss: the next update is added to the compressed θ, not to one that was never sent; each
    round has its energy."""
    fedkd = method(**{"rounds": 5, "fedkd.energy-start": 0.2, "fedkd.energy-end": 1.0})
    updates = [{name: torch.randn_like(t) for name, t in fedkd.initial.items()} for _ in range(2)]
    one = fedkd.aggregate({0: Upload(compress(updates[0], 0.2), 3)}, fedkd.state_init(0), 1)
    two = fedkd.aggregate({1: Upload(compress(updates[1], 0.4), 3)}, one, 2)

    def cut(m: obvious.Array, energy: float) -> obvious.Array:
        """That share of the energy, by NumPy."""
        u, s, v = np.linalg.svd(m, full_matrices=False)
        r = int(np.sum(np.cumsum(s**2) < energy * np.sum(s**2))) + 1
        return u[:, :r] * s[:r] @ v[:r]

    name = "fc3.weight"
    # by the client in round 1, by the server for round 2
    start = cut(cut(obvious.array(updates[0][name]), 0.2), 0.4)
    np.testing.assert_allclose(
        obvious.array(decompress(one, fedkd.initial)[name]), start, atol=1e-4
    )
    expected = cut(start + cut(obvious.array(updates[1][name]), 0.4), 0.6)
    np.testing.assert_allclose(
        obvious.array(decompress(two, fedkd.initial)[name]), expected, atol=1e-4
    )


@pytest.mark.slow
def test_both_ends_make_the_same_initial_student() -> None:
    a, b = method(seed=3), method(seed=3)
    assert all(torch.equal(a.initial[name], b.initial[name]) for name in a.initial)
    assert not torch.equal(a.initial["fc1.weight"], method(seed=4).initial["fc1.weight"])
    assert all(
        torch.equal(t, b.state_init(derive(3, "state"))[n])
        for n, t in a.state_init(derive(3, "state")).items()
    )


@pytest.mark.methods
@pytest.mark.parametrize("energy", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("setting", ["heterogeneous", "homogeneous"])
def test_a_client_that_missed_rounds_trains_on_the_same_student(
    setting: str, energy: float
) -> None:
    plain = Plain(
        method="fedkd",
        setting=setting,
        clients=5,
        rounds=3,
        fedkd__energy_start=energy,
        fedkd__energy_end=energy,
    )
    for clients in ([0, 1], [1], [0, 4]):  # 0 misses round 2; 4 comes for the first time in round 3
        plain.play(clients)
        assert len({parameters(sent) for sent in plain.received.values()}) == 1
        assert all(
            torch.isfinite(t).all()
            for upload in plain.uploads.values()
            for t in upload.tensors.values()
        )
    sent = [parameters(plain.uploads[0].tensors), parameters(plain.state)]
    assert isinstance(plain.method, FedKD)
    dense = parameters(plain.method.initial)
    assert all(size <= dense for size in sent)
    assert (sent[0] < 0.05 * dense) == (energy < 1)


def good(fedkd: FedKD) -> Tensors:
    return compress({name: torch.zeros_like(t) for name, t in fedkd.initial.items()}, 0.95)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fc1.weight/u", torch.zeros(499, 1)),
        ("fc1.weight/v", torch.zeros(2, 800)),
        ("fc1.weight/u", torch.zeros(500, 0)),
        ("fc1.weight/u", torch.zeros(500)),
        ("fc1.weight/u", torch.zeros(500, 1, dtype=torch.float64)),
        ("fc1.bias", torch.zeros(501)),
        ("fc1.bias/u", torch.zeros(500, 1)),
        ("fc1.weight", torch.zeros(500, 800)),
    ],
)
def test_refuses_what_is_no_update(name: str, value: torch.Tensor) -> None:
    fedkd = method()
    state = fedkd.state_init(0)
    fedkd.check(Upload(good(fedkd), 5), state, 0)
    with pytest.raises(Refused):
        fedkd.check(Upload(good(fedkd) | {name: value}, 5), state, 0)


def test_refuses_factors_that_are_larger_than_dense_and_takes_dense() -> None:
    fedkd = method()
    assert fedkd.largest_upload(fedkd.state_init(0)) == 4 * 670_058
    fedkd.check(Upload({name: torch.zeros_like(t) for name, t in fedkd.initial.items()}, 5), {}, 0)
    rank = 500 * 800 // 1300 + 1
    larger = {"fc1.weight/u": torch.zeros(500, rank), "fc1.weight/v": torch.zeros(rank, 800)}
    with pytest.raises(Refused):
        fedkd.check(Upload(good(fedkd) | larger, 5), {}, 0)


def test_private_init_does_not_depend_on_what_the_process_did_before() -> None:
    """W_h is drawn after the small model was looked up, which must leave the generator alone."""
    fedkd = method()
    registry._facts.cache_clear()
    first, again = (tensors_of(fedkd.private_init(3, 123)) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
