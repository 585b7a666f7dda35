"""The files that users parse, field by field: a line of `rounds.jsonl`, a line of `clients.jsonl`,
and `result.json`.

Accuracies are shares in [0, 1], seconds are wall-clock time, flops are floating-point operations (2
a multiply-add), clients are numbers from 0. "up" is from client to server."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, cast

Status = Literal["completed", "failed", "stopped", "diverged"]
StoppedBy = Literal["user", "system", "time", "observer"]


class CostFields(TypedDict):
    """What was sent and computed, as counts ≥ 0: in a visit, of that client; in a round, of all its
    clients.

    Down is all that was sent, to clients that then failed and to those asked twice too; up and
    flops are of admitted visits alone. With secagg clients tell no operations, and flops are 0.
    Messages that only ask for an evaluation are not counted."""

    parameters_up: int  # elements of floating-point tensors
    parameters_down: int  # the same, from server to client
    bytes_up: int  # of all tensors, integer ones (class names, counts) included
    bytes_down: int  # the same, from server to client
    wire_up: int  # bytes of whole messages: tensors, names, metrics and headers
    wire_down: int  # the same, from server to client
    # of linear, convolutional and recurrent layers in training, from the first batch of each phase;
    # evaluation is not counted
    flops: int


class RoundRow(CostFields):
    """A line of `rounds.jsonl`. Round 0, where there is one, is the evaluation of the initial
    models: nobody trains in it."""

    round: int  # from 0
    sampled: list[int]  # the clients that were to take part, ascending; empty in round 0
    # those whose update was merged, ascending; empty where `min-success` was not reached: then
    # the good ones are in neither list
    admitted: list[int]
    # those without an admitted answer, ascending: absent, failed, refused, also at an
    # evaluation; clients.jsonl says why
    refused: list[int]
    # unweighted mean of the clients' last test accuracies; 0 while nobody has been evaluated
    accuracy: float
    validation_accuracy: float  # the same of the validation parts
    # unweighted mean of the clients' last ones; null unless all evaluated clients have one
    balanced_accuracy: float | None
    macro_f1: float | None  # the same of their macro-F1
    # how many clients the four are means over: those that have been evaluated in this round or
    # before
    evaluated: int
    # by further predictor of the method: mean test accuracy over the clients that have it; often
    # empty
    other_accuracies: dict[str, float]
    loss: float | None  # mean over the admitted visits of their `loss`; null where there is none
    # executed by layers that the server trains in the merge; sums and means are not counted
    server_flops: int
    seconds: float  # the round's length: the sum of `server_seconds`
    # by part: record (the round before), prepare, wait, aggregate, evaluate
    server_seconds: dict[str, float]
    # sum over the visits of the seconds that they trained, on whatever worker
    training_seconds: float
    evaluation_seconds: float  # the same of evaluating
    workers: int  # processes that the admitted visits ran in


class VisitRow(CostFields):
    """A line of `clients.jsonl` with `status` ok: a client's visit in a round, whose update was
    admitted."""

    round: int  # from 1
    client: int
    status: Literal["ok"]
    model: str  # the client's architecture, as in the key `models`
    samples: int | None  # of training: n_k ≥ 1; null with secagg, under whose masks it travels
    lost: bool  # the client had lost its model and started again from its initial one
    # the first of `losses`; 0 where the method tells none; null with secagg, which does not send it
    loss: float | None
    # by phase, as the method names them: the mean over the phase's last epoch; null with secagg
    losses: dict[str, float] | None
    # after training, on the client's own test part; only in rounds that evaluate
    accuracy: NotRequired[float]
    validation_accuracy: NotRequired[float]  # the same on its validation part
    # with `accuracy`: the mean recall of the classes in the client's test part
    balanced_accuracy: NotRequired[float]
    macro_f1: NotRequired[float]  # the same of their F1, 2TP / (2TP + FP + FN)
    # by further predictor of the method: test accuracy; often empty
    other_accuracies: dict[str, float]
    # sums to `flops`; null with secagg, which does not send it
    flops_by_phase: dict[str, int] | None
    seconds: dict[str, float]  # on the client, by part: load, train, evaluate, save
    # Ray's id of the node that the client trained on; of simulations by `flwr run` alone
    node: NotRequired[str]


class FailedVisitRow(TypedDict):
    """A line of `clients.jsonl` with `status` failed: a client without an admitted answer."""

    round: int  # 0: it could not be evaluated before the first round
    client: int
    status: Literal["failed"]
    # one line; it begins with "refused: " where an answer came and the server did not admit it
    reason: str


SCORES = ("balanced_accuracy", "macro_f1")
"""An evaluation's scores beside its accuracies; a round's line has their means over the clients."""


def without_evaluation(row: VisitRow | FailedVisitRow) -> VisitRow | FailedVisitRow:
    """The line of a visit as it would be in a round that does not evaluate."""
    if row["status"] == "failed":
        return row
    left = {k: v for k, v in row.items() if k not in ("accuracy", "validation_accuracy", *SCORES)}
    return cast(VisitRow, left | {"other_accuracies": {}})


class Sampled(TypedDict):
    """Test accuracy as the public code of pFedLoRA's family counts it, beside the papers' figures
    and never a headline.

    A round's figure is the unweighted mean over the clients that it sampled and admitted, each
    evaluated on its own test part right after its own training in that round, before anything is
    merged. Rounds that do not evaluate have none, nor has one that admitted nobody. With
    participation 1 and no failures it is the round's `accuracy`, since a client's model changes
    only when it trains."""

    sampled_last: float | None  # of the last such round; null where there is none
    sampled_highest: float | None  # of the highest; a choice by the test data


class Accuracy(Sampled):
    """Test accuracy: unweighted means over the clients, each on its own test part."""

    final: float  # after the last round
    # after the round with the highest mean validation accuracy (the first of ties): the headline
    at_best_validation: float
    best_validation_round: int  # that round
    # of all rounds; a choice by the test data, for comparison with papers that report it
    max_test: float
    std: float  # population standard deviation over the clients' last accuracies
    evaluated: int  # clients that `final`, `std` and `worst` are over
    worst: float  # the lowest of the clients' last accuracies
    other: dict[str, float]  # `other_accuracies` of the last round


class Score(TypedDict):
    """Another score of the test parts: unweighted means over the clients. Null where some were
    evaluated by a version without it."""

    final: float | None  # after the last round
    at_best_validation: float | None  # after the round that `accuracy.at_best_validation` is of


class PerClient(TypedDict):
    """A client at the end of the run."""

    model: str  # its architecture
    accuracy: float  # at its last evaluation, on its own test part
    balanced_accuracy: float | None  # the same, as in VisitRow
    macro_f1: float | None  # the same, as in VisitRow
    test: int  # samples of that part
    samples: int | None  # of training; null where it never trained, and with secagg
    last_round: int  # whose update of it was merged last; 0 where none was


class Communication(TypedDict):
    """Totals over all rounds and clients, as in CostFields."""

    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int
    wire_up: int
    wire_down: int


class Operations(TypedDict):
    """Floating-point operations of the whole run, 2 a multiply-add, counted from the modules as
    they ran."""

    clients: int  # the total of `flops`
    server: int  # the total of `server_flops`


class ToTarget(TypedDict):
    """The costs up to the first round whose mean test accuracy reaches the target, all clients and
    both ways; nulls where none does."""

    accuracy: float  # the target: `target-accuracy`, or the dataset's usual one
    rounds: int | None
    parameters: int | None
    bytes: int | None
    flops: int | None


class Seconds(TypedDict):
    """Wall-clock time, stops and restarts between rounds left out."""

    total: float  # of all rounds but round 0
    training: float  # sum over the visits
    per_round_median: float  # round 0 left out; 0 where there is none
    workers: int  # the most processes that trained in one round
    busy_share: float  # of workers · total: spent training or evaluating at visits, in [0, 1]


class SecAgg(TypedDict):
    """Secure aggregation in this run."""

    enabled: bool
    threshold: float | None  # the share of the key shares that unmasked; null where it is off
    clip: float | None  # the most that an element could change in a visit; null where it is off


class Privacy(TypedDict):
    """What a run did to hide its clients' updates from the server."""

    secagg: SecAgg
    # what the server, or whoever holds the run's files, can learn all the same; a line each
    not_covered: list[str]


class Machine(TypedDict):
    """Where the clients of a simulation trained. What the server's host is stands in `config.yaml`,
    under `about`."""

    # visits by Ray's id of the node: several of a cluster, or of the starts of a resumed run; empty
    # without Ray
    nodes: dict[str, int]


class OwnData(TypedDict):
    """The data that sites brought themselves, as far as they told of it."""

    sites: int  # that have told so
    kind: str  # of the inputs: images, series or vectors
    shape: list[int]  # of an input as a model takes it
    classes: int  # of the federation; a site may have fewer
    # training, validation and test samples of these sites; null where one has not told, as under
    # secagg
    samples: int | None


class Result(TypedDict):
    """`result.json`. A run that failed or was stopped before its first checkpoint has the fields up
    to `privacy` alone."""

    status: Status
    error: str | None  # one line; null of a completed run
    # of a stopped run: the user; the system, by SIGTERM; the time, by max-hours; an observer, by
    # its reason. Otherwise null
    stopped_by: NotRequired[StoppedBy | None]
    diverged_in: NotRequired[int]  # the round in which a run diverged
    format: NotRequired[int]  # of these files: 3
    method: NotRequired[str]
    # the data's name: the dataset's, or `own data of 3 sites`
    dataset: NotRequired[str]
    own_data: NotRequired[OwnData]  # where sites had data of their own
    # of every key that can change a result: equal ones are the same Experiment
    fingerprint: NotRequired[str]
    clients: NotRequired[int]
    # whether --resume goes on; false of a completed run, and where code or configuration is to be
    # mended
    resumable: NotRequired[bool]
    privacy: NotRequired[Privacy]
    # by observer that failed since the run was last started: its first error; absent where none did
    observers: NotRequired[dict[str, str]]
    rounds: NotRequired[int]  # done
    accuracy: NotRequired[Accuracy]
    balanced_accuracy: NotRequired[Score]
    macro_f1: NotRequired[Score]
    # by client, ascending; those that have been evaluated
    per_client: NotRequired[dict[str, PerClient]]
    communication: NotRequired[Communication]
    flops: NotRequired[int]  # total, as in CostFields
    operations: NotRequired[Operations]
    to_target: NotRequired[ToTarget]
    seconds: NotRequired[Seconds]
    machine: NotRequired[Machine]
    # of the server's tensors (with sharing=none, over all clients'): equal hashes, equal bits
    shared_sha256: NotRequired[str]
    # over the SHA-256 of all visited clients' models, in client order
    models_sha256: NotRequired[str]
    # fingerprint of who holds which samples; `own` where nodes brought their own data
    partition: NotRequired[str | None]
    # what was left out of the data, and what else a user should know of it, a line each; null where
    # the nodes brought their own, whose `about.json` has it, or it is not on the server's machine
    data_notes: NotRequired[list[str] | None]
    refused: NotRequired[int]  # replies and nodes that were not admitted, over the whole run
    lost: NotRequired[int]  # visits whose client had lost its model


class Attack(TypedDict):
    """How well a score separates what is so from what is not, as `pfedlora audit` measures it."""

    auc: float  # area under the ROC curve: 0.5 tells nothing, 1 tells all
    # of what is so, the share that is found where at most 1 % of what is not so is taken for it
    tpr_at_1pct: float
    # of the 95 % interval of `auc`, a bootstrap over clients; null: of classes from a sum
    low: float | None
    high: float | None  # its upper end


class BestAttack(Attack):
    """The one of several attacks that has the largest `auc`: a choice that favours the attacker."""

    attack: str  # which one it is, as in `attacks`


class ClassAudit(TypedDict):
    """Which classes does a client hold? Scored is each pair of a client and a class, in every
    audited round."""

    # the tensors with a row a class that the scores are from, or `classes` where uploads name them;
    # null: there are none
    layer: str | None
    # from each client's upload; null where there is no such layer, uploads were not kept or
    # every client holds every class
    upload: BestAttack | None
    # from what the server makes of all uploads, in which every client has the same score; null
    # where it has no such layer
    sum: BestAttack | None
    # by score, of the uploads (of the sum where those were not kept): `bias`, `row norm`, `named`
    attacks: dict[str, Attack]
    # by round, then by attack: the AUC in that round alone, of uploads, and of the sum as `sum,
    # ATTACK`
    rounds: dict[str, dict[str, float]]


class MembershipAudit(BestAttack):
    """Was a sample trained on? A client's training part against its validation and test part, at
    most 1000 of either."""

    # what is attacked: each client's last upload, or what the server made of its last round's
    of: Literal["upload", "sum"]
    # by score (`loss`, its `fall`) and, where an encoder is needed, by whose it is: `initial`,
    # `another client's`
    attacks: dict[str, Attack]
    # with the client's own encoder, which never leaves it; null where none is needed or it is not
    # here
    bound: BestAttack | None
    bounds: dict[str, Attack]  # by score, all of those


class Audit(TypedDict):
    """`audit.json`, by `pfedlora audit`: what the server can tell of single clients. docs/audit.md
    says what it means."""

    format: int  # of these files: 3
    method: str
    # whether uploads were kept (`audit.uploads`), or the last two checkpoints alone are audited
    source: Literal["uploads", "sum"]
    rounds: list[int]  # that were audited, ascending
    clients: int  # that sent anything in them
    classes: ClassAudit
    membership: MembershipAudit | None  # null where what is sent makes no prediction
    notes: list[str]  # what could not be audited and why, a line each
