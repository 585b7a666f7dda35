"""DP-SGD on an adapter that reads fixed representations (Abadi et al. 2016, arXiv 1607.00133):
what leaves the client tells little about any one record, whoever reads it.

θ ← θ − η (Σ_{i ∈ B} clip(g_i) + N(0, (zS)²)) · m/n. Each step draws its batch B, which takes each
record by itself with probability 1/m, m = ⌈n / batch-size⌉: an epoch has as many steps as without.

The adapter is linear, so a record's gradient is an outer product of two vectors, and its norm needs
no gradient: g of a matrix is δ ⊗ what the matrix reads, δ = softmax(A_θ(R)) − y at the last one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.pretrained import only_last_trained
from pfedlora_flwr.training.entropy import gaussian, one_in
from pfedlora_flwr.training.loop import Noise, Samples, Visit
from pfedlora_flwr.training.optimizers import make as make_optimizer


def check_adapter(e: Experiment, down: str, predict: str | None = "sum") -> None:
    """Raises UserError if differential privacy would put noise on both of an adapter's matrices,
    whose product has the square of it, and nobody has asked for that; or if no prediction would be
    by what records are noised in.

    down: how the first matrix comes about. predict: the key `adapter.predict`."""
    if e.noises and down == "trained" and not e.dp.trained_down:
        raise UserError(
            "adapter.down is trained; allowed with dp: fixed (noise on the second matrix alone), or"
            " with dp.trained-down=true (noise on both, which multiplies)"
        )
    if e.noises_gradients and predict != "sum":
        raise UserError(
            f"adapter.predict is {predict or 'auto'}; allowed with dp.level=record: sum, by which"
            " the adapter reaches a prediction though nothing before it is trained"
        )


def check_frozen(model: ClientModel, name: str) -> None:
    """Raises UserError for a model whose representations could tell of training data."""
    if not only_last_trained(model):
        raise UserError(
            f"model {name!r} has no frozen encoder with a library's weights, or trains something"
            " before its head; dp.level=record needs representations that no training data has"
            " changed"
        )


def parts_of(samples: int, batch_size: int) -> int:
    """m, the steps of an epoch: each takes a record with probability 1/m."""
    return -(-samples // batch_size)


@torch.no_grad()
def train(
    visit: Visit, adapter: Adapter, data: Samples, noise: Noise, epochs: int, lr: float
) -> None:
    """Trains the adapter, in place, with the Experiment's optimiser.

    data: representations [n, width]; each must be a function of its own record alone."""
    e, device, n = visit.experiment, data.labels.device, len(data)
    wanted = {name: p for name, p in adapter.named_parameters() if p.requires_grad}
    optimizer = make_optimizer(e, list(wanted.values()), lr, visit.round)
    parts = parts_of(n, e.batch_size)
    for _ in range(epochs * parts):
        batch = torch.from_numpy(one_in(parts, n)).to(device)
        sums = clipped_sum(adapter, data.inputs[batch], data.labels[batch], noise.clip)
        for name, parameter in wanted.items():
            drawn = torch.from_numpy(gaussian(parameter.numel())).view(parameter.shape).to(device)
            total = sums[name] + noise.z * noise.clip * drawn
            parameter.grad = (total * (parts / n)).to(parameter.dtype)
        if e.clip_norm:
            nn.utils.clip_grad_norm_(wanted.values(), e.clip_norm)
        optimizer.step()


@torch.no_grad()
def clipped_sum(
    adapter: Adapter, representations: Tensor, labels: Tensor, clip: float
) -> dict[str, Tensor]:
    """Σ_i g_i · min(1, clip / ‖g_i‖) over the records, by parameter, in float64. g_i: the gradient
    of the cross-entropy of record i, over all parameters that are trained together.

    A gradient without a finite norm counts as zero."""
    assert not adapter.reduced, "it has nothing between its matrices"
    r = representations.double()  # [B, width]
    down, up = adapter.down, adapter.up
    hidden = adapter.scale * (r @ down.weight.double().T + down.bias.double())  # [B, h]
    logits = hidden @ up.weight.double().T + up.bias.double()
    error = logits.softmax(1) - one_hot(labels, logits.shape[1])  # δ, [B, classes]
    back = adapter.scale * (error @ up.weight.double())  # δ at the first matrix, [B, h]
    squares = error.square().sum(1) * (1 + hidden.square().sum(1))
    if trained_down := down.weight.requires_grad:
        squares = squares + back.square().sum(1) * (1 + r.square().sum(1))
    finite = squares.isfinite()
    share = (clip / squares.sqrt()).clamp(max=1).masked_fill(~finite, 0)[:, None]

    def outer(left: Tensor, right: Tensor) -> Tensor:
        return left.T @ right.masked_fill(~finite[:, None], 0)

    error = (error * share).masked_fill(~finite[:, None], 0)
    sums = {"up.weight": outer(error, hidden), "up.bias": error.sum(0)}
    if trained_down:
        back = (back * share).masked_fill(~finite[:, None], 0)
        sums |= {"down.weight": outer(back, r), "down.bias": back.sum(0)}
    return sums
