"""Canaries beside ε: what a run's noise really hides, against what the accountant says. A lower
bound above ε means that the noise is not what the keys say.

Whole clients: the noise that the run drew is what the released states moved by, less the kept
uploads. A canary is a client whose update is the clip in one number: each number of each round is a
trial of one noised sum (cf. Andrew et al. 2024, arXiv 2302.03098).

Records: a canary is a record with a gradient beyond the clip, among records with none. One visit is
trained with it and without it, many times, by the run's own code and noise."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from pfedlora_flwr.audit.measure import Floats
from pfedlora_flwr.audit.seen import Seen
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.private import clipped_sum, train
from pfedlora_flwr.rng import torch_generator
from pfedlora_flwr.runs.accountant import finite
from pfedlora_flwr.runs.audits import DPAudit
from pfedlora_flwr.runs.budget import Budget
from pfedlora_flwr.runs.spent import Spent
from pfedlora_flwr.training.loop import Noise, Samples, Visit

_DOUBT = 0.001
"""The probability that a lower bound lies above the true ε."""
_THRESHOLDS = 20
_STEPS = 10_000
"""Of all trials of one kind together, about."""
_LEAST, _MOST = 100, 500
"""Trials of one kind."""
_BEYOND = 4.0
"""The norm of a canary's gradient before it is clipped, in clips."""


def audit_dp(seen: Seen, notes: list[str]) -> DPAudit | None:
    """The lower bound beside ε; None for a run without dp, or of which too little is left.

    notes: gets a line that says what is missing."""
    e = seen.experiment
    if e.dp_of_records:
        return _of_records(seen, notes)
    return _of_users(seen, notes) if e.dp_of_users else None


def lower_bound(thresholds: Floats, there: Floats, away: Floats, delta: float) -> float:
    """ε that scores with a canary and without one show, at 99.9 % confidence; 0 if they show none:
    the best of the thresholds, each with the Clopper–Pearson limits of its true and false positives
    (Jagielski et al. 2020, arXiv 2006.07709).

    thresholds: chosen without these scores."""
    found, level = 0.0, _DOUBT / len(thresholds) / 2
    for threshold in thresholds:
        hits, alarms = int((there > threshold).sum()), int((away > threshold).sum())
        true = stats.beta.ppf(level, hits, len(there) - hits + 1) if hits else 0.0
        false = (
            stats.beta.ppf(1 - level, alarms + 1, len(away) - alarms) if alarms < len(away) else 1.0
        )
        if true > delta:
            found = max(found, math.log((true - delta) / false))
    return found


def _of_users(seen: Seen, notes: list[str]) -> DPAudit | None:
    e, method = seen.experiment, seen.method
    assert e.dp_clip is not None
    if seen.source != "uploads":
        notes.append("canaries: uploads were not kept (audit.uploads), so no noise can be told")
        return None
    drawn = []
    for round in map(seen.round, seen.numbers):
        assert round.upload is not None
        before = _vector(method.renewed(round.before, round.number))
        after = _vector(method.renewed(round.after, round.number))
        sent = [_vector(round.upload(client).tensors) - before for client in round.clients]
        drawn.append((e.sampled * (after - before) - np.sum(sent, 0)) / e.dp_clip)
    away, budget = np.concatenate(drawn), Budget(seen.run.dp_file, e)
    thresholds = 1 + budget.noise * np.linspace(-2, 3, _THRESHOLDS)
    return {
        "level": "user",
        "steps": 1,
        "epsilon": finite(budget.epsilon(1)),
        "lower": lower_bound(thresholds, away + 1, away, e.dp_delta),
        "trials": len(away),
    }


def _of_records(seen: Seen, notes: list[str]) -> DPAudit | None:
    e, method = seen.experiment, seen.method
    assert isinstance(method, PFedLoRA)
    assert e.dp_clip is not None
    client = seen.clients(seen.numbers[-1])[0]
    n, epochs = len(seen.data(client).train), method.record_epochs(e)
    spent = Spent(seen.run.client_store(client).folder, e, client, n, epochs)
    if not spent.visits:
        notes.append(f"canaries: the account of client {client} is not here (clients/K/dp.json)")
        return None
    model, state = method.initial_model(client), seen.round(seen.numbers[0]).before
    assert isinstance(model, ClientModel)
    first = method.loaded(model, state)
    noise, lr = Noise(spent.noise, e.dp_clip), method.adapter_rate(e)

    def trained(data: Samples) -> Tensors:
        adapter = copy.deepcopy(first)
        visit = Visit(e, client, 1, torch_generator(e.seed, "audit/canary"))
        train(visit, adapter, data, noise, epochs, lr)
        return method.sent(adapter)

    nobody = Samples(torch.full((n, model.width), math.nan), torch.zeros(n, dtype=torch.int64))
    canary, along = _canary(method, first, e.dp_clip)
    among = Samples(nobody.inputs.clone(), nobody.labels)
    among.inputs[0] = canary
    start = _vector(state)

    def scores(data: Samples, count: int) -> Floats:
        return np.array([(_vector(trained(data)) - start) @ along for _ in range(count)])

    trials = min(_MOST, max(_LEAST, _STEPS // spent.steps))
    chosen = np.quantile(scores(among, _LEAST), np.linspace(0.02, 0.98, _THRESHOLDS))
    return {
        "level": "record",
        "steps": spent.steps,
        "epsilon": finite(spent.of_visits(1)),
        "lower": lower_bound(chosen, scores(among, trials), scores(nobody, trials), e.dp_delta),
        "trials": trials,
    }


def _canary(method: PFedLoRA, adapter: Adapter, clip: float) -> tuple[Tensor, Floats]:
    """A representation [width] whose gradient for class 0 is longer than the clip, and the unit
    vector against that gradient, along which it moves what is sent."""
    towards = adapter.down.weight.detach()[0]
    label = torch.zeros(1, dtype=torch.int64)
    for size in 2.0 ** np.arange(-10, 40):
        found = (size * towards)[None]
        sums = clipped_sum(adapter, found, label, math.inf)
        gradient = _vector({name: sums[name] for name in method.sent(adapter)})
        if np.linalg.norm(gradient) >= _BEYOND * clip:
            break
    return found[0], -gradient / np.linalg.norm(gradient)


def _vector(tensors: Tensors) -> Floats:
    return torch.cat([t.detach().double().flatten() for t in tensors.values()]).numpy()
