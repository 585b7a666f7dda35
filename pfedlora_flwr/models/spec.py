"""A client model and its settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from pfedlora_flwr.experiment import Experiment

ANCHORS = "anchors:"
"""What a representation's name begins with that is mapped by anchors."""


@dataclass(frozen=True, repr=False)
class ModelSpec:
    """A client model's name and what the keys say of it. Prints as its name in full, with what is
    not usual: `timm:resnet18 (train=head, model-input=96)`.

    anchors_ridge: of the map, where the representation is by anchors. neck: the width behind one;
    None: as the method needs. model_input: the side to which images are resized; None: not at all.
    The rest is as the keys have it."""

    name: str
    train: str = "all"
    representation: str = "features"
    anchors_ridge: float = 0.3
    representation_norm: str = "none"
    neck: int | None = None
    model_input: int | None = None
    lora_rank: int = 8
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ()
    lora_dropout: float = 0.0
    lora_init: str = "peft"

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """The one that prints as this text."""
        bare, opened, rest = text.removesuffix(")").rpartition(" (")
        said = dict(word.partition("=")[::2] for word in rest.split(", ")) if opened else {}
        # a file's name may end so, too
        if not (said and text.endswith(")") and said.keys() <= _SETTINGS.keys()):
            return cls(text)
        return cls(bare, **{_SETTINGS[k]: _READ.get(k, str)(value) for k, value in said.items()})

    @property
    def anchors(self) -> str | None:
        """The file of anchors by which its features are mapped."""
        found = self.representation.removeprefix(ANCHORS)
        return found if found != self.representation else None

    @property
    def alpha(self) -> float:
        """LoRA's α, of which auto is twice its rank."""
        return self.lora_alpha or 2.0 * self.lora_rank

    def __str__(self) -> str:
        said = []
        for key, attribute in _SETTINGS.items():
            if (value := getattr(self, attribute)) != getattr(ModelSpec, attribute):
                said.append(f"{key}={','.join(value) if isinstance(value, tuple) else value}")
        return f"{self.name} ({', '.join(said)})" if said else self.name

    def __repr__(self) -> str:
        return repr(str(self))


_SETTINGS = {
    f.name.replace("lora_", "lora.").replace("anchors_", "anchors.").replace("_", "-"): f.name
    for f in fields(ModelSpec)[1:]
}
_READ: dict[str, Callable[[str], Any]] = {
    "neck": int,
    "anchors.ridge": float,
    "model-input": int,
    "lora.rank": int,
    "lora.alpha": float,
    "lora.targets": lambda text: tuple(text.split(",")),
    "lora.dropout": float,
}


def specs_of(e: Experiment, family: str = "cnn") -> tuple[ModelSpec, ...]:
    """The client models in turn; those of `auto` are the paper's for the setting, of the family
    that fits the inputs."""
    names = e.models or [f"{family}{i + 1}" for i in range(5 if e.setting != "homogeneous" else 1)]
    ranks = e.lora.rank if "lora" in e.train else [8]
    found = []
    for k in range(math.lcm(len(names), len(e.train), len(ranks))):
        spec = ModelSpec(
            names[k % len(names)],
            e.train[k % len(e.train)],
            e.representation,
            e.anchors_ridge,
            e.representation_norm,
            e.representation_width if e.neck == "always" else None,
            e.model_input,
        )
        if spec.train == "lora":
            spec = replace(
                spec,
                lora_rank=ranks[k % len(ranks)],
                lora_alpha=e.lora.alpha,
                lora_targets=tuple(e.lora.targets or ()),
                lora_dropout=e.lora.dropout,
                lora_init=e.lora.init,
            )
        found.append(spec)
    return tuple(found)
