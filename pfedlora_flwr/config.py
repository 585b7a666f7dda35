"""The Experiment: every key, its type, range and meaning, in one place; from a YAML file and from Flower's run-config alike."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pfedlora_flwr.keys import Key, Scalar, UserError, key, keys_of
from pfedlora_flwr.methods import registry

T = TypeVar("T")


@dataclass(frozen=True)
class Experiment:
    """What is trained, on what, how and where to. The defaults are the paper's where it gives them (Section 5.1)."""

    method: str = key("pfedlora", "the method: a name of ours, or `package.module:Class`")
    method_options: str = key("", "options of a `package.module:Class` method: `key=value key=value`")
    dataset: str = key(
        "digits",
        "the images and labels",
        choices=("digits", "cifar10", "cifar100", "synthetic:", "folder:", "npz:"),
    )
    data_path: str = key("", "the folder that holds the dataset's files; empty: downloaded to the cache", result=False)
    classes: int | None = key(None, "number of classes; auto: the dataset's (give it where only the nodes have the data)", low=2)
    clients: int = key(10, "N, the number of clients", low=1, high=1_000_000)
    participation: float = key(1.0, "C, the share of clients sampled each round", above=0, high=1)
    rounds: int = key(20, "T, the number of communication rounds", low=1)
    seed: int = key(0, "every random draw is derived from it", low=0)
    partition_kind: str = key("pathological", "who owns which samples", name="partition.kind", choices=("pathological", "dirichlet", "iid"))
    partition_classes_per_client: int = key(2, "classes each client holds (pathological)", name="partition.classes-per-client", low=1)
    partition_alpha: float = key(0.3, "concentration of the Dirichlet distribution", name="partition.alpha", above=0)
    models: str = key("auto", "client models, separated by commas; client k has number k mod their count")
    setting: str = key("heterogeneous", "CNN-1 to CNN-5 in turn, or CNN-1 for everyone", choices=("heterogeneous", "homogeneous"))
    adapter_kind: str = key(
        "auto",
        "reduced (after FC1) or decomposed (after FC2); auto: by the setting",
        name="adapter.kind",
        choices=("auto", "reduced", "decomposed"),
    )
    adapter_hidden_dim: int = key(60, "h, the adapter's hidden width (its rank)", name="adapter.hidden-dim", low=1)
    adapter_init: str = key(
        "random",
        "PyTorch's default, or first Gaussian and second zero",
        name="adapter.init",
        choices=("random", "lora"),
    )
    mu: float = key(0.5, "μ, the weight of a client's own loss (Eq. 7; the paper uses 0.5 ≤ μ < 1)", low=0, high=1)
    evaluate_initial: bool = key(True, "evaluate every client's initial model as round 0; if not, rounds count once all were visited")
    evaluate_every: int = key(1, "evaluate in every n-th round and in the last", low=1)
    local_epochs: int = key(1, "E, epochs of local training a round", low=1)
    adapter_epochs: int | None = key(None, "epochs of adapter training a round; auto: local-epochs", low=1)
    batch_size: int = key(64, "B, samples a step", low=1)
    lr: float = key(0.01, "η_ω, the learning rate of SGD", above=0)
    adapter_lr: float | None = key(None, "η_θ, the adapter's learning rate; auto: lr", above=0)
    momentum: float = key(0.9, "momentum of SGD", low=0, below=1)
    weight_decay: float = key(0.0, "weight decay of SGD", low=0)
    clip_norm: float = key(0.0, "gradients are clipped to this norm; 0: never", low=0)
    augment: bool = key(False, "random flip and crop (32, padding 4) of training images")
    target_accuracy: float | None = key(None, "`to_target` totals count up to it; auto: 0.9, for cifar100 0.5", above=0, high=1)
    device: str = key("auto", "where clients train; auto: cuda where there is one", choices=("auto", "cpu", "cuda"))
    precision: str = key("fp32", "of products and activations; on a GPU fp32 uses TF32", choices=("fp32", "bf16"))
    actors: int | None = key(None, "clients trained at once; auto: one a core, or one on a GPU", low=1, high=4096, result=False)
    output: str = key("", "the run's directory; empty: runs/NAME, or ~/.pfedlora/runs by `flwr run`", result=False)
    resume: bool = key(False, "continue the run in `output`", result=False)
    overwrite: bool = key(False, "replace the run in `output`", result=False)
    min_clients: int | None = key(None, "nodes to wait for before round 1; auto: all", low=1, result=False)
    min_success: float = key(1.0, "share of the sampled clients that must succeed for a round to count", above=0, high=1, result=False)
    clip_norm_factor: float = key(
        100.0, "an update this many times as large as the round's median one is refused; 0: none is", low=0, result=False
    )
    max_samples: int = key(1_000_000, "training samples (n_k) beyond which an update is refused", low=1, result=False)
    max_failed_rounds: int = key(1, "rounds in a row below min-success after which the run stops", low=1, result=False)
    round_timeout: float = key(3600.0, "seconds a round may take before missing clients count as failed", above=0, result=False)
    node_timeout: float = key(300.0, "seconds to wait for nodes to connect", above=0, result=False)
    options: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """The method's own options by full key (`fml.alpha`), all methods' where the method is one of ours."""

    @classmethod
    def from_flat(cls, flat: Mapping[str, object]) -> Experiment:
        """An Experiment from flat keys (run-config). Raises UserError for an unknown key, a wrong type, a value out of range."""
        known = all_keys()
        values: dict[str, Any] = {}
        options = {name: k.default for name, k in known.items() if name not in _KEYS}
        for name, value in flat.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise UserError(f"unknown key {name!r}" + (f"; did you mean {near[0]!r}?" if near else "; see pfedlora run --help"))
            parsed = known[name].parse(value)
            if name in _KEYS:
                values[known[name].attribute] = parsed
            else:
                options[name] = parsed
        experiment = cls(**values, options=options)
        experiment._check()
        return experiment

    @classmethod
    def load(cls, path: Path | None, overrides: Iterable[str] = ()) -> Experiment:
        """An Experiment from a YAML file and `key=value` overrides (later ones win)."""
        flat = read_yaml(path) if path else {}
        return cls.from_flat(flat | parse_overrides(overrides))

    def flat(self) -> dict[str, Scalar]:
        """Every key as a run-config scalar; `from_flat` gives the same object back."""
        own = {name: k.text(getattr(self, k.attribute)) for name, k in _KEYS.items()}
        return own | dict(self.options)

    def fingerprint(self) -> str:
        """SHA-256 of every key that can change a result: equal fingerprints mean equal runs, as long as no client fails in them."""
        flat = self.flat()
        names = [n for n, k in _KEYS.items() if k.result] + [n for n in self.options if n.startswith(f"{self.method}.")]
        return hashlib.sha256(json.dumps({n: flat[n] for n in sorted(names)}).encode()).hexdigest()

    def changed(self) -> dict[str, Scalar]:
        """The keys that can change a result and are not at their defaults."""
        default = Experiment.from_flat({}).flat()
        return {k: v for k, v in self.flat().items() if k not in self.free_keys() and v != default.get(k)}

    def method_options_for(self, owner: type[T]) -> T:
        """The options dataclass of a method, filled from this Experiment."""
        if ":" in self.method:
            declared = keys_of(owner)
            given = _words(self.method_options)
            for name in given:
                if name not in declared:
                    raise UserError(f"method-options: {self.method} has no option {name!r}; it has: {', '.join(declared) or 'none'}")
            return owner(**{k.attribute: k.parse(given[n]) for n, k in declared.items() if n in given})
        declared = keys_of(owner, f"{self.method}.")
        return owner(**{k.attribute: self.options[n] for n, k in declared.items()})

    def replace(self, **changes: Any) -> Experiment:
        """A copy with attributes changed, checked again."""
        changed = dataclasses.replace(self, **changes)
        changed._check()
        return changed

    def located(self, output: Path) -> Experiment:
        """This Experiment with absolute paths: its processes do not run in the user's folder."""
        kind, _, own = self.dataset.partition(":")
        dataset = f"{kind}:{Path(own).expanduser().absolute()}" if kind in ("folder", "npz") else self.dataset
        data_path = str(Path(self.data_path).expanduser().absolute()) if self.data_path else ""
        return self.replace(output=str(output.expanduser().absolute()), data_path=data_path, dataset=dataset)

    @staticmethod
    def free_keys() -> set[str]:
        """The keys that cannot change a result."""
        return {name for name, k in _KEYS.items() if not k.result}

    @property
    def sampled(self) -> int:
        """K = ⌊C·N⌋, at least 1; the tolerance makes 0.29·100 the 29 it is."""
        return max(1, int(self.participation * self.clients + 1e-9))

    def _check(self) -> None:
        if self.method == "fedavg" and len(set(self.model_names)) > 1:
            raise UserError("method fedavg averages whole models, so all clients need the same: set setting=homogeneous")
        if self.min_clients is not None and self.min_clients > self.clients:
            raise UserError(f"min-clients is {self.min_clients}; allowed: auto, or at most clients, which is {self.clients}")
        if self.resume and self.overwrite:
            raise UserError("resume and overwrite exclude each other: resume continues the run, overwrite replaces it")
        self.method_options_for(registry.find(self.method).Options)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The client models in turn; `auto` is the paper's choice for the setting."""
        if self.models != "auto":
            return tuple(name.strip() for name in self.models.split(","))
        count = 5 if self.setting == "heterogeneous" else 1
        return tuple(f"cnn{i + 1}" for i in range(count))

    @property
    def default_name(self) -> str:
        """A name for the run's directory where the user gives none."""
        return f"{self.method}-{self.dataset}".replace(":", "-").replace("/", "-")

    @property
    def cut(self) -> str:
        """Where encoder and head part: after `fc1` for the reduced adapter, after `fc2` for the decomposed one."""
        kind = self.adapter_kind
        if kind == "auto":
            kind = "reduced" if self.setting == "homogeneous" else "decomposed"
        return "fc1" if kind == "reduced" else "fc2"


_KEYS = keys_of(Experiment)


def all_keys() -> dict[str, Key]:
    """Every key by name: the Experiment's, then each method's own."""
    found = dict(_KEYS)
    for name in registry.NAMES:
        found |= keys_of(registry.find(name).Options, f"{name}.")
    return found


def read_yaml(path: Path) -> dict[str, object]:
    """A YAML file's keys, flattened with dots. Raises UserError for a file that is missing or no mapping."""
    return flatten(read_mapping(path))


def read_mapping(path: Path) -> dict[Any, Any]:
    """A YAML file's mapping as it stands. Raises UserError for a file that is missing or no mapping."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f" at line {line + 1}" if line is not None else ""
        raise UserError(f"{path}: not valid YAML{where}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: expected `key: value` lines, found {type(loaded).__name__}")
    return loaded


def flatten(nested: Mapping[Any, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as flat keys with dots."""
    flat: dict[str, object] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def parse_overrides(overrides: Iterable[str]) -> dict[str, object]:
    """`key=value` texts as a flat mapping; values are read as YAML scalars."""
    flat: dict[str, object] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"-o {text!r}: expected key=value")
        flat[name.strip()] = _scalar(value)
    return flat


def _words(text: str) -> dict[str, object]:
    try:
        return parse_overrides(shlex.split(text))
    except ValueError as error:
        raise UserError(f"method-options is {text!r}: {error}") from None


def _scalar(text: str) -> object:
    try:
        return int(text)  # YAML 1.1 reads 010 as 8
    except ValueError:
        pass
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, bool | int | float) else text
