"""A client's model as methods see it, cut into an encoder and a head."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from pfedlora_flwr.training.kinds import Kind

Module = TypeVar("Module", bound=nn.Module)


class ClientModel(nn.Module):
    """A classifier in two parts: `encode` gives a representation R, `head` makes logits of it.

    The head is the last linear layer."""

    width: int
    """Of R, the last layer's input."""
    description = "a model of its own"
    """What a model card calls it: the name that it was built by, or the names of what it is made
    of."""
    frozen: tuple[nn.Module, ...] = ()
    """Its parts that are not trained: always in evaluation mode, so that their statistics stay."""
    adapted: tuple[nn.Module, ...] = ()
    """The module that LoRA is in, if it is in any: frozen but for LoRA."""
    awake: tuple[nn.Module, ...] = ()
    """What of its frozen parts is in training mode while it trains: LoRA's dropout."""
    given: frozenset[str] = frozenset()
    """The names in its state_dict of its base: what came from elsewhere and does not change."""
    base: str = ""
    """What the base is known by; empty until it is asked for (`kept.base_of`), or a name of the
    model's own that holds a hash."""

    def encode(self, inputs: Tensor) -> Tensor:
        """Inputs, [B, *shape] of the Task → R, [B, width]."""
        raise NotImplementedError

    def head(self, representation: Tensor) -> Tensor:
        """R → logits, [B, classes]."""
        raise NotImplementedError

    def last_layer(self) -> nn.Linear:
        """The layer that makes logits."""
        raise NotImplementedError

    def drop_last_layer(self) -> None:
        """Leaves the extractor alone: from here on only `encode` can be called."""
        raise NotImplementedError

    def with_last(self, layer: nn.Linear) -> Self:
        """The same model with another last layer; it shares all the rest with this one."""
        raise NotImplementedError

    def extractor_tensors(self) -> dict[str, Tensor]:
        """All but the last layer, detached, by their names in the state_dict and in its order: the
        trained parameters, and the buffers that can change. The base is left out."""
        left_out = given_names(self) | self._last_names()
        return {
            name: tensor.detach()
            for name, tensor in self.state_dict().items()
            if name not in left_out
        }

    def load_extractor(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets what `extractor_tensors` names; the last layer and the base stay.

        Raises:
            RuntimeError: other names or shapes, as load_state_dict does.
        """
        own, left_out = self.state_dict(), given_names(self) | self._last_names()
        self.load_state_dict({name: own[name] for name in own if name in left_out} | dict(tensors))

    def extractor_parameters(self) -> list[nn.Parameter]:
        """The trained parameters but the last layer's, as an optimiser takes them."""
        last = self._last_names()
        return [p for name, p in self.named_parameters() if p.requires_grad and name not in last]

    def _last_names(self) -> set[str]:
        """The names in the state_dict of the last layer."""
        last = self.last_layer()
        return {
            f"{at}.{name}" if at else name
            for at, part in self.named_modules(remove_duplicate=False)
            if part is last
            for name in last.state_dict()
        }

    def own_names(self) -> dict[str, str]:
        """By the name of a tensor in the state_dict, its name in that of the module that the model
        was made of, where there is one."""
        return {name: name for name in self.state_dict()}

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encode(inputs))

    def train(self, mode: bool = True) -> Self:
        """As every module's, but for the frozen parts."""
        super().train(mode)
        for part in self.frozen:
            part.eval()
        for part in self.awake:
            part.train(mode)
        return self


def given_names(module: nn.Module) -> set[str]:
    """The names in the state_dict of the bases of the client models in it."""
    return {
        f"{at}.{name}" if at else name
        for at, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, ClientModel)
        for name in part.given
    }


class WithLast(ClientModel):
    """A model whose head is its layer `last`."""

    last: nn.Linear

    def head(self, representation: Tensor) -> Tensor:
        return self.last(representation)

    def last_layer(self) -> nn.Linear:
        return self.last

    def drop_last_layer(self) -> None:
        del self.last

    def with_last(self, layer: nn.Linear) -> Self:
        other = twin(self)
        other.last = layer
        return other


class Family(ClientModel):
    """What the families have in common: FC1 and FC2, each with a ReLU after it, and FC3.

    R is the output of FC2, of one width for all of a family. Such a model can also be cut after FC1
    (`trunk` and `rest`), whose width is the model's own."""

    kind: ClassVar[Kind]
    """Of the inputs."""
    trunk_width: int
    """Of FC1's output."""
    fc2: nn.Linear
    fc3: nn.Linear

    def trunk(self, inputs: Tensor) -> Tensor:
        """[B, *shape] → the output of FC1."""
        raise NotImplementedError

    def rest(self, hidden: Tensor) -> Tensor:
        """The output of FC1 → logits, [B, classes]."""
        return self.fc3(torch.relu(self.fc2(hidden)))

    def encode(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.fc2(self.trunk(inputs)))

    def head(self, representation: Tensor) -> Tensor:
        return self.fc3(representation)

    def last_layer(self) -> nn.Linear:
        return self.fc3

    def drop_last_layer(self) -> None:
        del self.fc3

    def with_last(self, layer: nn.Linear) -> Self:
        other = twin(self)
        other.fc3 = layer
        return other


def twin(module: Module) -> Module:
    """A module of its own with the same parts, of which each may be replaced in one of the two."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
