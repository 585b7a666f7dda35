"""The Execution: how and where an Experiment runs. None of its keys can change a result unless
clients fail or are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pfedlora_flwr.errors import wrong
from pfedlora_flwr.experiment import Experiment, at_least
from pfedlora_flwr.keys import AUTO, Form, Key, Listed, Scalar, Section, key, keys_of

MOST_ANCHORS = 64
"""MB of a file of anchors that travels."""
_LANES = 32
"""PyTorch has so many streams: more lanes would share one."""


@dataclass(frozen=True)
class Execution(Section):
    """How and where an Experiment runs. A resumed run may change all of it."""

    data_path: str = key("", "the folder of the dataset's files; empty: downloaded to the cache")
    secagg_threshold: float = key(
        0.67,
        "secagg: the share of the key shares that is needed to unmask",
        name="secagg.threshold",
        needs="secagg.enabled",
        above=2 / 3,
        below=1,
    )
    secagg_shares: int | None = key(
        None,
        "secagg: number of shares of each key, odd; auto: all up to 20 sampled clients, otherwise"
        " 21",
        name="secagg.shares",
        needs="secagg.enabled",
        low=5,
    )
    anchors_send: int = key(
        0,
        "a file of anchors of at most so many MB is sent to nodes whose node-config has"
        " anchors=sent; 0: to none",
        name="anchors.send",
        needs="representation",
        low=0,
        high=MOST_ANCHORS,
    )
    actors: int | None = key(
        None, "clients trained at once; auto: one per core, or one per GPU", low=1, high=4096
    )
    lanes: int | None = key(
        1,
        "with engine=local: clients that the process trains side by side, for a GPU; auto: as many"
        " as its free memory holds, at most 10",
        low=1,
        high=_LANES,
    )
    ray: str = key(
        "",
        "a Ray cluster, HOST:PORT, for `run` and `compare`, started on one of its nodes; empty:"
        " $RAY_ADDRESS, otherwise this machine",
    )
    output: str = key("", "the run's directory; empty: runs/NAME, with `flwr run` ~/.pfedlora/runs")
    resume: bool = key(False, "continue the run in `output`")
    accept_changed_code: bool = key(
        False,
        "with resume: continue although your own code has changed since the run's rounds",
    )
    overwrite: bool = key(False, "replace the run in `output`")
    comparison_run: str = key(
        "",
        "set by a comparison on real nodes: COMPARISON/RUN below the server's output-root, in the"
        " place of `output`; the run goes on with what is there, and its lines are handed back",
    )
    observers: Listed[str] = key(
        "",
        "objects that receive each round: tensorboard (event files in"
        " `events` of the output), mlflow, wandb, prometheus (`metrics.prom` of the output),"
        " `package.module:Class`",
        form=Form("observers", str, empty=True),
    )
    audit_uploads: bool = key(
        False, "keep every admitted upload, for `pfedlora audit`", name="audit.uploads"
    )
    verdict_score: str = key(
        "accuracy",
        "the score that decides: what is tuned, the round of the best validation, the verdict."
        " Of log-loss and ece less is better; sensitivity@CLASS is a class's recall",
        name="verdict.score",
    )
    verdict_margin: float = key(
        2.0,
        "points: a difference that does not matter yet, in a report's verdict",
        name="verdict.margin",
        low=0,
        high=100,
    )
    models_keep: str = key(
        "last",
        "the models that predict, evaluate, export and cards take. best: those of the round of the"
        " best validation by verdict.score",
        name="models.keep",
        choices=("last", "best"),
    )
    scores_by_class: bool = key(
        False,
        "clients tell their test samples by true and predicted class, which shows how many of each"
        " class they have",
        name="scores.by-class",
    )
    sites: Listed[str] = key(
        "",
        "the registered names of the nodes that train, as many as `clients`; empty: all connected"
        " nodes; another node is sent nothing",
        form=Form("names", str, empty=True),
    )
    min_clients: int | None = key(None, "nodes needed before round 1; auto: all", low=1)
    min_success: float = key(
        1.0, "the share of sampled clients that must succeed for a round to count", above=0, high=1
    )
    clip_norm_factor: float = key(
        100.0,
        "an update is refused if it is this many times as large as the median one of the round and"
        " of the last five; 0: never",
        low=0,
    )
    max_samples: int = key(
        1_000_000,
        "the largest number of training samples (n_k) of an update; beyond it the update is"
        " refused",
        low=1,
    )
    max_failed_rounds: int = key(
        1, "the run stops after this many consecutive rounds below min-success", low=1
    )
    round_timeout: float = key(
        3600.0,
        "seconds after which missing clients of a round count as failed; with secagg training"
        " gets 55 % of it",
        above=0,
    )
    max_hours: float = key(
        0.0,
        "stop (resumable) after the round in which this many hours have passed; 0: never",
        low=0,
    )
    node_timeout: float = key(300.0, "seconds to wait for nodes to connect", above=0)

    @property
    def keeps_uploads(self) -> bool:
        """Whether the server keeps every admitted upload."""
        return self.audit_uploads

    @property
    def keeps_best(self) -> bool:
        """Whether the models of the best round stay, too."""
        return self.models_keep == "best"

    def merging(self) -> dict[str, Scalar]:
        """The keys that decide what is merged once clients fail, where they are not at their
        defaults."""
        return {name: value for name, value in self.changed().items() if name in _MERGING}

    def check_lanes(self) -> None:
        """Raises UserError for lanes where Flower hands clients to processes."""
        if self.lanes != 1:
            lanes = AUTO if self.lanes is None else self.lanes
            allowed = "1 through Flower, which gives a process one client at a time"
            raise wrong("lanes", lanes, f"{allowed}; with engine=local up to {_LANES}")

    def enough_of(self, asked: int) -> int:
        """How many of so many clients have to succeed, by `min-success`."""
        return at_least(self.min_success, asked)


KEYS = keys_of(Execution)
_MERGING = ("min-success", "clip-norm-factor", "max-samples")


@dataclass(frozen=True)
class RunConfig:
    """All keys of one run: what is trained, and how and where."""

    experiment: Experiment
    execution: Execution = field(default_factory=Execution)

    def flat(self) -> dict[str, Scalar]:
        """Every key as a run-config scalar; `config.run_config` gives the same object back."""
        return self.experiment.flat() | self.execution.flat()

    def keys(self) -> dict[str, tuple[Key, Any]]:
        """Every key with its value."""
        return self.experiment.keys() | self.execution.keys()

    def executed(self, **changes: Any) -> RunConfig:
        """The same Experiment with attributes of its Execution changed; it is not checked again."""
        return RunConfig(self.experiment, self.execution.replace(**changes))
