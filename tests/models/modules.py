"""Modules of users', whole ones: what their `forward` computes is what is trained."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A GRU over [channels, time], and a linear layer on its last state."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.gru = nn.GRU(shape[0], 24, batch_first=True)
        self.out = nn.Linear(24, classes)

    def forward(self, series: Tensor) -> Tensor:
        states, _ = self.gru(series.transpose(1, 2))
        return self.out(states[:, -1])


class Normalised(nn.Sequential):
    """Batch normalisation, dropout, and a head that is one of several linear layers of a
    Sequential."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(
            nn.Linear(shape[0], 20),
            nn.BatchNorm1d(20),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(20, 12),
            nn.ReLU(),
            nn.Linear(12, classes),
        )


class PartlyFrozen(nn.Sequential):
    """A first layer that is not trained, as of a backbone whose weights came from elsewhere."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(
            nn.Linear(shape[0], 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, classes)
        )
        self[0].requires_grad_(False)


class HalfFrozen(nn.Module):
    """A frozen base, the same in every build, with a batch normalisation; after it a trained layer
    with another one, and the head."""

    base_seed = 0

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 200), nn.BatchNorm1d(200), nn.Dropout()
        )
        draws = torch.Generator().manual_seed(self.base_seed)
        for parameter in self.backbone.parameters():
            parameter.data.normal_(generator=draws)
        self.backbone.requires_grad_(False)
        self.trained = nn.Sequential(nn.Linear(200, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Linear(12, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.trained(self.backbone(images)))


class StillBody(nn.Sequential):
    """Nothing but the head is trained, on a body that is the same in every build."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(nn.Linear(shape[0], 20), nn.ReLU(), nn.Linear(20, classes))
        for parameter in self[0].parameters():
            parameter.requires_grad_(False).normal_(generator=torch.Generator().manual_seed(0))


class FrozenHead(nn.Sequential):
    """A last layer that is not trained."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(nn.Linear(shape[0], 12), nn.Linear(12, classes))
        self[1].requires_grad_(False)


class AllFrozen(FrozenHead):
    """Nothing is trained."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(classes, shape)
        self.requires_grad_(False)


class Unbiased(nn.Sequential):
    """A last layer without a bias."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(nn.Linear(shape[0], 128), nn.ReLU(), nn.Linear(128, classes, bias=False))


class Logistic(nn.Linear):
    """One layer, the head, on the inputs themselves."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(shape[0], classes)


class Volume(nn.Module):
    """A convolution in three dimensions, whose weights have five, and one in two."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flat = nn.Conv2d(3, 2, 4, stride=4)
        self.deep = nn.Conv3d(1, 2, 2, stride=2)
        self.out = nn.Linear(32, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.deep(self.flat(inputs)[:, None]).flatten(1).relu())


class Dropped(nn.Module):
    """Encoder and head, and between them, in training alone, a dropout that only `forward` knows
    of."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16))
        self.head = nn.Linear(16, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.dropout(self.encoder(inputs), 0.5, self.training))


class TwoNames(nn.Module):
    """A frozen layer under two names, the same in every build, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16).requires_grad_(False))
        nn.init.constant_(self.net[1].weight, 0.1)
        nn.init.constant_(self.net[1].bias, 0.1)
        self.stem = self.net[1]
        self.head = nn.Linear(16, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.net(inputs))


class Pooled(nn.Module):
    """Encoder and head by name, with a pooling between the two: head(encoder(x)) is nothing."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs).mean((2, 3)))


class Softmaxed(Pooled):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).softmax(1)


class Looking(Pooled):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.to(self.head.weight.dtype))


class Two(Pooled):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(inputs), inputs


class Convolved(Pooled):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.encoder(inputs).mean((2, 3))[:, :5]


class Auxiliary(Pooled):
    def forward(self, inputs: Tensor) -> Tensor:
        logits = super().forward(inputs)
        return logits * 2 if self.training else logits


class Masked(nn.Module):
    """With a buffer of booleans."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(shape[0], 12), nn.Linear(12, classes)
        self.register_buffer("mask", torch.arange(12) < 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x) * self.mask)


class Half(Masked):
    """Of which a parameter is in bf16, a type that NumPy has not."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(classes, shape)
        self.scale = nn.Parameter(torch.ones(12, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale.mean()


class Counting(nn.Module):
    """Of which a training pass sets buffers, attributes and what containers hold anew."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(shape[0], 12), nn.Linear(12, classes)
        self.seen: Tensor
        self.mean: Tensor
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(12))
        self.steps, self.held = 0, {"last": torch.zeros(1)}
        self.log: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        if self.training:
            self.seen, self.steps = self.seen + len(x), self.steps + 1
            self.mean = (0.9 * self.mean + 0.1 * z.mean(0)).detach()
            self.held["last"] += 1
            self.log.append(len(x))
            self.late = len(x)
        return self.head(z - self.mean)


class CountingParts(nn.Module):
    """The same without a forward."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        inner = Counting(12, shape)
        self.encoder, self.head = inner, nn.Linear(12, classes)


class Noisy(Masked):
    """With noise in evaluation, too, seldom seen; `own` draws by a generator of its own."""

    own = False

    def forward(self, x: Tensor) -> Tensor:
        if self.own:
            return self.head(self.first(x) * np.random.default_rng().normal())
        return self.head(torch.dropout(self.first(x), 0.01, True))


class NoisyApart(Noisy):
    own = True


class DrawsInVain(Masked):
    """Noise that is drawn in evaluation, too, and used in training alone."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x) + torch.randn(1) * self.training)


class LazyFirst(nn.Module):
    """A layer that is made by the first call."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = (
            nn.Sequential(nn.Flatten(), nn.LazyLinear(12)),
            nn.Linear(12, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Complex(nn.Module):
    """With a complex parameter."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.randn(shape[0], 12, dtype=torch.cfloat))
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(torch.cfloat) @ self.wave).abs())


class ComplexBuffer(Masked):
    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(classes, shape)
        self.register_buffer("turn", torch.ones(12, dtype=torch.cdouble))


class InAList(Masked):
    """A layer that no state_dict holds."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(classes, shape)
        self.layers = [nn.Linear(12, 12)]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[0](self.first(x)))


class NotPersistent(Counting):
    """Statistics that no state_dict holds."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(classes, shape)
        self.register_buffer("mean", torch.zeros(12), persistent=False)


class ExtraState(Masked):
    def get_extra_state(self) -> dict[str, int]:
        return {"steps": 3}

    def set_extra_state(self, state: dict[str, int]) -> None: ...
