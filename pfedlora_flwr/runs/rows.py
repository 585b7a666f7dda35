"""The files that users parse, field by field: a line of `rounds.jsonl`, a line of `clients.jsonl`,
and `result.json`.

Accuracies are shares in [0, 1], seconds are wall-clock time, flops are floating-point operations (2
per multiply-add), clients are numbered from 0. "up" is from client to server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NotRequired, TypedDict, cast

from pfedlora_flwr.training.metrics import is_score

Status = Literal["completed", "failed", "stopped", "diverged"]
StoppedBy = Literal["user", "system", "time", "observer", "dp"]
SPENT: Literal["dp"] = "dp"
"""What stops a run of which a further round would spend too much: no more is done with it."""
Phase = Literal["starting", "connecting", "training", "evaluating", "adapting", "round"]


class CostFields(TypedDict):
    """Counts ≥ 0 of what was sent and computed: for one client in a visit, for all clients in a
    round.

    Down includes messages to clients that then failed or were asked twice, up and flops only
    admitted visits. With secagg and dp flops are 0. Messages for evaluations and for the adaptation
    of a held-out client are not counted."""

    parameters_up: int  # elements of floating-point tensors
    parameters_down: int  # the same, from server to client
    bytes_up: int  # of all tensors, including integer ones (class names, counts)
    bytes_down: int  # the same, from server to client
    # bytes of the messages' content, by Flower's count: tensors, names, metrics and headers,
    # without its encoding and the envelope, some hundred bytes per message
    wire_up: int
    wire_down: int  # the same, from server to client
    # of linear, convolutional and recurrent layers and of attention's products in training, from
    # the first batch of each phase; evaluation is not counted
    flops: int


class ScoreFields(TypedDict, total=False):
    """An evaluation's scores beside its accuracies, on the test part and, as `validation_…`, on the
    validation part; of a round and in `result.json` the mean over the clients that have one. With
    secagg and dp there are only balanced accuracy and macro-F1 of the test part.

    Undefined scores are absent: `auroc` and `average_precision` need samples of two classes,
    `sensitivity@CLASS` (with `verdict.score=sensitivity@CLASS`) one of that class."""

    balanced_accuracy: float  # the mean recall of the classes in the test part
    macro_f1: float  # the same for their F1, 2TP / (2TP + FP + FN)
    # the same for the area under the ROC curve of one class against the rest
    auroc: float
    average_precision: float  # the same for the average precision
    log_loss: float  # −log of the true class's probability, in nats, the mean over the samples
    ece: float  # expected calibration error, by 15 bins of confidence
    validation_balanced_accuracy: float
    validation_macro_f1: float
    validation_auroc: float
    validation_average_precision: float
    validation_log_loss: float
    validation_ece: float


class RoundRow(CostFields, ScoreFields):
    """A line of `rounds.jsonl`. Round 0, if there is one, is the evaluation of the initial
    models, without training."""

    round: int  # from 0
    sampled: list[int]  # the sampled clients, ascending; empty in round 0
    # clients whose update was merged, ascending; none if fewer than `min-success` succeeded
    admitted: list[int]
    # clients without an admitted answer, ascending: absent, failed, refused, also at an evaluation
    refused: list[int]
    # unweighted mean of the clients' last test accuracies; 0 before any evaluation. With secagg it,
    # the next two and the scores are only of the last evaluated round's admitted clients
    accuracy: float
    validation_accuracy: float  # the same for the validation parts
    # the number of clients in these means: all that were evaluated in this round or before
    evaluated: int
    # by score that fewer of them have: how many
    scored: NotRequired[dict[str, int]]
    # by further predictor of the method: mean test accuracy over the clients whose last visit was
    # in a round that evaluates; often empty
    other_accuracies: dict[str, float]
    loss: float | None  # mean of the admitted visits' `loss`; null if there is none
    # of layers that the server trains while merging; sums, means, products and decompositions of
    # LoRA's factors are not counted
    server_flops: int
    # of methods that exchange LoRA, from round 1: the merge's error against the mean of the
    # uploads' products, relative to their change. Null if undefined: a factor is private, secagg,
    # dp, the controls of `sharing`, no merge, or no change
    aggregation_error: NotRequired[float | None]
    # with dp, in rounds with an admitted update: the largest ε so far of a client, or with
    # dp.level=record the largest that this round's clients reported; infinite: null or absent
    epsilon: NotRequired[float | None]
    # duration of the round, without adaptations of held-out clients: the sum of `server_seconds`
    seconds: float
    # by part: record (the round before), prepare, wait, aggregate, evaluate
    server_seconds: dict[str, float]
    # training time summed over the visits, on all workers
    training_seconds: float
    evaluation_seconds: float  # the same for evaluation
    workers: int  # number of processes, or lanes, that did the admitted visits
    ended: NotRequired[float]  # Unix time of the round's end


def accuracy_of(row: RoundRow) -> float | None:
    """A round's accuracy; None before any evaluation, where its line has 0."""
    return row["accuracy"] if row["evaluated"] else None


class VisitRow(CostFields, ScoreFields):
    """A line of `clients.jsonl` with `status` ok: a client's visit in a round, with an admitted
    update."""

    round: int  # from 1
    client: int
    status: Literal["ok"]
    model: str  # the client's architecture, as in the key `models`
    # training samples, n_k ≥ 1; null with secagg and dp of whole clients, which withhold it
    samples: int | None
    # with max-weight: the number of samples that counted, where they were fewer than `samples`
    weight: NotRequired[int]
    lost: bool  # the client had lost its model and started again from its initial one
    # the first of `losses`; 0 if the method reports none; null with secagg and dp
    loss: float | None
    # by phase of the method: the mean over the phase's last epoch; null with secagg and dp
    losses: dict[str, float] | None
    # after training, on the client's own test part; in rounds that evaluate, with secagg only of a
    # site with scores=told
    accuracy: NotRequired[float]
    validation_accuracy: NotRequired[float]  # the same on its validation part
    # with scores.by-class: test samples by true class (rows) and predicted class (columns)
    confusion: NotRequired[list[list[int]]]
    # by further predictor of the method: test accuracy; often empty, always with secagg and dp
    other_accuracies: dict[str, float]
    # adds up to `flops`; null with secagg and dp, which withhold it
    flops_by_phase: dict[str, int] | None
    seconds: dict[str, float]  # on the client, by part: load, train, evaluate, save
    # Ray's id of the node where the client trained; only in simulations by `flwr run`
    node: NotRequired[str]
    # with dp.level=record: what the client says that its records have spent, visits without an
    # admitted answer included; absent if infinite (dp.noise is 0)
    epsilon: NotRequired[float]
    # the rules `egress.…` of its site's policy by which it has kept something back
    withheld: NotRequired[list[str]]


class FailedVisitRow(TypedDict):
    """A line of `clients.jsonl` with `status` failed: a client without an admitted answer."""

    round: int  # 0: it could not be evaluated before the first round
    client: int
    status: Literal["failed"]
    # one line; it begins with "refused: " if the server did not admit an answer
    reason: str


class AdaptedRow(ScoreFields):
    """A line of `held_out.jsonl`: a client that was never sampled, adapted after a round with some
    of its samples, and the same client alone. `pfedlora adapt` writes one as `adapted.json`."""

    round: int  # the round whose shared state it received
    client: int
    model: str  # its architecture, as in the key `models`
    asked: str  # the requested number of training samples, or all
    samples: int  # training samples that it had
    test: int  # number of test samples
    accuracy: float  # on its own test part
    validation_accuracy: float  # the same on its validation part
    visits: int  # each from the same shared state
    flops: int  # of its training, as in CostFields
    model_sha256: str  # of its personal model's tensors: equal hashes, equal bits
    # by Standalone, from the client's own initial weights, with at least as many operations
    alone_accuracy: float
    alone_validation_accuracy: float  # the same on its validation part
    alone_visits: int
    alone_flops: int


REFUSED = "refused: "
"""How the reason of a failed visit begins whose answer was not admitted."""


_EVALUATED = ("accuracy", "validation_accuracy", "confusion", "scored")


def without_evaluation(row: VisitRow | FailedVisitRow) -> VisitRow | FailedVisitRow:
    """The line of a visit as it would be in a round that does not evaluate."""
    if row["status"] == "failed":
        return row
    return cast(VisitRow, dict(_unscored(row)) | {"other_accuracies": {}})


def with_evaluation(row: RoundRow, evaluated: Mapping[str, Any]) -> RoundRow:
    """A round's line with these means over the evaluated clients in the place of its own."""
    return cast(RoundRow, dict(_unscored(row)) | dict(evaluated))


def _unscored(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((k, v) for k, v in row.items() if k not in _EVALUATED and not is_score(k))


class Sampled(TypedDict):
    """Test accuracy as the public code of pFedLoRA's family computes it, for comparison with the
    papers: the unweighted mean over a round's admitted clients, each on its own test part right
    after its own training. Rounds without evaluation have none."""

    sampled_last: float | None  # of the last such round; null if there is none
    sampled_highest: float | None  # of the highest such round; a choice by the test data


class Accuracy(Sampled):
    """Test accuracy: unweighted means over the clients, each on its own test part; 0 if none has
    been evaluated."""

    final: float  # after the last round
    # after the round that is best by validation: by the mean of `verdict.score`, then of accuracy,
    # then the first. The headline
    at_best_validation: float
    best_validation_round: int  # that round
    # highest of the rounds that are means over the clients of the last one; a choice by test data
    max_test: float
    # population standard deviation over the clients' last accuracies; null with secagg
    std: float | None
    evaluated: int  # number of clients in `final`, `std` and `worst`
    worst: float | None  # the lowest of the clients' last accuracies; null with secagg
    # `other_accuracies` of the last round, over clients that may be fewer than `evaluated`
    other: dict[str, float]


class Score(TypedDict):
    """Another score of the test parts: unweighted means over the clients that have it; null if none
    has."""

    final: float | None  # after the last round
    at_best_validation: float | None  # after the round of `accuracy.at_best_validation`


class PerClient(ScoreFields):
    """A client at the end of the run."""

    model: str  # its architecture
    accuracy: float  # at its last evaluation, on its own test part
    validation_accuracy: float  # the same on its validation part
    confusion: NotRequired[list[list[int]]]  # as in VisitRow
    test: int  # number of test samples
    samples: int | None  # of training; null if it never trained, and with secagg and dp
    last_round: int  # the last round that merged its update; 0 if none did


class Communication(TypedDict):
    """Totals over all rounds and clients; see CostFields."""

    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int
    wire_up: int
    wire_down: int


class Operations(TypedDict):
    """Floating-point operations of the whole run, 2 per multiply-add, counted as the modules
    ran."""

    clients: int  # the total of `flops`
    server: int  # the total of `server_flops`


class ToTarget(TypedDict):
    """The costs up to the first round whose mean test accuracy reaches the target, for all clients
    and both directions; nulls if none does. A round counts if its mean is over as many clients as
    the last one's, and over none that has left since."""

    accuracy: float  # the target: `target-accuracy`, or the dataset's usual one
    rounds: int | None
    parameters: int | None
    bytes: int | None
    flops: int | None


class Seconds(TypedDict):
    """Wall-clock time without stops and restarts between rounds."""

    total: float  # of all rounds except round 0; without adaptations of held-out clients
    training: float  # sum over the visits
    per_round_median: float  # without round 0; 0 if there is no other
    workers: int  # the largest number of training processes, or lanes, in a round
    busy_share: float  # share of workers · total spent on training and evaluation, in [0, 1]


class SecAgg(TypedDict):
    """Secure aggregation in this run."""

    enabled: bool
    threshold: float | None  # the share of key shares needed to unmask; null if off
    clip: float | None  # the largest allowed change of an element in a visit; null if off


class EarlierRun(TypedDict):
    """A run that was replaced by another in the same folder. What it spent on the same data adds up
    with what this one spends."""

    fingerprint: str  # of its keys
    # as in DP; none: without dp, so ε is infinite; absent if an older version replaced it
    level: NotRequired[Literal["user", "record", "none"]]
    # the largest ε of all clients, of record the largest reported with admitted uploads (failed
    # visits may have spent more); null if infinite or unreported
    epsilon: NotRequired[float | None]
    noise: float | None  # z; 0 without dp; null if each client had its own (record, dp.epsilon)
    delta: float  # δ
    draws: int | None  # noised sums; null if clients drew (record)
    participations_max: int  # of the client that took part most often; record: or tried to


class DP(TypedDict):
    """Differential privacy, of whole clients or of single training records.

    user: neighbours are a client's updates, or zeros in their place, in all rounds. It holds
    against anyone who sees only the server's states, given who took part. Who took part, and
    whether a round was merged, is visible.
    record: neighbours are a client's training record, or in its place one whose gradients are zero.
    It holds against anyone who sees all uploads, given n_k. ε is the one that clients reported with
    their last admitted uploads."""

    level: Literal["user", "record"]
    # the largest of all clients; null if infinite (dp.noise is 0), or if no client reported its ε
    # (record)
    epsilon: float | None
    by_client: dict[str, float | None]  # ε by client, of those that took part
    delta: float  # δ
    # z: the noise on a round's sum, or on a step's, has the standard deviation z · clip; null if
    # each client has its own (level record, dp.epsilon)
    noise: float | None
    clip: float  # S, the largest L2 norm of a client's update, or of a record's gradient
    # noised sums of the server, those of repeated rounds included; null if clients draw (record)
    draws: int | None
    participations_max: int  # of the client that took part most often
    epsilon_replace: NotRequired[float | None]  # of sums: ε where a record is replaced by another
    earlier: list[EarlierRun]  # runs that this one replaced in its folder; ε is without them


class Privacy(TypedDict):
    """What a run did to hide its clients' updates."""

    secagg: SecAgg
    dp: DP | None  # null if off
    # what the server, or anyone with the run's files, can still learn; one line each
    not_covered: list[str]


class Machine(TypedDict):
    """Where the clients of a simulation trained. The server's host is described in `config.yaml`,
    under `about`."""

    # visits by Ray's id of the node; several on a cluster or in a resumed run; empty without Ray
    nodes: dict[str, int]


class OwnData(TypedDict):
    """The sites' own data, as far as they reported it."""

    sites: int  # number of sites that reported
    kind: str  # kind of inputs: images, series, vectors or text
    shape: list[int]  # shape of a model's input
    classes: int  # number of classes in the federation; a site may have fewer
    # of all three parts of these sites; null if one did not report it (secagg, dp of whole clients)
    samples: int | None


class HeldOutMean(TypedDict):
    """Unweighted means over the held-out clients, each on its own test part."""

    round: int  # the round whose shared state they received
    asked: str  # the requested number of training samples, or all
    clients: int  # number of adapted clients
    samples: float  # mean number of training samples
    accuracy: float
    alone_accuracy: float  # of the same clients by Standalone, with at least as many operations
    flops: int  # of all adaptations together
    alone_flops: int


class HeldOut(TypedDict):
    """The clients that were never sampled; `held_out.jsonl` has a line for each."""

    clients: list[int]
    visits: int  # of each in an adaptation
    # by round and number of samples, ascending; the last round's come last
    means: list[HeldOutMean]


class Without(TypedDict):
    """A client without which the run was begun anew (`pfedlora run RUN --resume --without K`)."""

    run: str  # the directory of the run that it was in
    without: int  # the client
    round: int  # the last round that was taken from there; 0: none


class Origin(TypedDict):
    """A run whose sites' models another one goes on from."""

    run: str
    round: int  # the last round that was taken from there
    token: str  # the name that the sites know it by
    without: NotRequired[int]  # the client that the other one is begun without


class StartedFrom(TypedDict):
    """What a run began from (`start-from`)."""

    place: str  # the earlier run's directory, or the file
    method: str
    round: int  # its last one; of a file 0
    shared_sha256: str  # of the shared state with which this run began


class Result(TypedDict):
    """`result.json`. A run that failed or was stopped before its first checkpoint has only the
    fields up to `privacy`."""

    status: Status
    error: str | None  # one line; null if the run completed
    # for a stopped run: user; system (SIGTERM); time (max-hours); observer (its reason); dp (one
    # more round would exceed dp.epsilon). Otherwise null
    stopped_by: NotRequired[StoppedBy | None]
    diverged_in: NotRequired[int]  # the round in which a run diverged
    format: NotRequired[int]  # version of the file layout: 3
    method: NotRequired[str]
    # the data's name: the dataset's, or `own data of 3 sites`
    dataset: NotRequired[str]
    own_data: NotRequired[OwnData]  # if sites had their own data
    versions: NotRequired[dict[str, int]]  # of real nodes' packages: how many nodes have which
    # of every key that can change a result: equal fingerprints mean the same Experiment
    fingerprint: NotRequired[str]
    clients: NotRequired[int]
    # by client that joined the running federation: the round after which it did; absent if none did
    joined: NotRequired[dict[str, int]]
    # by client that left: the round after which it did; absent if none did
    left: NotRequired[dict[str, int]]
    begun_from: NotRequired[list[Without]]  # absent if the run was begun as a new one
    started_from: NotRequired[StartedFrom]  # with `start-from`
    # whether --resume can continue it; false for a completed run, and if code or configuration
    # must be corrected first
    resumable: NotRequired[bool]
    privacy: NotRequired[Privacy]
    # by observer that failed since the last start: its first error; absent if none failed
    observers: NotRequired[dict[str, str]]
    rounds: NotRequired[int]  # completed rounds
    ended_early: NotRequired[bool]  # true where stop.patience ended the run
    accuracy: NotRequired[Accuracy]
    # also `sensitivity@CLASS`, where the lines have it
    balanced_accuracy: NotRequired[Score]
    macro_f1: NotRequired[Score]
    auroc: NotRequired[Score]
    average_precision: NotRequired[Score]
    log_loss: NotRequired[Score]
    ece: NotRequired[Score]
    # by client, ascending; only evaluated clients, with secagg those that report their scores
    per_client: NotRequired[dict[str, PerClient]]
    held_out: NotRequired[HeldOut]  # if clients are held out
    communication: NotRequired[Communication]
    flops: NotRequired[int]  # total, as in CostFields
    operations: NotRequired[Operations]
    to_target: NotRequired[ToTarget]
    seconds: NotRequired[Seconds]
    machine: NotRequired[Machine]
    # of the server's tensors (with sharing=none, of all clients' states): equal hashes, equal bits
    shared_sha256: NotRequired[str]
    # of the SHA-256 of all visited clients' models, in client order; with secagg of each round's
    # sum; absent with dp: a hash would confirm a guess of a model
    models_sha256: NotRequired[str]
    # fingerprint of the assignment of samples to clients and of their values; `own`
    # if nodes have their own data
    partition: NotRequired[str | None]
    # what was left out of the data and other warnings, one line each; null if the data is not on
    # the server's machine (a node's `about.json` has it)
    data_notes: NotRequired[list[str] | None]
    refused: NotRequired[int]  # refused replies and nodes in the whole run
    lost: NotRequired[int]  # visits whose client had lost its model


class Progress(TypedDict):
    """`server/progress.json`: what the server does at the moment.

    It is replaced in one step at each change, and stays after the run's end."""

    pid: int  # the server's process
    host: str  # the name of the server's host
    time: float  # Unix time at which this was written
    # starting; connecting: waiting for nodes; training, evaluating, adapting (held-out clients):
    # waiting for clients; round: a round is over
    phase: Phase
    round: int  # the running round, in the phase `round` the one that is over; 0 before round 1
    # connecting: connected clients; starting and round: 0; otherwise clients that have answered
    done: int
    # connecting: number of clients to wait for; starting and round: 0; otherwise number of
    # clients that were asked
    of: int
