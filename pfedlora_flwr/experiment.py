"""The Experiment: what is trained, and on what. The frozen record, and every key that can change a
result and does not belong to a method. `execution` has the other keys.

What the names of datasets and partitions may be, the data room knows: `config` checks them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from pfedlora_flwr.data.keys import DataKeys, PartitionKeys, SplitKeys
from pfedlora_flwr.features.dp.keys import DP
from pfedlora_flwr.features.held_out.keys import HeldOut
from pfedlora_flwr.features.masks.keys import SecAgg
from pfedlora_flwr.features.membership.keys import Members
from pfedlora_flwr.federation.keys import Stop
from pfedlora_flwr.keys import (
    Form,
    Key,
    Listed,
    Section,
    in_words,
    key,
    keys_of,
    section,
)
from pfedlora_flwr.models.keys import LoraKeys, LossKeys


@dataclass(frozen=True)
class NoOptions(Section):
    """The options of a method that has none, and the base of every method's own: fields declared by
    `key`.

    prefix: of the keys in the configuration, so `alpha` of FML is `fml.alpha`; None: the method's
    name and a dot."""

    prefix: ClassVar[str | None] = None


def _part(word: str) -> str:
    if word not in TRAINED:
        raise ValueError(word)
    return word


TRAINED = ("all", "head", "lora")
"""What may be trained of a model."""


@dataclass(frozen=True)
class Experiment(Section):
    """What is trained, and on what. The defaults are the paper's where it gives them (Section
    5.1)."""

    method: str = key("pfedlora", "the method: a name from the package, or `package.module:Class`")
    method_options: str = key(
        "", "options of your own method (`package.module:Class`): `key=value key=value`"
    )
    sharing: str = key(
        "mean",
        "mean: normal. none (control): each client aggregates only its own uploads. start"
        " (control): clients always receive the initial state",
        choices=("mean", "none", "start"),
    )
    aggregation: str = key(
        "mean",
        "what merges the uploads. mean: weighted by n_k. median, trimmed-mean (by element, or by"
        " class row), krum (one client's upload): unweighted, and bounded in what aggregation.liars"
        " clients can do",
        choices=("mean", "median", "trimmed-mean", "krum"),
    )
    aggregation_liars: int = key(
        1,
        "F, how many of a round's clients may lie. A round needs 2 F + 1 clients, with krum"
        " 2 F + 3; a class row so many holders",
        name="aggregation.liars",
        low=1,
        needs="aggregation",
    )
    max_weight: float = key(
        0.0,
        "a claimed number of samples (n_k, or of a class) counts at most this many times the"
        " round's median one, and at most as the client's first one in the run; 0: no bound",
        low=0,
    )
    dataset: str = key("digits", "inputs and labels")
    classes: int | None = key(
        None,
        "number of classes; auto: the dataset's (set it if only the nodes have the data)",
        low=2,
    )
    image_size: int | None = key(
        None,
        "height and width to which images are resized; auto: 32 for digits, CIFAR and synthetic"
        " images, otherwise the size that all images have",
        low=8,
        high=4096,
    )
    input_shape: str | None = key(
        None,
        "the shape of an input: 3x64x48 (channels, height, width; images are resized), 6x128"
        " (channels, time), 13 (features); auto: the dataset's (set it if only the nodes have the"
        " data)",
    )
    data: DataKeys = section(DataKeys)
    split: SplitKeys = section(SplitKeys)
    clients: int = key(
        10,
        "N, the number of clients; auto, by `flwr run` in a simulation: the number of nodes",
        low=1,
        high=1_000_000,
    )
    members: Members = section(Members)
    held_out: HeldOut = section(HeldOut, needs="clients-held-out")
    participation: float = key(
        1.0, "C, the share of clients sampled in each round", above=0, high=1
    )
    rounds: int = key(20, "T, the number of communication rounds", low=1)
    seed: int = key(0, "the seed of all random draws", low=0)
    partition: PartitionKeys = section(PartitionKeys)
    models: Listed[str] | None = key(
        None,
        "client models: cnn1 … cnn5, conv1d1 …, mlp1 …, timm:NAME,"
        " torchvision:NAME, hf:FOLDER (texts), package.module:Class; client k gets number k mod"
        " their count; auto: by the setting",
        form=Form("models", str),
    )
    setting: str = key(
        "heterogeneous",
        "five models in turn (CNN-1 to CNN-5; Conv1d for series, MLP for vectors), or the first"
        " one for all clients",
        choices=("heterogeneous", "homogeneous"),
    )
    train: Listed[str] = key(
        "all",
        "the part of its model that a client trains: all, head (frozen encoder), or lora (frozen"
        " encoder with LoRA inside, and the head); several values are"
        " assigned in turn",
        form=Form(f"{in_words(TRAINED)}, or several of them", _part),
    )
    lora: LoraKeys = section(LoraKeys, needs="train=lora")
    representation: str = key(
        "features",
        "R, the input of the head: the encoder's features; pretrained-logits, the output of the"
        " classifier that came with the model's weights; or anchors:FILE, the features mapped onto"
        " those of one reference encoder",
        choices=("features", "pretrained-logits", "anchors:"),
    )
    anchors_ridge: float = key(
        0.3,
        "λ, the ridge of the map onto the reference, in mean squares of an anchor's features",
        name="anchors.ridge",
        above=0,
        needs="representation",
    )
    representation_norm: str = key(
        "none",
        "layer: the R of a client's model without its mean and of unit variance, sample by sample;"
        " behind a neck, if there is one",
        choices=("none", "layer"),
    )
    neck: str = key(
        "auto",
        "a private layer before the head, to representation-width; auto: if a method needs one"
        " width and the models' widths differ",
        choices=("auto", "always"),
    )
    representation_width: int = key(500, "width of R behind a neck", low=1, high=100_000)
    model_input: int | None = key(
        None,
        "height and width to which a timm or torchvision model resizes images internally; auto:"
        " no resizing",
        low=8,
        high=4096,
    )
    normalise: str = key(
        "auto",
        "mean and standard deviation for a model's inputs: the federation's, or those of its"
        " weights; auto: model if it has weights and train is not all, otherwise federation",
        choices=("auto", "federation", "model"),
    )
    initial_models: str = key(
        "each",
        "initialisation: a model of its own for each client, or one model for all clients of an"
        " architecture (that of its first client)",
        choices=("each", "architecture"),
    )
    evaluate_initial: bool = key(
        True,
        "evaluate every client's initial model as round 0; otherwise clients count from their first"
        " visit on, and the best round is one over as many clients as the last",
    )
    stop: Stop = section(Stop)
    start_from: str = key(
        "",
        "begin from an earlier run: its directory, or a file of `pfedlora export RUN --shared`."
        " Rounds go on behind the earlier run's last one",
    )
    evaluate_every: int = key(1, "evaluate in every n-th round and in the last", low=1)
    local_epochs: int = key(1, "E, epochs of local training per round", low=1)
    batch_size: int = key(64, "B, samples per step", low=1)
    optimizer: str = key(
        "sgd",
        "the optimiser, new in each visit; adamw: β = (0.9, 0.999), no momentum",
        choices=("sgd", "adamw"),
    )
    lr: float = key(0.01, "η_ω, the learning rate", above=0)
    lr_schedule: str = key(
        "constant",
        "schedule of all clients' learning rates; cosine: from lr to almost 0 over all rounds",
        choices=("constant", "cosine"),
    )
    momentum: float = key(0.9, "momentum of SGD", low=0, below=1)
    weight_decay: float = key(0.0, "weight decay (decoupled with adamw)", low=0)
    clip_norm: float = key(0.0, "gradient clipping at this norm; 0: none", low=0)
    loss: LossKeys = section(LossKeys)
    augment: bool = key(
        False,
        "random flip and crop of training images; the padding is an eighth of their size (4 of 32)",
    )
    secagg: SecAgg = section(SecAgg, needs="secagg.enabled")
    dp: DP = section(DP)
    target_accuracy: float | None = key(
        None,
        "the accuracy up to which `to_target` counts costs; auto: the dataset's",
        above=0,
        high=1,
    )
    device: str = key(
        "auto",
        "the clients' device; auto: cuda if there is one",
        choices=("auto", "cpu", "cuda"),
    )
    precision: str = key(
        "fp32",
        "precision of products and activations; on a GPU fp32 uses TF32; bf16 is slow on a"
        " processor without instructions for it (AVX512_BF16, AMX)",
        choices=("fp32", "bf16"),
    )
    options: Any = field(default_factory=NoOptions)
    """The method's own options: an instance of its `Options`."""

    def keys(self) -> dict[str, tuple[Key, Any]]:
        """Every key of this Experiment, its method's own included, with its value;
        `config.from_flat` gives the same object back of `flat`."""
        own = option_keys(self.method, type(self.options)).items()
        return super().keys() | {name: (k, getattr(self.options, k.attribute)) for name, k in own}

    def fingerprint(self) -> str:
        """SHA-256 of `changed`: equal fingerprints mean equal runs, as long as no client fails in
        them, and except for the noise of `dp`.

        A key at its default is left out, so a new key changes no fingerprint.
        """
        return hashlib.sha256(json.dumps(self.changed(), sort_keys=True).encode()).hexdigest()

    def evaluates(self, round: int) -> bool:
        """Whether clients evaluate in this round: every `evaluate-every`-th one, and the last."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def evaluates_as_last(self, round: int) -> bool:
        """Whether clients evaluate in this round only because it is the last."""
        return round == self.rounds and round % self.evaluate_every != 0

    @property
    def trained_clients(self) -> int:
        """Those that can be sampled: numbers 0 to this. Those that are held out follow."""
        return self.clients - self.held_out.clients

    @property
    def held_out_clients(self) -> range:
        """The clients that are never sampled."""
        return range(self.trained_clients, self.clients)

    def untrained(self, client: int) -> str:
        """Why the run has no model of a client; empty: it may have one."""
        return "is held out and was never trained" if client in self.held_out_clients else ""

    @property
    def noises_gradients(self) -> bool:
        """Differential privacy of single training records, by noise on their gradients."""
        return self.dp.enabled and self.dp.level == "record" and not self.adds

    @property
    def noises_sums(self) -> bool:
        """Differential privacy of single training records, by noise on sums over them."""
        return self.dp.enabled and self.dp.level == "record" and self.adds

    @property
    def noises_rounds(self) -> bool:
        """Whether a round releases one noised sum."""
        return self.dp.of_users or self.noises_sums

    @property
    def adds(self) -> bool:
        """Whether uploads are sums over a client's samples, which the server adds."""
        return bool(getattr(self.options, "adds", False))

    def releases(self, round: int) -> bool:
        """Whether what clients send in a round is to count with `dp`: of sums the last round only
        brings those of all."""
        return round < self.rounds or not self.adds

    @property
    def noising(self) -> int:
        """How many clients' own noise makes up that of a sum; 0: the server draws it."""
        own = self.noises_sums and self.secagg.enabled
        return (self.options.honest or self.sampled // 2 + 1) if own else 0

    @property
    def noises(self) -> str:
        """The key by which noise is on what leaves a client or the server; empty: none."""
        return "dp" if self.dp.enabled else ""

    @property
    def weighs_alike(self) -> bool:
        """Whether every update is bounded, and weighs the same, whoever sends it."""
        return self.dp.of_users

    @property
    def hides_uploads(self) -> str:
        """The key with which the server reads a round's sum, and no single upload; empty: none."""
        return "secagg.enabled" if self.secagg.enabled else ""

    @property
    def hides_clients(self) -> str:
        """The key that hides from the server what single clients send, and what their code raises
        except for its type; empty: none."""
        return self.hides_uploads or self.noises

    @property
    def fixes_clients(self) -> str:
        """The key with which no client can join a running federation, or leave it; empty: none."""
        return self.hides_clients or ("clients-held-out" if self.held_out.clients else "")

    @property
    def state_per_client(self) -> bool:
        """Whether each client is a federation of one, which has a state of its own."""
        return self.sharing == "none"

    @property
    def control(self) -> str:
        """The key by which a control shares less than its method does; empty: it is none."""
        return "" if self.sharing == "mean" else f"sharing={self.sharing}"

    @property
    def masked_weight(self) -> int:
        """The largest weight under masks: 1 of `dp`, which weighs all clients alike, and of
        sums."""
        return 1 if self.weighs_alike or self.adds else self.secagg.max_samples

    @property
    def sampled(self) -> int:
        """K = ⌊C·(N − H)⌋ of the last round, at least 1, without clients that have left; the
        tolerance makes 0.29·100 the 29 it is."""
        return self.sampled_in(self.rounds)

    def gone(self, round: int) -> dict[int, str]:
        """The clients that are there no more in a round, and why."""
        return dict.fromkeys(self.members.gone_after(round - 1), "has left (clients-left)")

    def is_kept(self, round: int) -> bool:
        """Whether a round's checkpoint stays for good, as the last one before sites joined."""
        return round in dict(self.members.joined)

    def fewer_since(self, round: int) -> int:
        """The last round before this one after which clients left; -1: none."""
        return max((last for last, _ in self.members.left if last < round), default=-1)

    def clients_in(self, round: int) -> Sequence[int]:
        """The clients that can be sampled in a round, ascending."""
        joined = self.members.joined
        until = next((n for last, n in joined if round <= last), self.trained_clients)
        gone = self.gone(round)
        return [k for k in range(until) if k not in gone] if gone else range(until)

    def by_itself(self) -> Self:
        """The same for a client to which nobody else's rounds matter."""
        return self.replace(members=Members())

    def sampled_in(self, round: int) -> int:
        """K of a round."""
        return max(1, int(self.participation * len(self.clients_in(round)) + 1e-9))

    @property
    def fewest_sampled(self) -> int:
        """K of the round in which it is least, as clients leave."""
        changes = {1, *(last + 1 for last, _ in self.members.left if last >= 0)}
        return min(map(self.sampled_in, changes))

    @property
    def default_name(self) -> str:
        """A name for the run's directory where the user gives none."""
        return f"{self.method}-{self.dataset}".replace(":", "-").replace("/", "-")


KEYS = keys_of(Experiment)


def at_least(share: float, of: int) -> int:
    """The smallest number that is this share; the tolerance makes 0.07·100 the 7 it is."""
    return math.ceil(share * of - 1e-9)


def option_keys(method: str, options: type) -> dict[str, Key]:
    """The keys of a method's own options by full name; none for a `package.module:Class`, whose
    options are in `method-options`."""
    if ":" in method:
        return {}
    prefix: str | None = options.prefix  # type: ignore[attr-defined]
    return keys_of(options, f"{method}." if prefix is None else prefix)
