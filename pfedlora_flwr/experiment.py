"""The Experiment: what is trained, on what, how and where to. The frozen record, and every key that does not belong to a method.

What the names of datasets and partitions may be, the data room knows: `config` checks them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pfedlora_flwr.keys import Key, Scalar, key, keys_of


@dataclass(frozen=True)
class NoOptions:
    """The options of a method that has none, and the base of every method's own: fields declared by `key`.

    prefix: of the keys in the configuration, so `alpha` of FML is `fml.alpha`; None: the method's name and a dot.
    """

    prefix: ClassVar[str | None] = None


@dataclass(frozen=True)
class Experiment:
    """What is trained, on what, how and where to. The defaults are the paper's where it gives them (Section 5.1)."""

    method: str = key("pfedlora", "the method: a name of ours, or `package.module:Class`")
    method_options: str = key(
        "", "options of a `package.module:Class` method: `key=value key=value`"
    )
    sharing: str = key(
        "mean",
        "mean: the method as it is; controls: none, every client alone with the server, or start, the server's first state for ever",
        choices=("mean", "none", "start"),
    )
    dataset: str = key("digits", "the inputs and their labels")
    data_path: str = key(
        "",
        "the folder that holds the dataset's files; empty: downloaded to the cache",
        result=False,
    )
    classes: int | None = key(
        None,
        "number of classes; auto: the dataset's (give it where only the nodes have the data)",
        low=2,
    )
    image_size: int | None = key(
        None,
        "height and width to which images are resized; auto: 32 of digits, CIFAR and synthetic ones, else what all images have",
        low=8,
        high=4096,
    )
    input_shape: str | None = key(
        None,
        "what a model takes: 3x64x48 (channels, height, width, to which images are resized), 6x128 (channels, time), 13 (features); "
        "auto: the dataset's "
        "(give it where only the nodes have the data)",
    )
    data_label_column: str | None = key(
        None,
        "the labels' column; auto: label, or of `hf:` the one of class labels",
        name="data.label-column",
    )
    data_input_column: str | None = key(
        None,
        "the inputs' column, of `hf:` alone; auto: its only one of images or arrays, else all numbers",
        name="data.input-column",
    )
    data_client_column: str | None = key(
        None,
        "the column that says who owns a sample (partition.kind=natural); auto: none",
        name="data.client-column",
    )
    data_class_names: str | None = key(
        None,
        "a table's classes in order, separated by commas; auto: its labels, sorted",
        name="data.class-names",
    )
    clients: int = key(10, "N, the number of clients", low=1, high=1_000_000)
    participation: float = key(1.0, "C, the share of clients sampled each round", above=0, high=1)
    rounds: int = key(20, "T, the number of communication rounds", low=1)
    seed: int = key(0, "every random draw is derived from it", low=0)
    partition_kind: str = key("pathological", "who owns which samples", name="partition.kind")
    partition_classes_per_client: int = key(
        2,
        "classes each client holds (pathological); clients times this is a multiple of all classes",
        name="partition.classes-per-client",
        low=1,
    )
    partition_alpha: float = key(
        0.3, "concentration of the Dirichlet distribution", name="partition.alpha", above=0
    )
    partition_min_samples: int = key(
        10,
        "an owner with fewer samples is no client (natural)",
        name="partition.min-samples",
        low=10,
    )
    models: str = key(
        "auto",
        "client models, separated by commas, of cnn1 … cnn5, conv1d1 …, mlp1 …, timm:NAME, torchvision:NAME, package.module:Class; "
        "client k has number k mod their count; auto: by the setting",
    )
    setting: str = key(
        "heterogeneous",
        "five models in turn (CNN-1 to CNN-5; Conv1d for series, MLP for vectors), or the first for everyone",
        choices=("heterogeneous", "homogeneous"),
    )
    representation_width: int = key(
        500,
        "width that necks bring the models to where a method needs one width and theirs differ",
        low=1,
        high=100_000,
    )
    initial_models: str = key(
        "each",
        "how client models begin: each drawn for its client, or all of one architecture as one model, drawn for its first client",
        choices=("each", "architecture"),
    )
    evaluate_initial: bool = key(
        True,
        "evaluate every client's initial model as round 0; if not, rounds count once all were visited",
    )
    evaluate_every: int = key(1, "evaluate in every n-th round and in the last", low=1)
    local_epochs: int = key(1, "E, epochs of local training a round", low=1)
    batch_size: int = key(64, "B, samples a step", low=1)
    optimizer: str = key(
        "sgd",
        "what takes the steps, new in each visit; adamw: β = (0.9, 0.999), no momentum",
        choices=("sgd", "adamw"),
    )
    lr: float = key(0.01, "η_ω, the learning rate", above=0)
    lr_schedule: str = key(
        "constant",
        "the course of all clients' learning rates; cosine: from lr to almost 0 over all rounds",
        choices=("constant", "cosine"),
    )
    momentum: float = key(0.9, "momentum of SGD", low=0, below=1)
    weight_decay: float = key(0.0, "weight decay (of adamw decoupled)", low=0)
    clip_norm: float = key(0.0, "gradients are clipped to this norm; 0: never", low=0)
    augment: bool = key(
        False,
        "random flip and crop of training images, padded by an eighth of their size (4 of 32)",
    )
    secagg_enabled: bool = key(
        False,
        "secure aggregation: the server learns sums of updates, not one client's",
        name="secagg.enabled",
    )
    secagg_clip: float = key(
        1.0,
        "secagg: the most that an element may change in a visit, else the client refuses; a power of two",
        name="secagg.clip",
        above=0,
    )
    secagg_max_samples: int = key(
        10_000,
        "secagg: the most training samples (n_k) of a client, else it refuses",
        name="secagg.max-samples",
        low=1,
        high=1_000_000,
    )
    secagg_threshold: float = key(
        0.67,
        "secagg: the share of the key shares that unmasks",
        name="secagg.threshold",
        above=2 / 3,
        below=1,
        result=False,
    )
    secagg_shares: int | None = key(
        None,
        "secagg: shares of each key, odd; auto: all up to 20 sampled clients, else 21",
        name="secagg.shares",
        low=5,
        result=False,
    )
    target_accuracy: float | None = key(
        None, "`to_target` totals count up to it; auto: the dataset's", above=0, high=1
    )
    device: str = key(
        "auto",
        "where clients train; auto: cuda where there is one",
        choices=("auto", "cpu", "cuda"),
    )
    precision: str = key(
        "fp32", "of products and activations; on a GPU fp32 uses TF32", choices=("fp32", "bf16")
    )
    actors: int | None = key(
        None,
        "clients trained at once; auto: one a core, or one a GPU",
        low=1,
        high=4096,
        result=False,
    )
    ray: str = key(
        "",
        "the Ray cluster, HOST:PORT, on which `run` and `compare` train, from one of its nodes; empty: $RAY_ADDRESS, or this machine",
        result=False,
    )
    output: str = key(
        "", "the run's directory; empty: runs/NAME, or ~/.pfedlora/runs by `flwr run`", result=False
    )
    resume: bool = key(False, "continue the run in `output`", result=False)
    extend: bool = key(
        False,
        "with resume: go on to more rounds than the run had (`--resume -o rounds=N` sets it)",
        result=False,
    )
    overwrite: bool = key(False, "replace the run in `output`", result=False)
    tensorboard: bool = key(
        False, "write event files for TensorBoard to `events` in the output", result=False
    )
    audit_uploads: bool = key(
        False,
        "keep every admitted upload, for `pfedlora audit`",
        name="audit.uploads",
        result=False,
    )
    min_clients: int | None = key(
        None, "nodes to wait for before round 1; auto: all", low=1, result=False
    )
    min_success: float = key(
        1.0,
        "share of the sampled clients that must succeed for a round to count",
        above=0,
        high=1,
        result=False,
    )
    clip_norm_factor: float = key(
        100.0,
        "an update this many times as large as the round's median one is refused; 0: none is",
        low=0,
        result=False,
    )
    max_samples: int = key(
        1_000_000, "training samples (n_k) beyond which an update is refused", low=1, result=False
    )
    max_failed_rounds: int = key(
        1, "rounds in a row below min-success after which the run stops", low=1, result=False
    )
    round_timeout: float = key(
        3600.0,
        "seconds a round may take before missing clients count as failed; secagg: training has 55 % of it",
        above=0,
        result=False,
    )
    max_hours: float = key(
        0.0,
        "stop, resumable, after the round in which so many hours are over; 0: never",
        low=0,
        result=False,
    )
    node_timeout: float = key(300.0, "seconds to wait for nodes to connect", above=0, result=False)
    options: Any = field(default_factory=NoOptions)
    """The method's own options: an instance of its `Options`."""

    def keys(self) -> dict[str, tuple[Key, Any]]:
        """Every key of this Experiment, its method's own included, with its value."""
        own = option_keys(self.method, type(self.options))
        found = {name: (k, getattr(self, k.attribute)) for name, k in KEYS.items()}
        return found | {name: (k, getattr(self.options, k.attribute)) for name, k in own.items()}

    def flat(self) -> dict[str, Scalar]:
        """Every key as a run-config scalar; `config.from_flat` gives the same object back."""
        return {name: k.text(value) for name, (k, value) in self.keys().items()}

    def changed(self) -> dict[str, Scalar]:
        """The keys that can change a result and are not at their defaults."""
        return {
            name: k.text(value)
            for name, (k, value) in self.keys().items()
            if k.result and value != k.default
        }

    def fingerprint(self) -> str:
        """SHA-256 of `changed`: equal fingerprints mean equal runs, as long as no client fails in them.

        A key at its default is left out, so a new key changes no fingerprint.
        """
        return hashlib.sha256(json.dumps(self.changed(), sort_keys=True).encode()).hexdigest()

    def replace(self, **changes: Any) -> Experiment:
        """A copy with attributes changed; it is not checked again."""
        return dataclasses.replace(self, **changes)

    def evaluates(self, round: int) -> bool:
        """Whether clients evaluate in this round: every `evaluate-every`-th one, and the last."""
        return round % self.evaluate_every == 0 or round == self.rounds

    @property
    def sampled(self) -> int:
        """K = ⌊C·N⌋, at least 1; the tolerance makes 0.29·100 the 29 it is."""
        return max(1, int(self.participation * self.clients + 1e-9))

    def enough_of(self, asked: int) -> int:
        """How many of so many clients have to succeed, by `min-success`."""
        return at_least(self.min_success, asked)

    def model_names(self, family: str = "cnn") -> tuple[str, ...]:
        """The client models in turn; `auto` is the paper's choice for the setting, of the family that fits the inputs."""
        if self.models != "auto":
            return tuple(name.strip() for name in self.models.split(","))
        count = 5 if self.setting == "heterogeneous" else 1
        return tuple(f"{family}{i + 1}" for i in range(count))

    @property
    def default_name(self) -> str:
        """A name for the run's directory where the user gives none."""
        return f"{self.method}-{self.dataset}".replace(":", "-").replace("/", "-")


KEYS = keys_of(Experiment)


def at_least(share: float, of: int) -> int:
    """The smallest number that is this share; the tolerance makes 0.07·100 the 7 it is."""
    return math.ceil(share * of - 1e-9)


def option_keys(method: str, options: type) -> dict[str, Key]:
    """The keys of a method's own options by full name; none for a `package.module:Class`, whose options are in `method-options`."""
    if ":" in method:
        return {}
    prefix: str | None = options.prefix  # type: ignore[attr-defined]
    return keys_of(options, f"{method}." if prefix is None else prefix)
