"""LoRA written out: the same model without peft, whose layers add s B (A x) by plain products, and
plain gradient descent on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, linear

from pfedlora_flwr.models import lora
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples

Term = tuple[Tensor, Tensor, float, bool]
"""Of one layer: A, B, the factor before B A x, and whether the term is a constant (sg)."""


@dataclass
class Written:
    """A model as it was when it was taken. `tensors` are all that a client keeps, by name; `terms`
    says, by adapted layer, what is added to W x; `moved` is ΔW, added to W."""

    model: ClientModel
    tensors: dict[str, Tensor]
    places: list[str]
    terms: dict[str, list[Term]] = field(default_factory=dict)
    moved: dict[str, Tensor] = field(default_factory=dict)
    gate: float = 0.0
    """s, where a softmax of the layer's own input weighs the first LoRA and the rest's."""

    @classmethod
    def of(cls, model: ClientModel) -> Written:
        tensors = {name: tensor.clone() for name, tensor in kept(model).items()}
        places = [name.split(".lora_A.")[0] for name in tensors if ".lora_A.default." in name]
        bare = lora.without(model, merge=False).eval()
        made = cls(bare, tensors, places)
        for place in places:
            bare.get_submodule(place).register_forward_hook(made._hook(place))
        return made

    def _hook(self, place: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def add(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            (x,) = inputs
            if place in self.moved:
                output = output + _product(layer, x, self.moved[place].reshape(layer.weight.shape))
            for a, b, factor, constant in self.terms.get(place, []):
                low = _product(layer, x, a)
                term = linear(low, b) if b.dim() == 2 else conv2d(low, b)
                output = output + factor * (term.detach() if constant else term)
            if self.gate:
                along = -1 if isinstance(layer, nn.Linear) else 1
                scores = _product(layer, x, self.tensors[f"{place}.lora_gate.scores.weight"])
                for i, which in enumerate(("default", "rest")):
                    low = _product(layer, x, self.factor(place, "A", which))
                    b = self.factor(place, "B", which)
                    term = linear(low, b) if b.dim() == 2 else conv2d(low, b)
                    share = scores.softmax(along).select(along, i).unsqueeze(along)
                    output = output + share * self.gate * term
            return output

        return add

    def factor(self, place: str, part: str, which: str = "default") -> Tensor:
        return self.tensors[f"{place}.lora_{part}.{which}.weight"]

    def set_terms(self, *said: tuple[str, float, bool]) -> None:
        """said: by LoRA its name, its factor, and whether it is a constant."""
        for place in self.places:
            self.terms[place] = [
                (self.factor(place, "A", w), self.factor(place, "B", w), factor, constant)
                for w, factor, constant in said
            ]

    def set_gate(self, scale: float) -> None:
        self.gate = scale
        for place in self.places:
            self.tensors[f"{place}.lora_gate.there"] = torch.ones(2)

    def descend(self, marks: tuple[str, ...], data: Samples, steps: int, lr: float) -> None:
        """Steps of w ← w − η ∇F(w) on the head and on the factors with one of these marks."""
        head = self.model.last_names()
        names = [n for n in self.tensors if n in head or any(mark in n for mark in marks)]
        wanted = [self.tensors[n].requires_grad_(True) for n in names]
        for _ in range(steps):
            logits = self.logits(data.batch(slice(None)))
            gradients = torch.autograd.grad(cross_entropy(logits, data.labels), wanted)
            with torch.no_grad():
                for tensor, gradient in zip(wanted, gradients, strict=True):
                    tensor -= lr * gradient
        for tensor in wanted:
            tensor.requires_grad_(False)

    def logits(self, inputs: Tensor) -> Tensor:
        head = {name: self.tensors[name] for name in self.model.last_names()}
        return torch.func.functional_call(self.model, head, (inputs,))


def _product(layer: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    if isinstance(layer, nn.Conv2d):
        return conv2d(x, weight, stride=layer.stride, padding=layer.padding)
    return linear(x, weight)
