"""What a run hides of its clients' updates from its server, and what it does not, one line each;
docs/privacy.md has more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import epsilon, finite
from pfedlora_flwr.features.dp.budget import Budget, told_of_records
from pfedlora_flwr.runs.clear import in_words
from pfedlora_flwr.runs.rows import DP, FailedVisitRow, Privacy, VisitRow

SIMULATED = "a simulation protects nobody: one machine holds every client's data and models"
_PLAIN = "the server reads every client's upload"
_SECURE = (
    (
        "what the sums of a round's updates and scores tell, such as the classes that its clients"
        " hold together, and their mean accuracies"
    ),
    "operations: the clients tell none, and every total here is without theirs",
    (
        "a server that forges clients' keys, registers nodes of its own, repeats a round in another"
        " run, or submits another app"
    ),
    (
        "a client that sends a wrong update: it is hidden from the server too, which can refuse"
        " none for its size"
    ),
    (
        "clients that collude with the server: a third of those that hold shares of a client's"
        " keys, or all but one"
    ),
)


_CHOICES = (
    "dp: choices of keys by what earlier runs on the same data gave, and of when to end or extend"
    " this one by what it gave"
)
_PUBLIC = "dp: weights of encoders and the file of adapter.basis, which are taken to be public"
_NOISED = (
    "dp: who took part and who failed, and why; whether a round was merged",
    "dp: the clients' own models, which are trained without noise, and what they predict",
    "dp: other runs on the same data, those that this one replaced included: they add up",
    _CHOICES,
    _PUBLIC,
    "dp: a client whose software does not clip, for itself; a server that adds no noise",
    "dp: the noise is drawn and added in floating point, so not exactly Gaussian",
)
_SHARED = (
    "dp: the mean and standard deviation of the inputs, which parts of one dataset have from all"
    " clients' data, for models that have none of their own"
)
_MASKED = (
    "dp: a hostile client that shifts the sum to the edge of secagg.clip: whether the round is"
    " refused then tells of the others, without noise"
)
_KEPT = (
    "dp: the uploads that are kept for an audit (audit.uploads), clipped and without noise, for"
    " whoever reads the run's files"
)
_TWICE = (
    "dp: an owner whose node lost its state-path and has another number since: what both numbers"
    " spent adds up"
)
_OF_RECORDS = (
    "dp: n_k, which weighs an upload; neighbours have the same number of records",
    "dp: who failed, and why; accuracies, which are a model's that is trained without noise",
    "dp: the clients' own models, which are trained without noise, and what they predict",
    (
        "dp: several records of one person, whose ε add up, and all that the records of a client"
        " tell together"
    ),
    "dp: noise that a client drew after its last admitted upload: its own account counts it",
    "dp: other runs on the same data, those that this one replaced included: they add up",
    _CHOICES,
    _PUBLIC,
    "dp: noise and sums are computed in floating point, so not exactly Gaussian",
)
_OF_SUMS = (
    "dp: the server, which reads every client's sums before it adds the noise; under masks clients"
    " add it, and fewer honest ones than sums.honest are not enough",
    "dp: n_k; neighbours have zeros in the place of a record; epsilon_replace is for another in it",
    "dp: accuracies, which are of models that have the client's own samples without noise",
    "dp: the clients' own models, their priors and corrections, and what they predict",
    "dp: several records of one person, whose ε add up, and who took part and who failed",
    "dp: other runs on the same data, those that this one replaced included: they add up",
    "dp: the noise is drawn and added in floating point, under masks in their levels, so not"
    " exactly Gaussian",
)
_HELD_OUT = "dp: what held-out clients tell of their adaptation"
_NO_NOISE = "dp.noise is 0: there is clipping, and no differential privacy"


def notes_of(e: Experiment) -> list[str]:
    """What a simulation of `e` is to say of its privacy before it begins, a line each."""
    return [f"{name}: {SIMULATED}" for name in protections(e)]


def read_by_server(told: Privacy) -> str:
    """What the server of a run could read of its clients, by its result."""
    return "a round's sum" if told["secagg"]["enabled"] else "each client's upload"


def protections(e: Experiment) -> list[str]:
    """The keys by which `e` hides something of its clients."""
    on = {"secagg.enabled": e.secagg.enabled, "dp": e.dp.enabled}
    return [name for name, used in on.items() if used]


def privacy_of(
    config: RunConfig,
    spent: Path,
    simulated: bool,
    visits: Iterable[VisitRow | FailedVisitRow] = (),
    *,
    own_data: bool = False,
    uploads_kept: bool = False,
) -> Privacy:
    """The section of `result.json`. spent: the server's record of `dp`. simulated: whether the
    clients were this machine's. visits: the lines of `clients.jsonl`, which tell what records have
    spent. own_data: whether each client has data of its own, and no part of one dataset.
    uploads_kept: whether uploads of earlier rounds lie in the run's directory."""
    e = config.experiment
    on, clear = e.secagg.enabled, f"in the clear: {in_words(e)}"
    return {
        "secagg": {
            "enabled": on,
            "threshold": config.execution.secagg_threshold if on else None,
            "clip": e.secagg.clip if on else None,
        },
        "dp": _dp(e, [*visits], Budget(spent, e)) if e.dp.enabled else None,
        "not_covered": [
            *([SIMULATED] if simulated else []),
            *([*_SECURE, clear] if on else [_PLAIN]),
            *(_not_noised(config, simulated, own_data, uploads_kept) if e.dp.enabled else []),
        ],
    }


def _dp(e: Experiment, visits: Sequence[VisitRow | FailedVisitRow], budget: Budget) -> DP:
    """By the server's account, or of noised gradients as the clients told it: their accounts are
    with them."""
    theirs = e.noises_gradients
    if theirs:
        counts = Counter(row["client"] for row in visits if row["status"] == "ok")
        told = told_of_records(visits)
        spent = max(told.values(), default=math.inf if budget.asked else 0.0)
    else:
        counts = Counter(budget.participations)
        told = {client: budget.epsilon(n) for client, n in sorted(counts.items())}
        spent = budget.epsilon(max(counts.values(), default=0))
    most = max(counts.values(), default=0)
    found: DP = {
        "level": "user" if e.dp.of_users else "record",
        "epsilon": finite(spent),
        "by_client": {str(client): finite(spent) for client, spent in told.items()},
        "delta": e.dp.delta,
        "noise": e.dp.noise if theirs else budget.noise,
        "clip": e.dp.norm,
        "draws": None if theirs else budget.draws,
        "participations_max": most,
        "earlier": budget.earlier,
    }
    if e.noises_sums:
        found["epsilon_replace"] = finite(epsilon(budget.noise / 2, most, e.dp.delta))
    return found


def _not_noised(
    config: RunConfig, simulated: bool, own_data: bool, uploads_kept: bool
) -> list[str]:
    e = config.experiment
    if e.dp.noise == 0:
        return [_NO_NOISE]
    clear, told = [] if simulated else [_TWICE], f"dp: in the clear: {in_words(e)}"
    if e.noises_gradients:
        return [told, *_OF_RECORDS, *clear, *([_HELD_OUT] if e.held_out.clients else [])]
    if e.noises_sums:
        return [told, *_OF_SUMS, *clear, _CHOICES, _PUBLIC]
    server = "the sum of a round's updates" if e.secagg.enabled else "every client's upload"
    if not own_data and e.normalise != "model" and e.data.text_column is None:
        clear += [_SHARED]
    clear += [_KEPT] if uploads_kept or config.execution.audit_uploads else []
    clear += [_HELD_OUT] if e.held_out.clients else []
    clear += [_MASKED] if e.secagg.enabled else [told]
    return [f"dp: the server, which reads {server} before it adds the noise", *clear, *_NOISED]
