"""The file `audit.json`, field by field, and its reader."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import from_json


class Attack(TypedDict):
    """How well a score separates positives from negatives in `pfedlora audit`."""

    auc: float  # area under the ROC curve: 0.5 reveals nothing, 1 everything
    # the true-positive rate at a false-positive rate of at most 1 %; with fewer than 100 negatives
    # at no false positive
    tpr_at_1pct: float
    # lower end of the 95 % interval of `auc` over clients; null for what is read from a
    # sum, and with fewer than 5 clients
    low: float | None
    high: float | None  # its upper end
    # scored pairs of a client and a class that it holds, or samples that were trained on
    positives: NotRequired[int]
    negatives: NotRequired[int]  # the others


class BestAttack(Attack):
    """The attack with the largest `auc`: a choice that favours the attacker."""

    attack: str  # its name, as in `attacks`


class ClassAudit(TypedDict):
    """Which classes does a client hold? Each pair of a client and a class has a score, in every
    audited round."""

    # the scored tensors, which have one row per class, or `classes` if uploads name them; null:
    # there are none
    layer: str | None
    # from each client's upload; null if there is no such layer, uploads were not kept or every
    # client holds every class
    upload: BestAttack | None
    # from the server's aggregate of all uploads, in which every client has the same score; null if
    # it has no such layer
    sum: BestAttack | None
    # by score, for the uploads (for the sum if uploads were not kept): `bias`, `row norm`, `named`
    attacks: dict[str, Attack]
    # by round, then by attack: the AUC in that round, for uploads, and for the sum as `sum, ATTACK`
    rounds: dict[str, dict[str, float]]


class MembershipAudit(BestAttack):
    """Was a sample trained on? A client's training part is compared with its validation and test
    part, at most 1000 samples of either."""

    # the target: each client's last upload, or the server's aggregate of the last round
    of: Literal["upload", "sum"]
    # by score (`loss`, its `fall`) and, if an encoder is needed, by its owner: `initial`,
    # `another client's`
    attacks: dict[str, Attack]
    # with the client's own encoder, which never leaves it; null if none is needed, it is frozen (as
    # the initial one) or it is not available
    bound: BestAttack | None
    bounds: dict[str, Attack]  # all of these, by score


class DPAudit(TypedDict):
    """Canaries compared with ε: a lower bound of what they show, at 99.9 % confidence, and the
    accountant's upper bound for the same; and the drawn noise compared with z."""

    level: Literal["user", "record"]
    # noised steps of one trial: for user one noised sum, for record one visit of a client
    steps: int
    epsilon: float | None  # the upper bound for that; null if infinite
    lower: float  # above `epsilon` the noise is not what the keys say
    # the largest `lower` that so many trials can show; below `epsilon` they show nothing
    ceiling: float
    trials: int  # with a canary
    numbers: int  # without one: drawn numbers, each of which is a trial
    # the standard deviation of the drawn noise, 1 if it is what the keys say; null without noise,
    # or if it is finer than the tensors' type
    deviation: float | None
    # the probability that honest noise is as small: below 1e-6 the noise is not what the keys say,
    # and `deviation` is that of its smallest part
    chance: float


class Audit(TypedDict):
    """`audit.json`, by `pfedlora audit`: what the server can learn about single clients.
    docs/audit.md explains it."""

    format: int  # version of the file layout: 3
    method: str
    # whether the kept uploads (`audit.uploads`) were audited, or only the last two checkpoints
    source: Literal["uploads", "sum"]
    rounds: list[int]  # the audited rounds, ascending
    clients: int  # clients that sent anything in them
    classes: ClassAudit
    # null if the uploads make no prediction, or no client has a class both in its training and in
    # its held-out part
    membership: MembershipAudit | None
    dp: NotRequired[DPAudit]  # with dp, if enough of the run is left
    notes: list[str]  # what could not be audited and why, one line each


_ALWAYS = tuple(name for name in Audit.__annotations__ if name != "dp")


def read_audit(path: Path) -> Audit | None:
    """What `pfedlora audit` found, or None where it was not asked. Raises UserError for a file that
    is none."""
    advice = "remove it, and pfedlora audit makes it anew"
    try:
        found = from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as an audit ({error}); {advice}") from None
    lacks = [name for name in _ALWAYS if name not in (found if isinstance(found, dict) else ())]
    if lacks:
        raise UserError(f"{path} lacks {', '.join(lacks)}; {advice}")
    return found
