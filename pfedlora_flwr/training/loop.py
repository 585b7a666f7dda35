"""Local training: epochs over tensors that are already where the model is. There is no DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pfedlora_flwr.training.flops import count_operations

if TYPE_CHECKING:
    from pfedlora_flwr.config import Experiment

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Samples:
    """Inputs and labels on the training device; labels are int64 [n].

    images: uint8 [n, H, W, 3] pixels, which a batch turns into float32 [B, 3, H, W] = pixels · scale + shift per channel (channels_last
    in memory), or float32 inputs of any shape (features [n, d]), which it takes as they are.
    """

    images: Tensor
    labels: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, index: Tensor | slice) -> Tensor:
        """The float inputs of some samples. Pixels stay uint8 until here: a quarter of the memory, and a batch of floats fits the cache."""
        chosen = self.images[index]
        if self.scale is None or self.shift is None:
            return chosen
        return torch.addcmul(self.shift, chosen.float(), self.scale).permute(0, 3, 1, 2)


@dataclass
class Visit:
    """One client's turn in one round: its randomness, its SGD, and the operations it has spent."""

    experiment: Experiment
    client: int
    round: int
    generator: torch.Generator
    flops: dict[str, int] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    def sgd(
        self,
        phase: str,
        parameters: Iterable[nn.Parameter],
        loss_of: Callable[[Tensor, Tensor], Tensor],
        data: Samples,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        augment: bool | None = None,
    ) -> None:
        """Minimise `loss_of(images, labels)`, a batch's mean loss, by mini-batch SGD over `epochs` shuffled passes.

        The optimiser is new for each call. `losses[phase]` becomes the last epoch's mean loss, and `flops[phase]` grows by
        the operations executed.
        """
        e = self.experiment
        wanted = [p for p in parameters if p.requires_grad]
        optimizer = torch.optim.SGD(wanted, lr or e.lr, momentum=e.momentum, weight_decay=e.weight_decay, fused=True)
        device = data.labels.device
        per_sample = 0
        for _ in range(epochs or e.local_epochs):
            total = torch.zeros((), device=device)
            for index in torch.randperm(len(data), generator=self.generator).to(device).split(e.batch_size):
                images, labels = data.inputs(index), data.labels[index]
                if e.augment if augment is None else augment:
                    images = flip_and_crop(images, self.generator)
                if per_sample:
                    loss = loss_of(images, labels)
                else:  # every batch of a phase runs the same operations: the first one is counted
                    with count_operations() as operations:
                        loss = loss_of(images, labels)
                    per_sample = operations.total // len(index)
                optimizer.zero_grad()
                loss.backward()
                if e.clip_norm:
                    nn.utils.clip_grad_norm_(wanted, e.clip_norm)
                optimizer.step()
                total += loss.detach() * len(index)
        self.losses[phase] = float(total) / len(data)
        self._spend(phase, per_sample * len(data) * (epochs or e.local_epochs))

    def infer(self, phase: str, function: Callable[[Tensor], Tensor], data: Samples) -> Tensor:
        """`function` over all inputs in large batches, without gradients; its operations count towards `phase`."""
        with count_operations() as operations:
            output = infer(function, data)
        self._spend(phase, operations.total)
        return output

    def _spend(self, phase: str, operations: int) -> None:
        self.flops[phase] = self.flops.get(phase, 0) + operations


@torch.no_grad()
def infer(function: Callable[[Tensor], Tensor], data: Samples) -> Tensor:
    """`function` over all inputs in large batches, without gradients."""
    starts = range(0, len(data), EVALUATION_BATCH)
    return torch.cat([function(data.inputs(slice(start, start + EVALUATION_BATCH))) for start in starts])


def count_correct(predict: Callable[[Tensor], Tensor], samples: Samples) -> int:
    """The samples whose highest score is their label's."""
    if not len(samples):
        return 0
    return int((infer(predict, samples).argmax(1) == samples.labels).sum())


def flip_and_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image mirrored with probability ½, padded by 4 and cropped back to its size at a random place; [B, 3, H, W]."""
    b, _, h, w = images.shape
    flip = torch.rand(b, generator=generator).to(images.device) < 0.5
    top, left = torch.randint(0, 9, (2, b), generator=generator).to(images.device)
    padded = nn.functional.pad(torch.where(flip[:, None, None, None], images.flip(3), images), (4, 4, 4, 4))
    rows = (top[:, None] + torch.arange(h, device=images.device))[:, :, None]  # [B, H, 1]
    columns = (left[:, None] + torch.arange(w, device=images.device))[:, None, :]  # [B, 1, W]
    cropped = padded.permute(0, 2, 3, 1)[torch.arange(b, device=images.device)[:, None, None], rows, columns]  # [B, H, W, 3]
    return cropped.permute(0, 3, 1, 2)  # channels_last in memory
