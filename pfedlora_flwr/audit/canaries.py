"""Canaries beside ε: what a run's noise really hides, against what the accountant says; and the
drawn noise beside z. A lower bound above ε, or too little noise, means that the noise is not what
the keys say.

Whole clients: the noise that the run drew is what the released states moved by, less the kept
uploads. A canary is a client whose update is the clip in one number: each number of each round is a
trial of one noised sum (cf. Andrew et al. 2024, arXiv 2302.03098).

Records: a canary is a record with a gradient beyond the clip, among records with none. Visits are
trained with it and without it, by the run's own code and noise, in plain steps: momentum and what
else comes after the noise is public. Without it each number of a visit is a sum of draws."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from pfedlora_flwr.audit.measure import Floats
from pfedlora_flwr.audit.seen import Seen
from pfedlora_flwr.features.dp.accountant import finite
from pfedlora_flwr.features.dp.budget import Budget
from pfedlora_flwr.features.dp.spent import Spent
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.private import clipped_sum, parts_of, train
from pfedlora_flwr.rng import torch_generator
from pfedlora_flwr.runs.audits import DPAudit
from pfedlora_flwr.training.loop import Noise, Samples, Visit

_DOUBT = 0.001
"""The probability that a lower bound lies above the true ε."""
RARE = 1e-6
"""The probability below which noise so small is not what the keys say."""
_THRESHOLDS = 20
_STEPS = 5_000
"""Of all visits of one kind together, about."""
_CHOOSING, _LEAST, _MOST = 50, 100, 200
"""Visits with a canary: for the thresholds, and those that count."""
_NUMBERS = 5_000
"""Drawn without one, at least."""
_ENOUGH = 30.0
"""So many times e^ε of them show more than ε."""
_FINE = 0.05
"""A number is tested if its rounding is below so many standard deviations of its noise."""
_BEYOND = 4.0
"""The norm of a canary's gradient before it is clipped, in clips."""


def audit_dp(seen: Seen, notes: list[str]) -> DPAudit | None:
    """The lower bound beside ε; None for a run without dp, or of which too little is left.

    notes: gets a line that says what is missing."""
    e = seen.experiment
    if e.noises_gradients:
        return _of_records(seen, notes)
    return _of_rounds(seen, notes) if e.noises_rounds else None


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


def ceiling(there: int, away: int, delta: float) -> float:
    """The largest lower bound that so many trials can show: every canary is found, with no false
    alarm."""
    return lower_bound(np.full(_THRESHOLDS, 0.5), np.ones(there), np.zeros(away), delta)


def beside_normal(drawn: Sequence[Mapping[str, Floats]]) -> tuple[float, float]:
    """The standard deviation of draws that should be standard normal, and the probability that
    honest ones are anywhere as small: χ² tests with Bonferroni's correction, of all, of each
    tensor, and of differences, which a draw that is used twice makes small. Where that is below
    RARE, the deviation is that of the smallest.

    drawn: by tensor, for each release; NaN: not known."""
    single = [x for row in drawn for x in row.values()]
    parts = [np.concatenate(single), *single]
    parts += [(x[: x.size // 2 * 2 : 2] - x[1::2]) / 2**0.5 for x in single]
    parts += [(a[n] - b[n]) / 2**0.5 for a, b in pairwise(drawn) for n in a if n in b]
    parts = [known for x in parts if (known := x[np.isfinite(x)]).size]
    if not parts:
        return math.nan, 1.0
    chances = [stats.chi2.cdf((x**2).sum(), x.size) * len(parts) for x in parts]
    least = int(np.argmin(chances))
    shown = parts[least if chances[least] < RARE else 0]
    return float((shown**2).mean() ** 0.5), float(min(1.0, chances[least]))


def _found(
    level: str,
    steps: int,
    epsilon: float,
    scores: tuple[Floats, Floats, Floats],
    drawn: Sequence[Mapping[str, Floats]] | None,
    delta: float,
) -> DPAudit:
    """scores: thresholds, with a canary, without one. drawn: None where there is no noise."""
    thresholds, there, away = scores
    deviation, chance = beside_normal(drawn) if drawn else (math.nan, 1.0)
    return {
        "level": "user" if level == "user" else "record",
        "steps": steps,
        "epsilon": finite(epsilon),
        "lower": lower_bound(thresholds, there, away, delta),
        "ceiling": ceiling(len(there), len(away), delta),
        "trials": len(there),
        "numbers": len(away),
        "deviation": finite(deviation),
        "chance": chance,
    }


def _of_rounds(seen: Seen, notes: list[str]) -> DPAudit | None:
    e, method = seen.experiment, seen.method
    if seen.source != "uploads":
        notes.append("canaries: uploads were not kept (audit.uploads), so no noise can be told")
        return None
    away, drawn, budget = [], [], Budget(seen.run.dp_file, e)
    z = budget.noise
    k = 1 if method.adds else e.sampled  # by which a sum is divided
    for round in map(seen.round, filter(e.releases, seen.numbers)):
        assert round.upload is not None
        before = method.renewed(round.before, round.number)
        after = method.renewed(round.after, round.number)
        uploads = [round.upload(client).tensors for client in round.clients]
        row = {}
        for name, tensor in after.items():
            start = _array(before[name])
            sent = np.sum([_array(upload[name]) - start for upload in uploads], 0)
            noise = (k * (_array(tensor) - start) - sent) / e.dp.norm
            away.append(noise)
            rounding = np.abs(_array(tensor)) * torch.finfo(tensor.dtype).eps / 2
            coarse = k * rounding > _FINE * z * e.dp.norm
            row[name] = np.where(coarse, math.nan, noise / (z or math.nan))
        drawn.append(row)
    every = np.concatenate(away)
    thresholds = 1 + z * np.linspace(-2, 3, _THRESHOLDS)
    scores = thresholds, every + 1, every
    return _found(e.dp.level, 1, budget.epsilon(1), scores, drawn if z else None, e.dp.delta)


def _of_records(seen: Seen, notes: list[str]) -> DPAudit | None:
    e, method = seen.experiment, seen.method
    assert isinstance(method, PFedLoRA)
    client = seen.clients(seen.numbers[-1])[0]
    n, epochs = len(seen.data(client).train), method.record_epochs(e)
    spent = Spent(seen.run.client_store(client).folder, e, client, n, epochs)
    if not spent.visits:
        notes.append(f"canaries: the account of client {client} is not here (clients/K/dp.json)")
        return None
    model, state = method.initial_model(client), seen.round(seen.numbers[0]).before
    assert isinstance(model, ClientModel)
    first = method.loaded(model, state).double()  # what is drawn is not rounded
    noise, lr = Noise(spent.noise, e.dp.norm), method.adapter_rate(e)
    plain = e.replace(optimizer="sgd", momentum=0.0, weight_decay=0.0, clip_norm=0.0)
    start = method.sent(first)
    unit = lr * e.dp.norm * parts_of(n, e.batch_size) / n  # by which a clipped record moves it

    def moved(data: Samples) -> dict[str, Floats]:
        adapter = copy.deepcopy(first)
        visit = Visit(plain, client, 1, torch_generator(e.seed, "audit/canary"))
        train(visit, adapter, data, noise, epochs, lr)
        return {k: (_array(t) - _array(start[k])) / unit for k, t in method.sent(adapter).items()}

    nobody = Samples(torch.full((n, model.width), math.nan), torch.zeros(n, dtype=torch.int64))
    canary, along = _canary(method, first, e.dp.norm)
    among = Samples(nobody.inputs.clone(), nobody.labels)
    among.inputs[0] = canary

    def scores(count: int) -> Floats:
        return np.array([_joined(moved(among)) @ along for _ in range(count)])

    visits, epsilon = _STEPS // spent.steps, spent.of_visits(1)
    chosen = np.quantile(scores(_CHOOSING), np.linspace(0.02, 0.98, _THRESHOLDS))
    wanted = max(_NUMBERS, _ENOUGH * math.exp(min(epsilon, 20.0)))
    alone = [moved(nobody) for _ in range(max(2, min(visits, math.ceil(wanted / len(along)))))]
    size = noise.z * spent.steps**0.5
    drawn = [{name: x / size for name, x in row.items()} for row in alone] if size else None
    # noise is as large in every direction: each number is a trial
    trials = scores(min(_MOST, max(_LEAST, visits))), np.concatenate([*map(_joined, alone)])
    return _found("record", spent.steps, epsilon, (chosen, *trials), drawn, e.dp.delta)


def _canary(method: PFedLoRA, adapter: Adapter, clip: float) -> tuple[Tensor, Floats]:
    """A representation [width] whose gradient for class 0 is longer than the clip, and the unit
    vector against that gradient, along which it moves what is sent."""
    towards = adapter.down.weight.detach()[0]
    label = torch.zeros(1, dtype=torch.int64)
    for size in 2.0 ** np.arange(-10, 40):
        found = (size * towards)[None]
        sums = clipped_sum(adapter, found, label, math.inf)
        gradient = _joined({name: _array(sums[name]) for name in method.sent(adapter)})
        if np.linalg.norm(gradient) >= _BEYOND * clip:
            break
    return found[0], -gradient / np.linalg.norm(gradient)


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().double().flatten().numpy()


def _joined(arrays: Mapping[str, Floats]) -> Floats:
    return np.concatenate([*arrays.values()])
