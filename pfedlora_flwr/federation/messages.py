"""The messages between server and clients: every key, and which statements of a stranger are
believed.

A key is the name of a field here; lists and dictionaries travel as JSON. Who a node says it is, is
in `claim.py`. How Flower's records carry all this is `wire.py`'s matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from pfedlora_flwr.errors import UserError, short
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import PREDICTORS, Diverged, Refused, is_predictor
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.clear import FIGURES, in_the_clear
from pfedlora_flwr.runs.rows import HeldOutRow
from pfedlora_flwr.training.metrics import OF_DECISIONS, is_score

Config = dict[str, bool | bytes | float | int | str]
LARGEST_COUNT = 10**9
"""Samples that an evaluation may claim to have seen."""
_LARGEST_LOSS = 1e30
LONGEST_WORD = 200
"""Characters of a name that a client tells."""
HELD_OUT, WITHHELD = "held_out", "withheld"
"""The keys of held-out clients' lines, and of what a site's policy keeps back."""
_ERROR, _NAME = "error", "name"
DATA = "data"
"""The key of what the dataset is known by, in an instruction and in the question who a node is."""


def folder_name(token: str) -> str:
    """The run's name as the server gives it. Raises UserError for one that could lead out of the
    folder in which it names one."""
    if not token.isalnum():
        raise UserError(f"the server names its run {token!r}, which is no folder's name")
    return token


@dataclass(frozen=True)
class Instruction:
    """What the server tells a client.

    version: the round whose model it is to take up, 0 for its initial one. token: the run's name on
    a node's disk. run: the run's directory, where a simulated client keeps its model. evaluate:
    whether to evaluate after training. names: of the tensors that come with it. adapt: true where
    it is held out, and adapted in the place of an evaluation; else not said. origin: the name of
    the run that this version is of, if it is another one. keep: versions that the client keeps for
    good. data: what the dataset is known by that the clients share, if they do (`Site.data`)."""

    round: int
    client: int
    version: int
    token: str
    run: str
    evaluate: bool
    names: list[str]
    adapt: bool | None = None
    origin: str | None = None
    keep: list[int] | None = None
    data: str | None = None

    def to_config(self) -> Config:
        return written(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Instruction:
        """Raises Refused for one that no server of ours gives."""
        return cls(
            round=count(config.get("round"), "the instruction's round"),
            client=count(config.get("client"), "the instruction's client"),
            version=count(config.get("version"), "the instruction's version"),
            token=_word(config.get("token"), "the instruction's token"),
            run=_word(config.get("run"), "the instruction's run", most=4096),
            evaluate=_flag(config.get("evaluate"), "the instruction's evaluate"),
            names=_names(config),
            adapt=_flag(config["adapt"], "the instruction's adapt") if "adapt" in config else None,
            origin=(
                _word(config["origin"], "the instruction's origin") if "origin" in config else None
            ),
            keep=_rounds(config) if "keep" in config else None,
            data=_word(config[DATA], "the instruction's data") if DATA in config else None,
        )


@dataclass(frozen=True)
class Report:
    """A client's account of its visit.

    names: of the tensors that come with it. model_sha256: of the version it has saved. worker: the
    process that it ran in.
    node: Ray's name of the host's part in its cluster; None if there is no Ray. counts: of its
    evaluation; None where it was not told to evaluate. The other fields are those of a `VisitRow`.
    Under masks and with `dp` a client tells what is `in_the_clear` alone, and the rest is None.
    Whoever adds a field here decides there.
    epsilon: what its records have spent so far; None where that is infinite, or not counted.
    withheld: the rules `egress.…` of its site by which it has kept something back."""

    round: int
    client: int
    names: list[str]
    model_sha256: str | None
    worker: str
    node: str | None
    counts: Counts | None
    model: str
    lost: bool
    loss: float | None
    losses: dict[str, float] | None
    other_accuracies: dict[str, float]
    flops_by_phase: dict[str, int] | None
    seconds: dict[str, float]
    epsilon: float | None = None
    withheld: list[str] | None = None

    def to_metrics(self) -> Config:
        return written(self)

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any], evaluated: bool, told: Set[str]) -> Report:
        """The report in a reply, with its counts where it was told to evaluate. Raises Refused for
        what cannot be.

        told: the fields that are taken, whatever else is there.
        """
        withheld = withheld_in(metrics)
        told = {field for field in told if RULED.get(field) not in withheld}
        return cls(
            round=count(metrics.get("round"), "its round"),
            client=count(metrics.get("client"), "its client"),
            names=_names(metrics),
            model_sha256=(
                _sha256(metrics.get("model_sha256"), "its model hash")
                if "model_sha256" in told
                else None
            ),
            worker=_word(metrics.get("worker"), "its worker"),
            node=_word(metrics["node"], "its node") if "node" in metrics else None,
            counts=(
                counts_from_metrics(metrics)
                if evaluated and ("counts" in told or "test" in metrics)
                else None
            ),
            model=_word(metrics.get("model"), "its model"),
            lost=_flag(metrics.get("lost"), "its lost"),
            loss=_loss(metrics.get("loss"), "its loss") if "loss" in told else None,
            losses=_numbers(metrics, "losses", _loss) if "losses" in told else None,
            other_accuracies=_of_predictors(metrics) if "other_accuracies" in told else {},
            flops_by_phase=(
                _numbers(metrics, "flops_by_phase", _operations)
                if "flops_by_phase" in told
                else None
            ),
            seconds=_numbers(
                metrics,
                "seconds",
                lambda value, what: _number(value, what, low=0, high=LARGEST_COUNT),
            ),
            epsilon=(
                _number(metrics["epsilon"], "its epsilon", low=0, high=LARGEST_COUNT)
                if "epsilon" in metrics.keys() & told
                else None
            ),
            withheld=withheld or None,
        )


RULED = {
    **dict.fromkeys((*FIGURES, "counts", "other_accuracies"), "scores"),
    **dict.fromkeys(("loss", "losses"), "losses"),
    # of a client's rows both are functions of n_k
    **dict.fromkeys(("flops_by_phase", "epsilon"), "samples"),
    "columns": "feature-names",
    "confusion": "class-counts",
}
"""By field of a reply, the rule `egress.…` of its site that may withhold it."""


def withheld_in(metrics: Mapping[str, Any]) -> list[str]:
    """The rules by which a site has kept something back from a reply. Raises Refused."""
    found = _json(metrics, WITHHELD, list) if WITHHELD in metrics else []
    if not all(isinstance(rule, str) and len(rule) <= LONGEST_WORD for rule in found):
        raise Refused(f"its withheld are {short(found)}")
    return found[:10]


def taken_in(e: Experiment) -> Set[str]:
    """The fields of a client's report that the server takes in such a run. An ε is taken where it
    is of the client's own records; of whole clients the server itself counts it."""
    everything = {field.name for field in fields(Report)}
    taken = in_the_clear(e, scores_told=True) if e.hides_clients else everything
    return taken if e.noises_gradients else taken - {"epsilon"}


def counts_to_metrics(counts: Counts) -> Config:
    """The whole answer to the instruction to evaluate."""
    return written(counts)


def counts_from_metrics(metrics: Mapping[str, Any]) -> Counts:
    """Raises Refused for impossible ones."""
    found = {}
    for part in ("validation", "test"):
        found[part] = count(metrics.get(part), f"its {part} sample count")
        found[f"{part}_correct"] = count(
            metrics.get(f"{part}_correct"), f"its correct {part} predictions", high=found[part]
        )
    return Counts(
        **found,
        scores=_scores(_json(metrics, "scores", dict)),
        confusion=_confusion(metrics, **found) if "confusion" in metrics else None,
    )


def held_out_to_metrics(rows: Iterable[HeldOutRow]) -> Config:
    """The whole answer to the instruction to adapt."""
    return {HELD_OUT: json.dumps([*rows])}


def held_out_from_metrics(
    metrics: Mapping[str, Any], round: int, client: int, asked: Sequence[str]
) -> list[HeldOutRow]:
    """The lines in a reply, one for each number of samples that was asked for. Raises Refused for
    what cannot be."""
    found = _json(metrics, HELD_OUT, list)
    if len(found) != len(asked) or not all(isinstance(row, dict) for row in found):
        raise Refused(f"its adaptation is {short(found)}")
    rows = []
    for row, size in zip(found, asked, strict=True):
        checked = {
            name: check(row.get(name), f"its {name.replace('_', ' ')}")
            for name, check in _OF_HELD_OUT.items()
        }
        checked |= _scores({name: value for name, value in row.items() if is_score(name)})
        said = {"round": round, "client": client, "asked": size}
        if any(row.get(name) != value for name, value in said.items()):
            raise Refused(f"its adaptation is not what was asked for, but {short(row)}")
        whole = said | checked
        fields = dict.fromkeys((*_HELD_OUT_FIELDS, *whole))  # in their order
        rows.append(cast(HeldOutRow, {name: whole[name] for name in fields if name in whole}))
    return rows


def failure(reason: str, name: str | int = "") -> Config:
    """The answer of a client that could not do what it was told to. name: by which the server knows
    its node, or its client's number, where that was asked who it is."""
    return {_ERROR: reason} if name == "" else {_ERROR: reason, _NAME: name}


def failure_in(metrics: Mapping[str, Any]) -> tuple[str, str | int] | None:
    """Why a client could not do what it was told to, and its node's name or its number, empty where
    it says none; None where it could."""
    name = metrics.get(_NAME, "")
    named = name if type(name) is int else str(name)[:LONGEST_WORD]
    return (str(metrics[_ERROR]), named) if _ERROR in metrics else None


def count(value: Any, what: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
    """The value, if it is an integer in this range. Raises Refused."""
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{what} is {short(value)}; allowed: an integer from {low} to {high}")
    return value


def written(record: Any) -> Config:
    """A record's fields under their names: one inside it by its own fields, and nothing for
    None."""
    said: Config = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            said |= written(value)
        elif value is not None:
            said[field.name] = json.dumps(value) if isinstance(value, list | dict) else value
    return said


def _names(metrics: Mapping[str, Any]) -> list[str]:
    names = _json(metrics, "names", list)
    if not all(isinstance(name, str) for name in names):
        raise Refused(f"its names are {short(names)}")
    return names


def _rounds(config: Mapping[str, Any]) -> list[int]:
    return [count(r, "the instruction's keep") for r in _json(config, "keep", list)]


def _numbers(
    metrics: Mapping[str, Any], name: str, check: Callable[[Any, str], Any]
) -> dict[str, Any]:
    found = _json(metrics, name, dict)
    if len(found) > 100 or any(len(key) > LONGEST_WORD for key in found):
        raise Refused(f"its {name} are {short(found)}")
    return {key: check(value, f"its {name}[{short(key)[1:-1]}]") for key, value in found.items()}


def _of_predictors(metrics: Mapping[str, Any]) -> dict[str, float]:
    found = _numbers(metrics, "other_accuracies", _share)
    for name in found:
        if not is_predictor(name):
            raise Refused(f"its other_accuracies have {short(name)}; allowed: {PREDICTORS}")
    return found


def _scores(told: Mapping[str, Any]) -> dict[str, float]:
    """Those beside accuracy, by the name in a line; those of decisions have to be there."""
    names = dict.fromkeys((*OF_DECISIONS, *told))
    if wrong := [name for name in names if not is_score(name) or len(name) > LONGEST_WORD]:
        raise Refused(f"its scores have {short(wrong[0])}")
    highest = {name: _LARGEST_LOSS if name.endswith("log_loss") else 1 for name in names}
    return {
        name: _number(told.get(name), f"its {name.replace('_', ' ')}", low=0, high=high)
        for name, high in highest.items()
    }


def _confusion(metrics: Mapping[str, Any], test: int, test_correct: int, **_: int) -> Any:
    """Test samples by true and predicted class, which must add up to what is told beside."""
    found = _json(metrics, "confusion", list)
    if any(type(row) is not list or len(row) != len(found) for row in found):
        raise Refused(f"its confusion is {short(found)}")
    cells = [[count(n, "its confusion") for n in row] for row in found]
    right = sum(row[i] for i, row in enumerate(cells))
    if (sum(map(sum, cells)), right) != (test, test_correct):
        raise Refused(f"its confusion adds up to other samples than its {test}")
    return cells


def _json(metrics: Mapping[str, Any], name: str, kind: type) -> Any:
    try:
        value = json.loads(metrics[name])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Refused(f"its {name} cannot be read ({type(error).__name__})") from None
    if type(value) is not kind:
        raise Refused(f"its {name} are {short(value)}")
    return value


def _number(value: Any, what: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:  # NaN is not
        raise Refused(f"{what} is {short(value)}; allowed: a number from {low:g} to {high:g}")
    return float(value)


def _share(value: Any, what: str) -> float:
    return _number(value, what, low=0, high=1)


def _operations(value: Any, what: str) -> int:
    return count(value, what, high=2**63 - 1)


def _loss(value: Any, what: str) -> float:
    if type(value) in (int, float) and not -_LARGEST_LOSS <= value <= _LARGEST_LOSS:
        raise Diverged(f"{what} is {short(value)}")
    return _number(value, what, low=-_LARGEST_LOSS, high=_LARGEST_LOSS)


def _word(value: Any, what: str, most: int = LONGEST_WORD) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise Refused(f"{what} is {short(value)}")
    return value


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise Refused(f"{what} is {short(value)}; allowed: true or false")
    return value


def _sha256(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise Refused(f"{what} is {short(value)}")
    return value


_HELD_OUT_FIELDS = tuple(HeldOutRow.__annotations__)
_OF_HELD_OUT: dict[str, Callable[[Any, str], Any]] = {
    "model": _word,
    "model_sha256": _sha256,
    **dict.fromkeys(("samples", "test", "visits", "alone_visits"), count),
    **dict.fromkeys(("flops", "alone_flops"), _operations),
    **dict.fromkeys(
        (
            "accuracy",
            "validation_accuracy",
            "alone_accuracy",
            "alone_validation_accuracy",
        ),
        _share,
    ),
}
"""What a held-out client tells of its adaptation, each with its check."""
