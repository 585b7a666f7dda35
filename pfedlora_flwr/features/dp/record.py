"""What differential privacy has spent of a run and what it does not cover, for `result.json`;
docs/privacy.md has more."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import epsilon, finite
from pfedlora_flwr.features.dp.budget import (
    FILE,
    Budget,
    counts_on,
    file_of,
    read,
    replaced,
    spent_by_lines,
    told_of_records,
)
from pfedlora_flwr.features.record import Record
from pfedlora_flwr.files import from_json, write_atomically
from pfedlora_flwr.runs.clear import in_words
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.rows import DP

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
_NO_NOISE = "dp.noise is 0: there is clipping, and no differential privacy"


class Account(Record):
    """The record, as what is kept of a run."""

    outlives = FILE

    def outliving(self, run: RunFiles, e: Experiment | None) -> bytes | None:
        return replaced(file_of(run), spent_by_lines(e, run.visits()) if e else None)

    def carry(self, old: RunFiles, was: Experiment, run: RunFiles, e: Experiment) -> None:
        """It counts on where the noise is the same, and else lists what the other has spent."""
        path, here = file_of(old), file_of(run)
        before = read(here).get("earlier", [])
        if counts_on(was, e) and path.exists():
            record = read(path) | {"fingerprint": e.fingerprint()}
        else:
            record = from_json(self.outliving(old, was) or b"{}")
        earlier = [*before, *record.get("earlier", [])]
        if earlier or record:
            write_atomically(here, json.dumps(record | {"earlier": earlier}).encode())

    def check_whole(self, run: RunFiles, e: Experiment) -> None:
        if not e.noises_rounds:
            return
        path = file_of(run)
        if not path.exists():
            raise UserError(
                f"{path} is missing, which counts what was spent of the clients' privacy; restore"
                " it, or start a new run"
            )
        counted = read(path).get("participations", {})
        admitted = (row for row in run.visits() if row["status"] == "ok")
        told = Counter(row["client"] for row in admitted if e.releases(row["round"]))
        for client, rounds in sorted(told.items()):
            if (found := counted.get(str(client), 0)) < rounds:
                raise UserError(
                    f"{path} counts client {client} in {found} noised sums, and clients.jsonl in"
                    f" {rounds}: it is an older copy; restore the last one, or start a new run"
                )

    def check_extension(self, run: RunFiles, saved: Experiment, wanted: Experiment) -> None:
        """Raises UserError if it would exceed `dp.epsilon`."""
        if saved.dp.epsilon is None or wanted.rounds == saved.rounds:
            return
        if saved.noises_gradients:
            raise UserError(
                f"rounds is {wanted.rounds}; with dp.level=record and dp.epsilon each client has"
                f" noise for the planned rounds, {saved.rounds}: a run cannot be extended; start a"
                " new one"
            )
        path = file_of(run)
        found = path.exists() and Budget(path, saved).beyond_with(wanted.rounds, run.last_round())
        if found:
            raise UserError(
                f"rounds is {wanted.rounds}; they would bring ε to {found:.4g}, dp.epsilon is"
                f" {saved.dp.epsilon:g}: a run cannot be extended beyond it; start a new one"
            )

    def is_void(self, run: RunFiles) -> bool:
        return not read(file_of(run)).keys() & {"participations", "asked"}


def section(e: Experiment, run: RunFiles) -> DP | None:
    """By the server's account, or of noised gradients as the clients told it: their accounts are
    with them."""
    if not e.dp.enabled:
        return None
    theirs, budget = e.noises_gradients, Budget(file_of(run), e)
    if theirs:
        visits = [*run.visits()]
        counts = Counter(row["client"] for row in visits if row["status"] == "ok")
        told = told_of_records(visits)
        spent = max(told.values(), default=math.inf if budget.asked else 0.0)
    else:
        counts = budget.participations
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


def line(told: DP) -> str:
    """What was spent, for the end of a run."""
    whose = "a client" if told["level"] == "user" else "a training record"
    spent = "infinite" if told["epsilon"] is None else f"{told['epsilon']:.4g}"
    earlier = "; what earlier runs here spent adds to it" if told["earlier"] else ""
    if any(run.get("noise") == 0 for run in told["earlier"]):
        earlier += ", which is infinite: one had no noise"
    return f"dp: ε of {whose} is {spent} at δ = {told['delta']:g}{earlier}"


def not_covered(e: Experiment, others: Sequence[str], run: RunFiles, *, one_sum: bool) -> list[str]:
    """What can still be learned, a line each. others: what other features let be. one_sum: whether
    the server reads no single upload."""
    if not e.dp.enabled:
        return []
    if e.dp.noise == 0:
        return [_NO_NOISE]
    others = [f"dp: {line}" for line in others]
    clear, told = [] if run.clients.is_dir() else [_TWICE], f"dp: in the clear: {in_words(e)}"
    if e.noises_gradients:
        return [told, *_OF_RECORDS, *clear, *others]
    if e.noises_sums:
        return [told, *_OF_SUMS, *clear, _CHOICES, _PUBLIC]
    server = "the sum of a round's updates" if one_sum else "every client's upload"
    if run.partition != OWN and e.normalise != "model" and e.data.text_column is None:
        clear += [_SHARED]
    clear += [*others, *([] if one_sum else [told])]
    return [f"dp: the server, which reads {server} before it adds the noise", *clear, *_NOISED]
