"""The contract of a method: what a client keeps, trains and sends, how the server merges it, and
which model predicts."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from pfedlora_flwr.errors import differing
from pfedlora_flwr.experiment import Experiment, NoOptions
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit

Tensors = dict[str, Tensor]
"""Named tensors, in order. Floating-point ones are parameters in the ledger; integers are metadata:
bytes, not parameters."""


@dataclass(frozen=True)
class Upload:
    """A client's upload, and n_k, the number of its training samples."""

    tensors: Tensors
    samples: int


Predictors = dict[str, Callable[[Tensor], Tensor]]
"""Further predictors, by name: inputs → logits, [B, classes]."""


ByClient = Mapping[int, Upload]
"""Uploads, by client in client order."""


class Refused(ValueError):
    """An upload that the server does not admit; the text says why."""


class Diverged(Refused):
    """The upload of a client whose training diverged: its loss or its values are not finite, or too
    large to be summed."""


PREDICTORS = (
    "at most 40 of A-Z, a-z, 0-9, _, . and -, of which the first is a letter or a digit, but not"
    " test or validation"
)
"""The names that further predictors may have; `is_predictor` tells of one."""
_PREDICTOR = re.compile(r"(?!(?:test|validation)\Z)[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


ONE_WIDTH = "equal representation widths (necks provide them)"
HOLDS = "the server may know which classes a client holds"
SMALL = "a small model of a known architecture: the federation's smallest"
"""What several methods assume."""


class Method(ABC):
    """One file per method. A method knows neither Flower nor disk nor processes. It is pure: its
    only state is the server's state and the client's module."""

    @dataclass(frozen=True)
    class Options(NoOptions):
        """The method's own configuration keys."""

    title: ClassVar[str] = ""
    """The method's name in tables and figures, as in its paper; default: the class's name."""

    class_rows: ClassVar[tuple[str, ...]] = ()
    """The parts of an upload that are about each class the client holds. Those beside a part
    `classes` have a row for each; without it none can be left out."""

    paper: ClassVar[str] = ""
    """The source: authors, venue or year, arXiv number. The documents use this and the next four
    texts."""

    idea: ClassVar[str] = ""
    """The idea in one sentence."""

    shares: ClassVar[str] = ""
    """What clients and server exchange."""

    merges: ClassVar[str] = ""
    """How the server merges the uploads, and whether the predictor is a composite."""

    assumes: ClassVar[str] = ""
    """Requirements beyond labelled data at each client."""

    averages: ClassVar[bool] = False
    """True if `aggregate` is the weighted mean of uploads with the layout of the download, or of
    the part of it that `renewed` gives."""

    adds: ClassVar[bool] = False
    """True if the state is a sum of what clients send, who then send differences to what they
    keep. Where no client's own are to be read, uploads have the layout of the download, weigh
    1, and `aggregate` adds up `samples` times what each has moved."""

    averages_rows: ClassVar[bool] = False
    """True if what clients receive of the uploads is the mean of class rows, by
    `class_means.merged_rows`, whatever else is averaged."""

    needs_images: ClassVar[bool] = False
    """True if inputs must be images, [B, channels, height, width]. Otherwise only the models
    restrict the inputs."""

    one_width: ClassVar[bool] = False
    """True if all client models' representations must have one width. If they differ, necks bring
    them to `representation-width`."""

    one_model: ClassVar[bool] = False
    """True if all clients need the same model. If they differ, the run is refused."""

    needs_downloads: ClassVar[str] = ""
    """Why clients cannot train from the initial state in every round; empty: they can."""

    shares_lora: ClassVar[bool] = False
    """Whether clients exchange LoRA's factors: all of them must train LoRA."""

    shares_small: ClassVar[bool] = False
    """Whether clients share the federation's smallest model, which is trained as a whole, whatever
    clients train of their own."""

    returns_own: ClassVar[bool] = True
    """True if a download can contain the receiver's own earlier upload. If False, `sharing=none`
    equals Standalone."""

    def __init__(self, experiment: Experiment, task: Task) -> None:
        self.experiment = experiment
        self.task = task
        self.classes = task.classes
        self.model_names = registry.models_of(experiment, task)
        self.options: Any = experiment.options

    @property
    def uses_rounds(self) -> bool:
        """True if a run's course depends on T, the number of rounds. Then a finished run cannot be
        extended."""
        return False

    @classmethod
    def default_keys(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The keys of a run whose defaults this method changes, with its own. given: the values of
        those that a user has set."""
        return {}

    @classmethod  # noqa: B027 - a method without a rule of its own runs any
    def check_experiment(cls, experiment: Experiment) -> None:
        """Raises UserError for an Experiment that this method cannot run."""

    @classmethod
    def rows_sent(cls, experiment: Experiment) -> tuple[str, ...]:
        """Those `class_rows` that uploads of this Experiment have."""
        return cls.class_rows

    @classmethod
    def record_epochs(cls, experiment: Experiment) -> int:
        """Epochs of DP-SGD in a visit with `dp.level=record`, of which all that is sent is made; 0
        if the method has none."""
        return 0

    def remarks(self) -> list[str]:
        """What a user should know before a run with these models, a line each."""
        return []

    def state_init(self, seed: int) -> Tensors:
        """Server: its initial state, derived from `seed`."""
        return {}

    def private_init(self, client: int, seed: int) -> nn.Module:
        """Client: its own modules, which never leave it, initialised from `seed`. By default only
        a client model."""
        with seeded(seed):
            return self.client_model(client)

    def initial_model(self, client: int) -> nn.Module:
        """Client: its modules before its first visit. `initial-models` decides whether they are
        drawn for the client or for its architecture."""
        names, e = self.model_names, self.experiment
        first = names.index(self.model_of(client)) if e.initial_models == "architecture" else client
        return self.private_init(client, derive(e.seed, "model", first))

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """Server: what this client receives. By default the state itself."""
        return state

    @abstractmethod
    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        """Client: trains `model` (in place) on `data`, using the download; returns the upload."""

    @abstractmethod
    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """Server: the next state, from the admitted uploads (by client, in client order) and the
        last state. It is pure."""

    def renewed(self, state: Tensors, round: int) -> Tensors:
        """Server: the part of the state that a round's uploads renew, in whose layout they are;
        by default all of it."""
        return state

    def aggregation_error(self, uploads: ByClient, before: Tensors, after: Tensors) -> float | None:
        """Server: what `aggregate` missed of the uploads' mean product, relative to what they
        changed: ‖ΔW* − ΔW after‖ / ‖ΔW* − ΔW before‖. None for a method that has no such mean."""
        return None

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        """Server: raises Refused unless names, dtypes and shapes are those of this method's
        uploads; by default the download's."""
        check_layout(upload.tensors, self.download(state, client, 0))

    def largest_upload(self, state: Tensors) -> int:
        """Server: the payload bytes beyond which an upload is refused before it is decoded."""
        return sum(t.nbytes for t in self.download(state, 0, 0).values())

    def download_growth(self, state: Tensors) -> int:
        """Server: the most bytes that a download ever has above the first one, or above an upload
        where that is larger, if the state grows from round to round."""
        return 0

    def magnitude(self, upload: Upload) -> float:
        """Server: the size of an upload: the root mean square of its floating-point elements, 0 if
        it has none."""
        return root_mean_square(upload.tensors)

    def predictor(self, model: Any) -> ClientModel:
        """The personalised model within a client's modules: inputs → logits, [B, classes]."""
        return model

    def other_predictors(self, model: Any, received: Tensors) -> Predictors:
        """Client: further predictors, by name. Their test accuracy is measured at the visit, beside
        the personalised model's.

        A name has at most 40 of A-Z, a-z, 0-9, `_`, `.` and `-`, and begins with a letter or a
        digit. `test` and `validation` are taken by the personalised model."""
        return {}

    def client_model(self, client: int) -> ClientModel:
        """A fresh model of client's own architecture, initialised from torch's global generator."""
        return registry.build(self.model_of(client), self.task, self.built_width)

    def model_of(self, client: int) -> ModelSpec:
        """A client's model."""
        return registry.of_client(client, self.model_names)

    @cached_property
    def built_width(self) -> int | None:
        """The width at which client models are built. None: each at its own width, because one
        width is not needed or all have the same."""
        own = {self.width_of(registry.facts(name, self.task)) for name in self.model_names}
        return self.experiment.representation_width if self.one_width and len(own) > 1 else None

    @property
    def shared_width(self) -> int:
        """The width of all client models' representations, for methods that need one width."""
        return self.width_of(registry.facts(self.model_names[0], self.task, self.built_width))

    def width_of(self, facts: registry.Facts) -> int:
        """The width of a model's representation, at the place where this method reads it."""
        return facts.width


def root_mean_square(tensors: Tensors) -> float:
    """The root mean square of all floating-point elements, in float64; 0 if there are none."""
    floats = [t for t in tensors.values() if t.is_floating_point()]
    count = sum(t.numel() for t in floats)
    return (
        math.sqrt(sum(float(t.double().square().sum()) for t in floats) / count) if count else 0.0
    )


def is_predictor(name: object) -> bool:
    """Whether a further predictor may have this name (`PREDICTORS`): it goes into tables, and it is
    a tracker's tag beside `test` and `validation`."""
    return isinstance(name, str) and _PREDICTOR.fullmatch(name) is not None


def check_layout(tensors: Tensors, like: Tensors) -> None:
    """Raises Refused unless the names, their order, the dtypes and the shapes are those of
    `like`."""
    if list(tensors) != list(like):
        if tensors.keys() == like.keys():
            first = next((a, b) for a, b in zip(tensors, like, strict=True) if a != b)
            raise Refused("its tensors are in another order: {}, expected {}".format(*first))
        raise Refused(differing("tensors", list(tensors), "expected", list(like)))
    for name, tensor in tensors.items():
        if tensor.dtype != like[name].dtype or tensor.shape != like[name].shape:
            got, want = (
                f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
                for t in (tensor, like[name])
            )
            raise Refused(f"{name} is {got}, expected {want}")
