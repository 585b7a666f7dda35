"""A client's model as methods see it, cut into an encoder and a head."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn


class ClientModel(nn.Module):
    """A classifier in two parts: `encode` gives a representation R, `head` makes logits of it.

    `layers` says where they part: the head is the last linear layer (1, the default), or, in the CNNs, the last two (2).
    A model whose head is one linear layer parts there for both.
    """

    widths: tuple[int, int]
    """Width of R for `layers` of 1 and 2."""
    description = "a model of its own"
    """What a model card calls it: the name that it was built by, or the names of what it is made of."""

    @property
    def width(self) -> int:
        """Width of the last layer's input."""
        return self.widths[0]

    def encode(self, images: Tensor, layers: int = 1) -> Tensor:
        """Inputs, [B, *shape] of the Task → R, [B, width]."""
        raise NotImplementedError

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        """R → logits, [B, classes]."""
        raise NotImplementedError

    def last_layer(self) -> nn.Linear:
        """The layer that makes logits."""
        raise NotImplementedError

    def drop_last_layer(self) -> None:
        """Leaves the extractor alone: from here on only `encode` can be called."""
        raise NotImplementedError

    def own_names(self) -> dict[str, str]:
        """By the name of a tensor in the state_dict, its name in that of the module that the model was made of, where there is one."""
        return {name: name for name in self.state_dict()}

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encode(images))


class WithLast(ClientModel):
    """A model whose head is its layer `last`."""

    last: nn.Linear

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        return self.last(representation)

    def last_layer(self) -> nn.Linear:
        return self.last

    def drop_last_layer(self) -> None:
        del self.last


class Family(ClientModel):
    """What the families have in common: FC1 and FC2, each with a ReLU after it, and FC3.

    R is the output of FC2, of one width for all of a family, or, before the last two layers, that of FC1, whose width is the model's own.
    """

    kind: ClassVar[str]
    """Of the inputs: images, series or vectors."""
    fc2: nn.Linear
    fc3: nn.Linear

    def trunk(self, inputs: Tensor) -> Tensor:
        """[B, *shape] → the output of FC1."""
        raise NotImplementedError

    def encode(self, images: Tensor, layers: int = 1) -> Tensor:
        x = self.trunk(images)
        return x if layers == 2 else torch.relu(self.fc2(x))

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        return self.fc3(torch.relu(self.fc2(representation)) if layers == 2 else representation)

    def last_layer(self) -> nn.Linear:
        return self.fc3

    def drop_last_layer(self) -> None:
        del self.fc3
