"""The messages between server and clients: every key, and which statements of a stranger are
believed.

A key is the name of a field here; lists and dictionaries travel as JSON. Who a node says it is, is
in `claim.py`. How Flower's records carry all this is `wire.py`'s matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, cast

from pfedlora_flwr.errors import UserError, short
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import from_json
from pfedlora_flwr.methods.method import PREDICTORS, Diverged, Refused, is_predictor
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.clear import FIGURES, in_the_clear
from pfedlora_flwr.runs.rows import AdaptedRow
from pfedlora_flwr.training.metrics import OF_DECISIONS, is_score

Config = dict[str, bool | bytes | float | int | str]
Check = Callable[[Any, str], Any]
"""Of what a stranger says, with what that is, in words. Raises Refused."""
LARGEST_COUNT = 10**9
"""Samples that an evaluation may claim to have seen."""
_LARGEST_LOSS = 1e30
LONGEST_WORD = 200
"""Characters of a name that a client tells."""
ADAPTED, WITHHELD = "held_out", "withheld"
"""The keys of adapted clients' lines, and of what a site's policy keeps back."""
_ERROR, _NAME = "error", "name"
DATA, ANCHORS = "data", "anchors"
"""The keys of what the dataset is known by, in an instruction and in the question who a node is,
and there of the file of anchors."""


def folder_name(token: str) -> str:
    """The run's name as the server gives it. Raises UserError for one that could lead out of the
    folder in which it names one."""
    if not token.isalnum():
        raise UserError(f"the server names its run {token!r}, which is no folder's name")
    return token


def count(value: Any, what: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
    """The value, if it is an integer in this range. Raises Refused."""
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{what} is {short(value)}; allowed: an integer from {low} to {high}")
    return value


def _json(value: Any, what: str, kind: type) -> Any:
    try:
        found = from_json(value)
    except (TypeError, ValueError) as error:
        raise Refused(f"{what} cannot be read ({type(error).__name__})") from None
    if type(found) is not kind:
        raise Refused(f"{what} are {short(found)}")
    return found


def _names(value: Any, what: str) -> list[str]:
    names = _json(value, what, list)
    if not all(isinstance(name, str) for name in names):
        raise Refused(f"{what} are {short(names)}")
    return names


def _rounds(value: Any, what: str) -> list[int]:
    return [count(r, what) for r in _json(value, what, list)]


def _each(check: Check) -> Check:
    """Of a dictionary, each value by `check`."""

    def checked(value: Any, what: str) -> dict[str, Any]:
        found = _json(value, what, dict)
        if len(found) > 100 or any(len(key) > LONGEST_WORD for key in found):
            raise Refused(f"{what} are {short(found)}")
        return {key: check(one, f"{what}[{short(key)[1:-1]}]") for key, one in found.items()}

    return checked


def _of_predictors(value: Any, what: str) -> dict[str, float]:
    found = _each(_share)(value, what)
    for name in found:
        if not is_predictor(name):
            raise Refused(f"{what} have {short(name)}; allowed: {PREDICTORS}")
    return found


def _number(value: Any, what: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:  # NaN is not
        raise Refused(f"{what} is {short(value)}; allowed: a number from {low:g} to {high:g}")
    return float(value)


_share: Check = partial(_number, low=0, high=1)
_large: Check = partial(_number, low=0, high=LARGEST_COUNT)
_operations: Check = partial(count, high=2**63 - 1)


def _loss(value: Any, what: str) -> float:
    if type(value) in (int, float) and not -_LARGEST_LOSS <= value <= _LARGEST_LOSS:
        raise Diverged(f"{what} is {short(value)}")
    return _number(value, what, low=-_LARGEST_LOSS, high=_LARGEST_LOSS)


def _word(value: Any, what: str, most: int = LONGEST_WORD) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise Refused(f"{what} is {short(value)}")
    return value


_path: Check = partial(_word, most=4096)


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise Refused(f"{what} is {short(value)}; allowed: true or false")
    return value


def _sha256(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise Refused(f"{what} is {short(value)}")
    return value


def _said(check: Check, words: str = "", *, optional: bool = False) -> Any:
    """A field that a stranger tells, and its check. words: in the place of its name. optional:
    whether it may be absent."""
    return field(default=None, metadata={"check": check, "words": words, "optional": optional})


def _taken(
    record: type, said: Mapping[str, Any], whose: str, told: Set[str] | None = None
) -> dict[str, Any]:
    """The fields of a record in what was said, each checked. told: those that are taken; None:
    all."""
    return {
        part.name: how["check"](said.get(part.name), f"{whose} {how['words'] or part.name}")
        for part in fields(record)
        if (how := part.metadata)
        and (told is None or part.name in told)
        and (part.name in said or not how["optional"])
    }


@dataclass(frozen=True)
class Instruction:
    """What the server tells a client.

    version: the round whose model it is to take up, 0 for its initial one. token: the run's name on
    a node's disk. run: the run's directory, where a simulated client keeps its model. evaluate:
    whether to evaluate after training. names: of the tensors that come with it. adapt: true where
    it is held out, and adapted in the place of an evaluation; else not said. origin: the name of
    the run that this version is of, if it is another one. renewed: true where the version is of a
    run from which this one began (`start-from`). keep: versions that the client keeps for good.
    data: what the dataset is known by that the clients share, if they do (`Site.data`)."""

    round: int = _said(count)
    client: int = _said(count)
    version: int = _said(count)
    token: str = _said(_word)
    run: str = _said(_path)
    evaluate: bool = _said(_flag)
    names: list[str] = _said(_names)
    adapt: bool | None = _said(_flag, optional=True)
    origin: str | None = _said(_word, optional=True)
    renewed: bool | None = _said(_flag, optional=True)
    keep: list[int] | None = _said(_rounds, optional=True)
    data: str | None = _said(_word, optional=True)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Instruction:
        """Raises Refused for one that no server of ours gives."""
        return cls(**_taken(cls, config, "the instruction's"))


@dataclass(frozen=True, kw_only=True)
class Report:
    """A client's account of its visit.

    names: of the tensors that come with it. model_sha256: of the version it has saved; not told
    with dp. worker: the process, or its lane, that it ran in.
    node: Ray's name of the host's part in its cluster; None if there is no Ray. counts: of its
    evaluation; None where it was not told to evaluate. The other fields are those of a `VisitRow`.
    Under masks and with `dp` a client tells what is `in_the_clear` alone, and the rest is None.
    Whoever adds a field here decides there.
    epsilon: what its records have spent so far; None where that is infinite, or not counted.
    withheld: the rules `egress.…` of its site by which it has kept something back."""

    round: int = _said(count)
    client: int = _said(count)
    names: list[str] = _said(_names)
    model_sha256: str | None = _said(_sha256, "model hash")
    worker: str = _said(_word)
    node: str | None = _said(_word, optional=True)
    counts: Counts | None = None
    model: str = _said(_word)
    lost: bool = _said(_flag)
    loss: float | None = _said(_loss)
    losses: dict[str, float] | None = _said(_each(_loss))
    other_accuracies: dict[str, float] = _said(_of_predictors)
    flops_by_phase: dict[str, int] | None = _said(_each(_operations))
    seconds: dict[str, float] = _said(_each(_large))
    epsilon: float | None = _said(_large, optional=True)
    withheld: list[str] | None = None

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any], evaluated: bool, told: Set[str]) -> Report:
        """The report in a reply, with its counts where it was told to evaluate. Raises Refused for
        what cannot be.

        told: the fields that are taken, whatever else is there.
        """
        withheld = withheld_in(metrics)
        told = {field for field in told if RULED.get(field) not in withheld}
        taken = {"other_accuracies": {}} | _taken(cls, metrics, "its", told)
        if evaluated and ("counts" in told or "test" in metrics):
            taken["counts"] = counts_from_metrics(metrics)
        return cls(**taken, withheld=withheld or None)


RULED = {
    **dict.fromkeys((*FIGURES, "counts", "other_accuracies"), "scores"),
    **dict.fromkeys(("loss", "losses"), "losses"),
    "columns": "feature-names",
    "confusion": "class-counts",
}
"""By field of a reply, the rule `egress.…` of its site that may withhold it."""


def withheld_in(metrics: Mapping[str, Any]) -> list[str]:
    """The rules by which a site has kept something back from a reply. Raises Refused."""
    found = _json(metrics.get(WITHHELD, "[]"), f"its {WITHHELD}", list)
    if not all(isinstance(rule, str) and len(rule) <= LONGEST_WORD for rule in found):
        raise Refused(f"its withheld are {short(found)}")
    return found[:10]


def taken_in(e: Experiment) -> Set[str]:
    """The fields of a client's report that the server takes in such a run. An ε is taken where it
    is of the client's own records; of whole clients the server itself counts it."""
    everything = {part.name for part in fields(Report)}
    taken = in_the_clear(e, scores_told=True) if e.hides_clients else everything
    return taken if e.noises_gradients else taken - {"epsilon"}


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
        scores=_scores(
            _json(metrics.get("scores"), "its scores", dict),
            () if RULED["confusion"] in withheld_in(metrics) else OF_DECISIONS,
        ),
        confusion=_confusion(metrics, **found) if "confusion" in metrics else None,
    )


def adapted_to_metrics(rows: Iterable[AdaptedRow]) -> Config:
    """The whole answer to the instruction to adapt."""
    return {ADAPTED: json.dumps([*rows])}


def adapted_from_metrics(
    metrics: Mapping[str, Any], round: int, client: int, asked: Sequence[str]
) -> list[AdaptedRow]:
    """The lines in a reply, one for each number of samples that was asked for. Raises Refused for
    what cannot be."""
    found = _json(metrics.get(ADAPTED), f"its {ADAPTED}", list)
    if len(found) != len(asked) or not all(isinstance(row, dict) for row in found):
        raise Refused(f"its adaptation is {short(found)}")
    rows = []
    for row, size in zip(found, asked, strict=True):
        checked = {
            name: check(row.get(name), f"its {name.replace('_', ' ')}")
            for name, check in _OF_ADAPTED.items()
        }
        checked |= _scores({name: value for name, value in row.items() if is_score(name)})
        said = {"round": round, "client": client, "asked": size}
        if any(row.get(name) != value for name, value in said.items()):
            raise Refused(f"its adaptation is not what was asked for, but {short(row)}")
        whole = said | checked
        fields = dict.fromkeys((*_ADAPTED_FIELDS, *whole))  # in their order
        rows.append(cast(AdaptedRow, {name: whole[name] for name in fields if name in whole}))
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


def written(record: Any) -> Config:
    """A record's fields under their names: one inside it by its own fields, and nothing for
    None."""
    said: Config = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if is_dataclass(value):
            said |= written(value)
        elif value is not None:
            said[part.name] = json.dumps(value) if isinstance(value, list | dict) else value
    return said


def _scores(told: Mapping[str, Any], there: Sequence[str] = OF_DECISIONS) -> dict[str, float]:
    """Those beside accuracy, by the name in a line. there: those that have to be."""
    names = dict.fromkeys((*there, *told))
    if wrong := [name for name in names if not is_score(name) or len(name) > LONGEST_WORD]:
        raise Refused(f"its scores have {short(wrong[0])}")
    highest = {name: _LARGEST_LOSS if name.endswith("log_loss") else 1 for name in names}
    return {
        name: _number(told.get(name), f"its {name.replace('_', ' ')}", low=0, high=high)
        for name, high in highest.items()
    }


def _confusion(metrics: Mapping[str, Any], test: int, test_correct: int, **_: int) -> Any:
    """Test samples by true and predicted class, which must add up to what is told beside."""
    found = _json(metrics["confusion"], "its confusion", list)
    if any(type(row) is not list or len(row) != len(found) for row in found):
        raise Refused(f"its confusion is {short(found)}")
    cells = [[count(n, "its confusion") for n in row] for row in found]
    right = sum(row[i] for i, row in enumerate(cells))
    if (sum(map(sum, cells)), right) != (test, test_correct):
        raise Refused(f"its confusion adds up to other samples than its {test}")
    return cells


_ADAPTED_FIELDS = tuple(AdaptedRow.__annotations__)
_WHOSE = "", "validation_", "alone_", "alone_validation_"
_OF_ADAPTED: dict[str, Check] = {
    "model": _word,
    "model_sha256": _sha256,
    **dict.fromkeys(("samples", "test", "visits", "alone_visits"), count),
    **dict.fromkeys(("flops", "alone_flops"), _operations),
    **dict.fromkeys((f"{whose}accuracy" for whose in _WHOSE), _share),
}
"""What an adapted client tells of its adaptation, each with its check."""
