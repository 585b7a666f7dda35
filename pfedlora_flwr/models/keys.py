"""The keys of what is trained in models, and by which loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfedlora_flwr.errors import wrong
from pfedlora_flwr.keys import Form, Listed, Section, integer, key, nonempty


def _weight(word: str) -> float:
    if not 0 < (found := float(word)) < math.inf:
        raise ValueError(word)
    return found


@dataclass(frozen=True)
class LossKeys(Section):
    """By which loss methods train on labels."""

    weights: str = key(
        "none",
        "balanced: each class of a client's training samples has the same weight in its loss",
        choices=("none", "balanced"),
    )
    class_weights: Listed[float] | None = key(
        None,
        "the weight of each class in the loss, in the order of the classes; auto: by loss.weights",
        form=Form("numbers > 0", _weight),
    )
    function: str = key(
        "",
        "a loss of your own, `package.module:function`, of logits [B, C] and labels [B], in the"
        " place of the mean cross entropy; empty: that",
    )

    def check(self) -> None:
        for other in ("function", "class_weights"):
            if getattr(self, other) and self.weights != "none":
                of = f"none, with loss.{other.replace('_', '-')}, which has its own"
                raise wrong("loss.weights", self.weights, of)
        if self.function and self.class_weights:
            raise wrong("loss.class-weights", self.class_weights, "auto, with loss.function")


@dataclass(frozen=True)
class LoraKeys(Section):
    """LoRA inside a frozen encoder."""

    rank: Listed[int] = key(
        "8", "LoRA: rank r; several values are assigned in turn", form=Form("integers ≥ 1", integer)
    )
    alpha: float | None = key(
        None,
        "LoRA: the product is scaled by alpha / r; auto: 2·r, the same scale for any rank",
        above=0,
    )
    targets: Listed[str] | None = key(
        None,
        "LoRA: suffixes of layer names, or all-linear; auto: qkv of a ViT,"
        " query,value of a BERT, conv_pw,conv_pwl of an EfficientNet, the last stage's 3×3"
        " convolutions of a ResNet",
        form=Form("all-linear, or suffixes of layer names", nonempty),
    )
    dropout: float = key(0.0, "LoRA: dropout of its input in training", low=0, below=1)
    init: str = key(
        "peft",
        "LoRA: initialisation of A (B starts at 0): peft (Kaiming), orthogonal rows, or"
        " folder:PATH, A and B saved by peft",
        choices=("peft", "orthogonal", "folder:"),
    )
    head: str = key(
        "private",
        "the head under methods that exchange LoRA: private to each client, or shared, sent and"
        " averaged as LoRA is",
        choices=("private", "shared"),
    )

    def check(self) -> None:
        if " (" in self.init or ", " in self.init:
            raise wrong("lora.init", self.init, "a folder whose path has neither ' (' nor ', '")
