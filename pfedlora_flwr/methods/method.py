"""The contract of a method: what a client keeps, trains and sends, how the server merges it, and which model predicts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError, kind
from pfedlora_flwr.experiment import Experiment, NoOptions
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.device import Module, channels_last
from pfedlora_flwr.training.loop import Samples, Visit

Tensors = dict[str, Tensor]
"""Named tensors, in order. Floating-point ones are parameters in the ledger; integers are metadata: bytes, not parameters."""


@dataclass(frozen=True)
class Upload:
    """What a client hands to the wire, and n_k, the number of its training samples."""

    tensors: Tensors
    samples: int


class Refused(ValueError):
    """An upload that the server does not admit; the text says why."""


class Method(ABC):
    """One file a method. It knows neither Flower, nor disk, nor processes. A method without state between rounds is pure:
    the server's state and the client's module are all that it may remember."""

    @dataclass(frozen=True)
    class Options(NoOptions):
        """The method's own configuration keys."""

    title: ClassVar[str] = ""
    """The method's name in tables and figures, as its paper writes it; the class's where it has none."""

    averages: ClassVar[bool] = False
    """Whether `aggregate` is the weighted mean of uploads that are laid out like the download."""

    needs_images: ClassVar[bool] = False
    """Whether inputs must be images, [B, channels, height, width]; other methods ask no more of them than their models do."""

    one_width: ClassVar[bool] = False
    """Whether all client models' representations must have one width: where theirs differ, necks bring them to `representation-width`."""

    returns_own: ClassVar[bool] = True
    """Whether what a client receives may hold something of its own uploads: if not, one that is alone receives nothing."""

    def __init__(self, experiment: Experiment, task: Task) -> None:
        self.experiment = experiment
        self.task = task
        self.classes = task.classes
        self.model_names = registry.names_of(experiment, task)
        self.options: Any = experiment.options

    @property
    def uses_rounds(self) -> bool:
        """Whether a run's course depends on T, the number of rounds: then a finished run cannot go on."""
        return False

    @classmethod  # noqa: B027 - a method without a rule of its own runs any
    def check_experiment(cls, experiment: Experiment) -> None:
        """Raises UserError for an Experiment that this method cannot run."""

    def state_init(self, seed: int) -> Tensors:
        """Server: what it keeps between rounds, made from `seed`."""
        return {}

    def private_init(self, client: int, seed: int) -> nn.Module:
        """Client: its own modules, which never leave it, made from `seed`. A bare client model unless a method needs more."""
        with seeded(seed):
            return self.client_model(client)

    def initial_model(self, client: int) -> nn.Module:
        """Client: its modules before its first visit, by `initial-models` drawn for it alone or for its architecture."""
        names, e = self.model_names, self.experiment
        first = names.index(self.model_of(client)) if e.initial_models == "architecture" else client
        return self.private_init(client, derive(e.seed, "model", first))

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """Server: what this client receives. The state itself unless a method says otherwise."""
        return state

    @abstractmethod
    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        """Client: train `model` (in place) on `data` with what was received; what is sent up."""

    @abstractmethod
    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        """Server: the next state from the admitted uploads, by client in client order, and the last state. Pure."""

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        """Server: raises Refused unless names, dtypes and shapes are what this method sends: the download's, unless overridden."""
        check_layout(upload.tensors, self.download(state, client, 0))

    def largest_upload(self, state: Tensors) -> int:
        """Server: the payload bytes beyond which an upload is refused before it is decoded."""
        return sum(t.numel() * t.element_size() for t in self.download(state, 0, 0).values())

    def magnitude(self, upload: Upload) -> float:
        """Server: how large an upload is: the root mean square of its floating-point elements, 0 where it has none."""
        return root_mean_square(upload.tensors)

    def predict(self, model: Any, images: Tensor) -> Tensor:
        """Logits of the client's personalised model, [B, classes]."""
        return self.predictor(model)(images)

    def predictor(self, model: Any) -> ClientModel:
        """The personalised model inside what a client keeps."""
        return model

    def other_predictors(
        self, model: Any, received: Tensors
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """Client: further predictors, by name, whose test accuracy is taken at the visit beside the personalised model's."""
        return {}

    def shared_part(self, received: Tensors, uploaded: Tensors | None = None) -> Tensors:
        """Whoever reads a visit's messages: the shared part as the client received it or, where its upload is given, as it left it.

        No federation asks for it: an audit of what uploads reveal does.
        """
        return received if uploaded is None else uploaded

    def shared_predictor(
        self, shared: Tensors, own: ClientModel | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """Whoever has `shared_part`: logits by it alone or, where `own` is given, behind that model's encoder; None where it makes none.

        No federation asks for it: an audit of what uploads reveal does.
        """
        return None

    def client_model(self, client: int) -> ClientModel:
        """A fresh model of client's own architecture, initialised from torch's global generator."""
        return registry.build(self.model_of(client), self.task, self.built_width)

    def model_of(self, client: int) -> str:
        """The name of a client's model."""
        return self.model_names[client % len(self.model_names)]

    def shared_last_layer(self, seed: int) -> Tensors:
        """A fresh last layer that all clients can share. Raises UserError where some of theirs have a bias and some have none."""
        with_bias = {
            name: registry.facts(name, self.task, self.built_width).bias
            for name in self.model_names
        }
        if len(set(with_bias.values())) > 1:
            told = ", ".join(
                f"{name} {'with' if bias else 'without'}" for name, bias in with_bias.items()
            )
            raise UserError(
                f"one last layer cannot fit some with a bias and some without ({told}); give all of them one, or none"
            )
        with seeded(seed):
            return tensors_of(self.client_model(0).last_layer())

    @property
    def has_batch_norm(self) -> bool:
        """Whether a client's model, and so perhaps a shared one, has batch normalisation: it cannot train on a batch of one sample."""
        return any(registry.facts(name, self.task).batch_norm for name in self.model_names)

    @property
    def layers(self) -> int:
        """How many of a model's last layers what is shared stands beside, or takes the place of."""
        return 1

    @cached_property
    def built_width(self) -> int | None:
        """The width that client models are built at; None: each at its own, where one is not needed, or all have the same."""
        own = {registry.facts(name, self.task).widths[self.layers - 1] for name in self.model_names}
        return self.experiment.representation_width if self.one_width and len(own) > 1 else None

    @property
    def widths(self) -> dict[str, int]:
        """By model the width of its representation before the last `layers` layers, as it is built."""
        names = dict.fromkeys(self.model_names)
        return {
            name: registry.facts(name, self.task, self.built_width).widths[self.layers - 1]
            for name in names
        }

    @property
    def shared_width(self) -> int:
        """The width of all client models' representations, of a method that needs one."""
        return self.widths[self.model_names[0]]


def check_state(what: str, state: object, like: Tensors | None = None) -> None:
    """Raises UserError unless the server's state is named tensors with finite values and, where `like` is given, laid out like it.

    what: whose it is, in words.
    """
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        found = "a dict with other values" if isinstance(state, dict) else kind(state)
        raise UserError(f"{what} returned {found}, expected a dict of tensors")
    if like is not None:
        try:
            check_layout(state, like)
        except Refused as reason:
            raise UserError(f"{what} returned a state of another layout: {reason}") from None
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{what} returned {name} with values that are not finite")


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Within it no parameter of the module takes a gradient; afterwards those do that did, and no others."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def tensors_of(module: nn.Module) -> Tensors:
    """A module's parameters and buffers, detached, by name."""
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def rebuilt(build: Callable[[], Module], tensors: Tensors) -> Module:
    """The model that `build` makes, with these tensors: what it begins with is not looked up."""
    with random_weights():
        model = build()
    model.load_state_dict(tensors)
    return model


def filled(build: Callable[[], ClientModel], tensors: Tensors) -> ClientModel:
    """The model that `build` makes, with these tensors, to predict on the CPU."""
    return channels_last(rebuilt(build, tensors).eval())


def weighted_mean(uploads: Mapping[int, Upload]) -> Tensors:
    """Σ n_k θ_k / Σ n_k over the uploads (FedAvg), in float64, in the mapping's order; each tensor in its own dtype."""
    total = sum(upload.samples for upload in uploads.values())
    first = next(iter(uploads.values())).tensors
    mean = {}
    for name, like in first.items():
        summed = torch.zeros(like.shape, dtype=torch.float64)
        for upload in uploads.values():
            summed += upload.tensors[name].double() * upload.samples
        mean[name] = (summed / total).to(like.dtype)
    return mean


def root_mean_square(tensors: Tensors) -> float:
    """Of all floating-point elements, in float64; 0 where there are none."""
    floats = [t for t in tensors.values() if t.is_floating_point()]
    count = sum(t.numel() for t in floats)
    return (
        math.sqrt(sum(float(t.double().square().sum()) for t in floats) / count) if count else 0.0
    )


def check_layout(tensors: Tensors, like: Tensors) -> None:
    """Raises Refused unless the names, their order, the dtypes and the shapes are those of `like`."""
    if list(tensors) != list(like):
        raise Refused(f"its tensors are {list(tensors)}, expected {list(like)}")
    for name, tensor in tensors.items():
        if tensor.dtype != like[name].dtype or tensor.shape != like[name].shape:
            got, want = (
                f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
                for t in (tensor, like[name])
            )
            raise Refused(f"{name} is {got}, expected {want}")
