"""The gate of a mixture of two experts: it reads the raw input and weighs the experts for each
sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.models.linear import Linear


class SwitchNorm1d(nn.Module):
    """Switchable normalisation of [B, n]: its mean and its variance are learned mixtures of the
    sample's own and the batch's.

    In evaluation, and for a batch of one sample, whose variance is unknown, the batch's are running
    means. Luo, Ren, Peng, Zhang, Li: Differentiable Learning-to-Normalize via Switchable
    Normalization (ICLR 2019)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, momentum: float = 0.9, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        # of the sample's and the batch's, before the softmax
        self.mean_weight = nn.Parameter(torch.ones(2))
        self.var_weight = nn.Parameter(torch.ones(2))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self._momentum, self._eps = momentum, eps

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, n] → [B, n]."""
        if self.training and len(inputs) > 1:
            batch_var, batch_mean = torch.var_mean(inputs, 0)
            with torch.no_grad():
                self.running_mean.lerp_(batch_mean, 1 - self._momentum)
                self.running_var.lerp_(batch_var, 1 - self._momentum)
        else:
            batch_mean, batch_var = self.running_mean, self.running_var
        own_var, own_mean = torch.var_mean(inputs, 1, keepdim=True)  # [B, 1]
        m, v = self.mean_weight.softmax(0), self.var_weight.softmax(0)
        mean = m[0] * own_mean + m[1] * batch_mean  # [B, n]
        var = v[0] * own_var + v[1] * batch_var
        return (inputs - mean) * (var + self._eps).rsqrt() * self.weight + self.bias


class Gate(nn.Module):
    """Switchable normalisation, Linear(n → m), layer normalisation, sigmoid, Linear(m → 2),
    softmax."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.switch = SwitchNorm1d(features)
        self.down = Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.up = Linear(hidden, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, …], n numbers a sample → the experts' weights, [B, 2], each row's sum 1."""
        return self.up(self.norm(self.down(self.switch(inputs.flatten(1)))).sigmoid()).softmax(1)
