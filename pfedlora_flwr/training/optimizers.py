"""torch.optim.SGD and AdamW by their functional forms: the classes import PyTorch's compiler, 2 s
in every new process, to keep it away from themselves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

if TYPE_CHECKING:
    from pfedlora_flwr.experiment import Experiment


class Optimizer(ABC):
    """Steps on parameters along their gradients."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step on the parameters that have a gradient."""
        moved = [p for p in self._parameters if p.grad is not None]
        self._step(moved, [p.grad for p in moved if p.grad is not None])

    @abstractmethod
    def _step(self, moved: list[Parameter], gradients: list[Tensor]) -> None: ...


class SGD(Optimizer):
    """SGD with momentum and weight decay, fused; the same steps as `torch.optim.SGD(…,
    fused=True)`, which a test holds."""

    def __init__(
        self, parameters: Sequence[Parameter], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(parameters)
        self._lr, self._momentum, self._decay = lr, momentum, weight_decay
        self._buffers: dict[Parameter, Tensor | None] = {}

    def _step(self, moved: list[Parameter], gradients: list[Tensor]) -> None:
        buffers = [self._buffers.get(p) for p in moved]
        sgd(
            list(moved),
            gradients,
            buffers,
            fused=True,
            lr=self._lr,
            momentum=self._momentum,
            weight_decay=self._decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._buffers |= dict(zip(moved, buffers, strict=True))


class AdamW(Optimizer):
    """Adam with decoupled weight decay, β = (0.9, 0.999), ε = 1e-8, fused; the same steps as
    `torch.optim.AdamW(…, fused=True)`."""

    def __init__(self, parameters: Sequence[Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters)
        self._lr, self._decay = lr, weight_decay
        self._state: dict[Parameter, tuple[Tensor, Tensor, Tensor]] = {}

    def _step(self, moved: list[Parameter], gradients: list[Tensor]) -> None:
        for p in moved:
            if p not in self._state:
                self._state[p] = (
                    torch.zeros_like(p),
                    torch.zeros_like(p),
                    torch.zeros((), device=p.device),
                )
        first, second, steps = ([self._state[p][i] for p in moved] for i in range(3))
        adamw(
            list(moved),
            gradients,
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._lr,
            weight_decay=self._decay,
            eps=1e-8,
            maximize=False,
        )


def make(e: Experiment, parameters: Sequence[Parameter], lr: float, round: int) -> Optimizer:
    """The Experiment's optimiser, new, for a visit in `round`; `lr` is scaled by `lr-schedule`."""
    lr *= scale(e, round)
    if e.optimizer == "adamw":
        return AdamW(parameters, lr, e.weight_decay)
    return SGD(parameters, lr, e.momentum, e.weight_decay)


def scale(e: Experiment, round: int) -> float:
    """What learning rates are multiplied by in round t: 1, or (1 + cos(π(t − 1)/T))/2, from 1 in
    the first to almost 0 in the last."""
    return (
        1.0 if e.lr_schedule == "constant" else (1 + math.cos(math.pi * (round - 1) / e.rounds)) / 2
    )
