"""A client's model as methods see it, cut into an encoder and a head."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Set
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.training.kinds import Kind

Module = TypeVar("Module", bound=nn.Module)
TENSORS = "sha256:"
"""What the identity begins with of a base that is known by its tensors alone."""


class ClientModel(nn.Module):
    """A classifier in two parts: `encode` computes a representation R, `head` its logits.

    The head is the last linear layer."""

    width: int
    """The width of R, the last layer's input."""
    description = "a model of its own"
    """Its name in a model card: the name it was built by, or the names of its parts."""
    frozen: tuple[nn.Module, ...] = ()
    """Its untrained parts: always in evaluation mode, so that their statistics stay."""
    adapted: tuple[nn.Module, ...] = ()
    """The module with LoRA, if there is one: frozen except for LoRA."""
    awake: tuple[nn.Module, ...] = ()
    """The parts of the frozen modules that are in training mode during training: LoRA's dropout."""
    given: frozenset[str] = frozenset()
    """The state_dict names of its base: tensors from elsewhere that do not change."""
    still: tuple[nn.Module, ...] = ()
    """The frozen parts that are all base. What looks for the rest need not go through them."""
    base: str = ""
    """The identity of the base: empty until requested (`kept.base_of`), or a name with a hash; of
    one without a name TENSORS and a hash; of a model of text its tokeniser besides."""

    def encode(self, inputs: Tensor) -> Tensor:
        """Inputs, [B, *shape] of the Task → R, [B, width]."""
        raise NotImplementedError

    def head(self, representation: Tensor) -> Tensor:
        """R → logits, [B, classes]: by the last layer."""
        return self.last_layer()(representation)

    def last_layer(self) -> nn.Linear:
        """The layer that computes the logits."""
        raise NotImplementedError

    def drop_last_layer(self) -> None:
        """Removes the last layer: from here on only `encode` can be called."""
        raise NotImplementedError

    def with_last(self, layer: nn.Linear) -> Self:
        """The same model with another last layer; it shares all the rest with this one."""
        raise NotImplementedError

    def extractor_tensors(self) -> dict[str, Tensor]:
        """The tensors before the last layer, detached, by name and in the order of the state_dict:
        trained parameters, and buffers that can change. The base is left out."""
        return state_outside(self, given_names(self) | self.last_names())

    def load_extractor(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets what `extractor_tensors` names; the last layer and the base stay.

        Raises:
            RuntimeError: other names or shapes, as load_state_dict does.
        """
        own, left_out = self.state_dict(), given_names(self) | self.last_names()
        self.load_state_dict({name: own[name] for name in own if name in left_out} | dict(tensors))

    def extractor_parameters(self) -> list[nn.Parameter]:
        """The trained parameters before the last layer, for an optimiser."""
        last = self.last_names()
        return [p for name, p in self.named_parameters() if p.requires_grad and name not in last]

    def last_names(self) -> set[str]:
        """The names in the state_dict of the last layer."""
        last = self.last_layer()
        return {
            f"{at}.{name}" if at else name
            for at, part in modules_outside(self)
            if part is last
            for name in last.state_dict()
        }

    def own_names(self) -> dict[str, str]:
        """The name of each tensor of the state_dict in the original module, if there is one."""
        return {name: name for name in self.state_dict()}

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encode(inputs))

    def train(self, mode: bool = True) -> Self:
        """Like `nn.Module.train`, except for the frozen parts."""
        self.training = mode
        for child in self.children():
            if child.training or not any(child is part for part in self.frozen):
                child.train(mode)
        for part in self.frozen:
            if part.training:
                part.eval()
        for part in self.awake:
            part.train(mode)
        return self


def given_names(module: nn.Module) -> set[str]:
    """The names in the state_dict of the bases of the client models in it."""
    return {
        f"{at}.{name}" if at else name
        for at, part in modules_outside(module)
        if isinstance(part, ClientModel)
        for name in part.given
    }


def modules_outside(module: nn.Module, at: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Like `named_modules(remove_duplicate=False)`, without the client models' parts that are all
    base (`still`)."""
    yield at, module
    still = module.still if isinstance(module, ClientModel) else ()
    for name, child in module._modules.items():
        if child is not None and not any(child is part for part in still):
            yield from modules_outside(child, f"{at}.{name}" if at else name)


def state_outside(module: nn.Module, left_out: Set[str]) -> dict[str, Tensor]:
    """The state_dict in its order, detached, without the same parts and without these names."""
    state: dict[str, Tensor] = {}
    if any(isinstance(part, ClientModel) and part.still for _, part in modules_outside(module)):
        for at, part in modules_outside(module):
            part._save_to_state_dict(state, f"{at}." if at else "", False)
    else:
        state = module.state_dict()
    return {name: tensor.detach() for name, tensor in state.items() if name not in left_out}


class WithLast(ClientModel):
    """A model whose head is one layer of its own."""

    head_name: ClassVar[str] = "last"
    """The layer's attribute."""
    last: nn.Linear

    def last_layer(self) -> nn.Linear:
        layer: nn.Linear = getattr(self, self.head_name)
        return layer

    def drop_last_layer(self) -> None:
        delattr(self, self.head_name)

    def with_last(self, layer: nn.Linear) -> Self:
        other = twin(self)
        setattr(other, self.head_name, layer)
        return other


class Family(WithLast):
    """The families' common code: FC1 and FC2, each followed by a ReLU, and FC3.

    R is the output of FC2, with the same width in a family. Such a model can also be split after
    FC1 (`trunk` and `rest`), whose width differs between models."""

    head_name = "fc3"
    kind: ClassVar[Kind]
    """The kind of inputs."""
    trunk_width: int
    """The width of FC1's output."""
    fc2: nn.Linear
    fc3: nn.Linear

    def connect(self, inputs: int, widths: tuple[int, int], classes: int) -> None:
        """Makes FC1 to FC3 behind so many numbers. widths: of the outputs of FC1 and FC2."""
        self.trunk_width, self.width = widths
        self.fc1 = Linear(inputs, self.trunk_width)
        self.fc2 = Linear(self.trunk_width, self.width)
        self.fc3 = Linear(self.width, classes)

    def trunk(self, inputs: Tensor) -> Tensor:
        """[B, *shape] → the output of FC1."""
        raise NotImplementedError

    def rest(self, hidden: Tensor) -> Tensor:
        """The output of FC1 → logits, [B, classes]."""
        return self.fc3(torch.relu(self.fc2(hidden)))

    def encode(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.fc2(self.trunk(inputs)))


def twin(module: Module) -> Module:
    """A module of its own with the same parts, of which each may be replaced in one of the two."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
