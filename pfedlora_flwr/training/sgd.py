"""torch.optim.SGD by its functional form: the class imports PyTorch's compiler, 2 s in every new process, to keep it away from itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.sgd import sgd


class SGD:
    """SGD with momentum and weight decay, fused; the same steps as `torch.optim.SGD(…, fused=True)`, which a test holds."""

    def __init__(self, parameters: Sequence[Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        self._parameters = parameters
        self._lr, self._momentum, self._decay = lr, momentum, weight_decay
        self._buffers: dict[Parameter, Tensor | None] = {}

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step on the parameters that have a gradient."""
        moved = [p for p in self._parameters if p.grad is not None]
        buffers = [self._buffers.get(p) for p in moved]
        gradients = [p.grad for p in moved if p.grad is not None]
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
