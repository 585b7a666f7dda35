"""What a client of a method of sums keeps: a model with a frozen encoder, whose head is solved and
not trained, and what the client has contributed to the federation's sums."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.models.linear import layer_of
from pfedlora_flwr.models.model import ClientModel

_BELOW = 50.0
"""By how much the score of a class that is not asked lies below all others: e⁻⁵⁰ of a softmax."""


class Summary(nn.Module):
    """The model, whose last layer has the scores of all classes, and what its client adds to them.

    shift: added to these scores, [C]. asked: the classes among which the client answers, bool [C].
    private, scale: of a correction (`Corrected`), [C, width] and a number; none: [0, width].
    visit: the round in which the client last sent; 0: in none. counts, sums, gram: of its samples
    then (`methods/sums.py`); right: of its validation samples, by candidate."""

    shift: Tensor
    asked: Tensor
    private: Tensor
    scale: Tensor
    visit: Tensor
    counts: Tensor
    sums: Tensor
    gram: Tensor
    right: Tensor

    def __init__(self, model: ClientModel, sent: dict[str, Tensor], *, corrected: bool) -> None:
        """sent: zeros for counts, sums, gram and right."""
        super().__init__()
        classes = len(sent["counts"])
        self.model = model.with_last(
            layer_of(torch.zeros(classes, model.width), torch.zeros(classes))
        )
        self.register_buffer("shift", torch.zeros(classes))
        self.register_buffer("asked", torch.ones(classes, dtype=torch.bool))
        self.register_buffer("private", torch.zeros(classes if corrected else 0, model.width))
        self.register_buffer("scale", torch.zeros(()))
        self.register_buffer("visit", torch.zeros((), dtype=torch.int64))
        for name, zero in sent.items():
            self.register_buffer(name, zero.clone())

    def set_scores(self, weight: Tensor, bias: Tensor) -> None:
        """Sets the scores of all classes, as functions of R."""
        last = self.model.last_layer()
        with torch.no_grad():
            last.weight.copy_(weight)
            last.bias.copy_(bias)

    def remember(self, visit: int, sent: dict[str, Tensor]) -> None:
        """Sets what the client has sent in this round's visit and before."""
        self.visit.fill_(visit)
        for name, tensor in sent.items():
            getattr(self, name).copy_(tensor)

    def predictor(self) -> ClientModel:
        """The personalised model."""
        last = self.model.last_layer()
        weight, bias = among(last.weight, last.bias + self.shift, self.asked)
        personal = self.model.with_last(layer_of(weight, bias)).train(self.training)
        if not len(self.private):
            return personal
        return Corrected(personal, self.asked, self.scale, self.private).train(self.training)


class Corrected(ClientModel):
    """The probabilities that a model gives to the classes asked, and a linear correction of them:
    softmax(τ·scores) + W R, the highest of which is the answer."""

    asked: Tensor
    scale: Tensor
    private: Tensor

    def __init__(self, model: ClientModel, asked: Tensor, scale: Tensor, private: Tensor) -> None:
        """scale: τ. private: W, [C, width]."""
        super().__init__()
        self.model = model
        self.width = model.width
        self.description = f"{model.description}, with a private correction"
        for name, tensor in {"asked": asked, "scale": scale, "private": private}.items():
            self.register_buffer(name, tensor)

    def encode(self, inputs: Tensor) -> Tensor:
        return self.model.encode(inputs)

    def head(self, representation: Tensor) -> Tensor:
        scores = self.scale * self.model.head(representation)
        shares = torch.softmax(torch.where(self.asked, scores, -torch.inf), 1)
        lowest = -1 - reach(self.private, torch.zeros_like(self.private[:, 0]))
        return torch.where(self.asked, shares + representation @ self.private.T, lowest)

    def last_layer(self) -> nn.Linear:
        return self.model.last_layer()


def reach(weight: Tensor, bias: Tensor) -> Tensor:
    """The largest score, of either sign, that a layer can give to an R of unit variance."""
    return (weight.norm(dim=1) * weight.shape[1] ** 0.5 + bias.abs()).max()


def among(weight: Tensor, bias: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """The layer whose scores of the classes that are not asked lie below all others, by a number
    that programs can hold, as −∞ is not."""
    weight, bias = weight * asked[:, None], bias * asked
    return weight, torch.where(asked, bias, -reach(weight, bias) - _BELOW)
