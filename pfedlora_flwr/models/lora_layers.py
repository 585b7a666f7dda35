"""The layers of a model that LoRA is in, and what methods change of them beside LoRA's numbers:
they draw LoRA anew, move the weights beside it, or put a second LoRA next to the first."""

from __future__ import annotations

import copy
import importlib
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded

FIRST, LOCAL, REST = "default", "local", "rest"
"""What peft calls a layer's only LoRA, and what we call a second one: the client's, or others'."""
BASE = ".base_layer.weight"
"""How the name of a layer's own weight ends."""
_GIVEN = "given_weight"


def adapted_layers(module: nn.Module) -> dict[str, Any]:
    """By its place: every layer that LoRA is in. Asked without importing peft."""
    return {
        place: layer
        for place, layer in module.named_modules()
        if type(layer).__module__.startswith("peft.tuners.lora") and hasattr(layer, "lora_A")
    }


def check_called(name: str, model: ClientModel, task: Task) -> None:
    """Raises UserError for a layer with LoRA that the model's forward does not call: it takes the
    weights alone, and LoRA would train nothing."""
    layers = adapted_layers(model)
    ran = set[str]()
    handles = [
        layer.lora_A[FIRST].register_forward_hook(lambda *_, place=place: ran.add(place))
        for place, layer in layers.items()
    ]
    with torch.no_grad(), seeded(0):
        model.eval()(task.random(2, torch.Generator().manual_seed(0)))
    for handle in handles:
        handle.remove()
    if idle := [place for place in layers if place not in ran]:
        raise UserError(
            f"model {name!r}: {idle[0]}, in which lora.targets puts LoRA, is not called: the model"
            " takes its weights alone; name others in lora.targets"
        )


def draw(module: nn.Module, init: str, which: str = FIRST) -> None:
    """LoRA as it begins: its first matrices from torch's global generator, its second 0."""
    for layer in adapted_layers(module).values():
        first, second = (part[which].weight for part in (layer.lora_A, layer.lora_B))
        drawn = torch.empty(first.shape)  # on the CPU, wherever the base is
        if init == "orthogonal":
            nn.init.orthogonal_(drawn)
        else:
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
        with torch.no_grad():
            first.copy_(drawn)
            second.zero_()


def inject(config: Any, module: nn.Module, which: str) -> None:
    """Puts peft's layers into a module; what it trained before it still trains, as the head of a
    user's `encoder` and `head`: peft freezes all but its own."""
    peft = importlib.import_module("peft")
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with seeded(0):  # peft's own draws are replaced: they may be others in its next version
        peft.inject_adapter_in_model(config, module, which)
    for parameter in trained:
        parameter.requires_grad_(True)


def free_weights(model: ClientModel) -> None:
    """Gives every layer that LoRA is in a weight of its own, not trained, which `move_weights`
    moves: it is stored with the client's model. The base's stays beside it, untouched."""
    for layer in adapted_layers(model).values():
        base = layer.get_base_layer()
        base.register_buffer(_GIVEN, base.weight.detach(), persistent=False)
        base.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)
    model.given -= {f"{place}{BASE}" for place in adapted_layers(model)}


def move_weights(model: nn.Module, by: Mapping[str, Tensor]) -> None:
    """Sets the weights to the base's plus ΔW [m, n], by the layer's place; a place that `by` lacks
    gets the base's."""
    for place, layer in adapted_layers(model).items():
        base = layer.get_base_layer()
        with torch.no_grad():
            base.weight.copy_(base.given_weight)
            if place in by:
                base.weight += by[place].reshape(base.weight.shape)


def add_second(model: ClientModel, init: str, which: str = LOCAL) -> None:
    """Puts a second LoRA beside each first one: of its rank and scale, trained as it is."""
    for module in _adapted(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that this is the second one
            inject(copy.deepcopy(module.peft_config[FIRST]), module, which)
    draw(model, init, which)
    mix(model, {FIRST: 1.0, which: 1.0})


class Gate(nn.Module):
    """softmax(G x) of each layer's own input x, over those of two LoRAs that are there: of text
    and patches by token, of convolutions by place. G is drawn from torch's global generator."""

    there: Tensor

    def __init__(self, like: nn.Linear | nn.Conv1d | nn.Conv2d) -> None:
        """like: the layer's first matrix A, whose inputs and places G has."""
        super().__init__()
        self.scores = copy.deepcopy(like)
        drawn = torch.empty(2, *like.weight.shape[1:])
        self.scores.weight = nn.Parameter(nn.init.kaiming_uniform_(drawn, a=math.sqrt(5)))
        self.register_buffer("there", torch.tensor([1.0, 0.0]))
        self.along = -1 if isinstance(like, nn.Linear) else 1

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = self.scores(x).movedim(self.along, -1)
        return (scores + self.there.log()).softmax(-1).movedim(-1, self.along).split(1, self.along)


class Gated:
    """What peft computes in the place of a layer's first LoRA: W x + Σ g_i(x) s B_i A_i x, over
    the first and the rest."""

    def forward(
        self, module: Any, active_adapter: str, x: Tensor, result: Tensor, **_: object
    ) -> Tensor:
        seen = module.lora_dropout[FIRST](x)
        for which, share in zip((FIRST, REST), module.lora_gate(x), strict=True):
            term = module.lora_B[which](module.lora_A[which](seen)) * module.scaling[which]
            result = result + share * term
        return result


def add_gated(model: ClientModel, init: str) -> None:
    """Puts a frozen LoRA, REST, beside each first one, and the gate that weighs the two; until
    `open_gates` the first has all the weight."""
    add_second(model, init, REST)
    mix(model, {FIRST: 1.0})
    for layer in adapted_layers(model).values():
        for part in (layer.lora_A, layer.lora_B):
            part[REST].requires_grad_(False)
        layer.lora_gate = Gate(layer.lora_A[FIRST])
        layer.lora_variant[FIRST] = Gated()


def open_gates(model: nn.Module) -> None:
    """From now on REST is weighed, too."""
    for layer in adapted_layers(model).values():
        layer.lora_gate.there.fill_(1.0)


def mix(model: nn.Module, shares: Mapping[str, float]) -> None:
    """Lets the named LoRAs alone compute, each times its share; all are trained as before."""
    for layer in adapted_layers(model).values():
        layer.set_adapter(list(shares))
        for name, share in shares.items():
            layer.scaling[name] = share * layer.lora_alpha[name] / layer.r[name]
        for part in (layer.lora_A, layer.lora_B):
            part.requires_grad_(True)


@contextmanager
def cut_off(model: nn.Module, which: str) -> Iterator[None]:
    """Within it no gradient passes through that LoRA, whose weights are held: it computes, and is a
    constant."""

    def detached(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        return inputs[0].detach()

    handles = [
        layer.lora_A[which].register_forward_pre_hook(detached)
        for layer in adapted_layers(model).values()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gated(module: nn.Module) -> bool:
    """Whether gates weigh LoRA by each input."""
    return any(layer.lora_variant.get(FIRST) for layer in adapted_layers(module).values())


def altered(module: nn.Module) -> str:
    """Why LoRA alone does not describe the model beside its public base; empty where it does."""
    for layer in adapted_layers(module).values():
        if hasattr(layer.get_base_layer(), _GIVEN):
            return "the method moved weights of the base"
        if len(layer.lora_A) > 1:
            return "there are two LoRAs in it"
    return ""


def _adapted(model: nn.Module) -> list[Any]:
    return [
        module
        for part in model.modules()
        if isinstance(part, ClientModel)
        for module in part.adapted
    ]
