"""Local training: epochs over tensors that are already on the model's device. There is no
DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pfedlora_flwr.training.flops import count_operations
from pfedlora_flwr.training.graphs import Steps, own_stream
from pfedlora_flwr.training.lanes import await_gpu
from pfedlora_flwr.training.optimizers import SGD
from pfedlora_flwr.training.optimizers import make as make_optimizer

if TYPE_CHECKING:
    from pfedlora_flwr.experiment import Experiment

EVALUATION_BATCH = {"cpu": 256, "cuda": 4096}
"""Samples at once without gradients: as many as the CPU's cache holds the activations of, or as
fill a GPU."""


@dataclass(frozen=True)
class Samples:
    """Inputs and labels on the training device; labels are int64 [n].

    inputs: uint8 [n, H, W, 3] pixels, which a batch turns into float32 [B, 3, H, W] = pixels ·
    scale + shift per channel (channels_last in memory), or float32 inputs of any shape (features
    [n, d]), which it takes as they are.
    known: a module that never changes, and what it makes of these inputs, [n, …]: a batch carries
    its part along, so that the module need not run again (`known_output`)."""

    inputs: Tensor
    labels: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None
    known: tuple[nn.Module, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor | slice) -> Tensor:
        """The float inputs of some samples. Pixels stay uint8 until here: a quarter of the memory,
        and a batch of floats fits the cache."""
        chosen = self.inputs[index]
        if self.scale is not None and self.shift is not None:
            chosen = torch.addcmul(self.shift, chosen.float(), self.scale).permute(0, 3, 1, 2)
        if self.known is not None:
            chosen.known = self.known[0], self.known[1][index]  # type: ignore[attr-defined]
        return chosen


def known_output(module: nn.Module, batch: Tensor) -> Tensor | None:
    """What `module` makes of a batch, where its Samples know that. Whatever was made of the batch
    since, as by augmenting it, is another tensor, of which nothing is known."""
    owner, output = getattr(batch, "known", (None, None))
    return output if owner is module else None


@dataclass(frozen=True)
class Noise:
    """Of a visit with `dp.level=record`, which has been recorded as spent: z, and the clip S."""

    z: float
    clip: float


@dataclass
class Visit:
    """One client's visit in one round: its randomness, its SGD, and the operations it has spent.

    batches_of_one: whether a last batch of one sample is a batch of its own. If not, as batch
    normalisation needs it, that sample joins the batch before.
    noise: with `dp.level=record`, of what trains the part that is sent; None: it is not trained.
    validation: the client's validation part, where it is not a client that is adapted."""

    experiment: Experiment
    client: int
    round: int
    generator: torch.Generator
    flops: dict[str, int] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    batches_of_one: bool = True
    noise: Noise | None = None
    validation: Samples | None = None

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
        plain: bool = False,
    ) -> None:
        """Minimise `loss_of(inputs, labels)`, a batch's mean loss, in mini-batches over `epochs`
        shuffled passes.

        The optimiser, the Experiment's, is new for each call; with `plain` it is gradient descent
        at the constant rate `lr`, without momentum, decay or clipping. `losses[phase]` becomes the
        last epoch's mean loss, and `flops[phase]` grows by the operations executed. epochs, lr:
        None for the Experiment's; with 0 epochs nothing happens."""
        e, device = self.experiment, data.labels.device
        epochs = e.local_epochs if epochs is None else epochs
        if not epochs:
            return
        wanted = [p for p in parameters if p.requires_grad]
        rate = e.lr if lr is None else lr
        optimizer = (
            SGD(wanted, rate, momentum=0, weight_decay=0)
            if plain
            else make_optimizer(e, wanted, rate, self.round)
        )
        padding = padding_of(data.inputs) if (e.augment if augment is None else augment) else None
        draws = Draws(len(data), self.generator, device, padding)
        total = torch.zeros((), device=device)
        per_sample = 0

        def step(index: Tensor) -> None:
            nonlocal per_sample
            inputs = draws.augmented(data.batch(index), index)
            with (
                mixed_precision(e.precision, device),
                nullcontext() if per_sample else count_operations() as operations,
            ):
                loss = loss_of(inputs, data.labels[index])
            # every batch of a phase runs the same operations: the first one is counted
            if operations is not None:
                per_sample = operations.total // len(index)
            optimizer.zero_grad()
            loss.backward()
            if e.clip_norm and not plain:
                nn.utils.clip_grad_norm_(wanted, e.clip_norm)
            optimizer.step()
            total.add_(loss.detach(), alpha=len(index))

        with own_stream(device):
            steps = Steps(step, draws.order, e.batch_size, batches_of_one=self.batches_of_one)
            for _ in range(epochs):
                draws.redraw()
                total.zero_()
                steps.epoch()
            await_gpu(device)
        self.losses[phase] = float(total) / len(data)
        self._spend(phase, per_sample * len(data) * epochs)

    def infer(self, phase: str, function: Callable[[Tensor], Tensor], data: Samples) -> Tensor:
        """`function` over all inputs in large batches, without gradients; its operations count
        towards `phase`."""
        with (
            self.counted(phase),
            mixed_precision(self.experiment.precision, data.labels.device),
        ):
            return infer(function, data)

    @contextmanager
    def counted(self, phase: str) -> Iterator[None]:
        """Around a loop of one's own: the operations of the forward passes inside, and of what
        autograd does for them, count towards `phase`."""
        with count_operations() as operations:
            yield
        self._spend(phase, operations.total)

    def _spend(self, phase: str, operations: int) -> None:
        self.flops[phase] = self.flops.get(phase, 0) + operations


@torch.no_grad()
def infer(function: Callable[[Tensor], Tensor], data: Samples) -> Tensor:
    """`function` over all inputs in large batches, without gradients."""
    batch = EVALUATION_BATCH[data.labels.device.type]
    starts = range(0, len(data), batch)
    return torch.cat(
        [function(data.batch(slice(start, start + batch))).float() for start in starts]
    )


def count_correct(predict: Callable[[Tensor], Tensor], samples: Samples) -> int:
    """The samples whose highest score is their label's."""
    if not len(samples):
        return 0
    return int((infer(predict, samples).argmax(1) == samples.labels).sum())


def mixed_precision(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """bf16 products and activations with fp32 weights where `precision` is bf16, nothing
    otherwise."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


class Draws:
    """The random draws of an epoch over n samples, from a CPU generator: their order, and each
    one's mirroring and place.

    padding: of the images before they are cropped; None: they stay as they are. The tensors stay
    where they are when they are redrawn, so a captured step may read them."""

    def __init__(
        self, n: int, generator: torch.Generator, device: torch.device, padding: int | None
    ) -> None:
        self._generator = generator
        self._padding = padding
        self.order = torch.empty(n, dtype=torch.int64, device=device)  # [n]
        self.flip = torch.empty(n, dtype=torch.bool, device=device)  # [n], mirrored or not
        # rows and columns cut off, 0 to 2 · padding
        self.place = torch.empty(2, n, dtype=torch.int64, device=device)

    def redraw(self) -> None:
        """A new epoch."""
        g = self._generator
        _fill(self.order, torch.randperm(len(self.order), generator=g))
        if self._padding is not None:
            _fill(self.flip, torch.rand(self.flip.shape, generator=g) < 0.5)
            cut = torch.randint(0, 2 * self._padding + 1, self.place.shape, generator=g)
            _fill(self.place, cut)

    def augmented(self, images: Tensor, index: Tensor) -> Tensor:
        """The images of the samples `index`, [B, 3, H, W], flipped and cropped as drawn; untouched
        without padding."""
        if self._padding is None:
            return images
        return flip_and_crop(images, self.flip[index], self.place[:, index], self._padding)


def _fill(to: Tensor, drawn: Tensor) -> None:
    """Copies what was drawn; to a GPU without waiting for what that has still to do."""
    to.copy_(drawn.pin_memory() if to.is_cuda else drawn, non_blocking=True)


def padding_of(pixels: Tensor) -> int:
    """An eighth of the smaller side of images [n, H, W, c]: 4 pixels for 32."""
    return max(1, min(pixels.shape[1:3]) // 8)


def flip_and_crop(images: Tensor, flip: Tensor, place: Tensor, padding: int) -> Tensor:
    """Images [B, 3, H, W], mirrored where `flip` [B], padded and cut back to their size at `place`
    [2, B] (row, column)."""
    b, _, h, w = images.shape
    padded = nn.functional.pad(
        torch.where(flip[:, None, None, None], images.flip(3), images), (padding,) * 4
    )
    rows = (place[0, :, None] + torch.arange(h, device=images.device))[:, :, None]  # [B, H, 1]
    columns = (place[1, :, None] + torch.arange(w, device=images.device))[:, None, :]  # [B, 1, W]
    # [B, H, W, 3]
    cropped = padded.permute(0, 2, 3, 1)[
        torch.arange(b, device=images.device)[:, None, None], rows, columns
    ]
    return cropped.permute(0, 3, 1, 2)  # channels_last in memory
