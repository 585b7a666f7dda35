"""What leaves a site, field by field, as its policy has it. A field that is not named here does not
leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.claim import Claim
from pfedlora_flwr.federation.messages import HELD_OUT, WITHHELD, Config, Report, failure_in
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.runs.clear import FIGURES
from pfedlora_flwr.site.policy import Policy

NEUTRAL = "this site takes no part in it; the site's own log says why"
"""All that a server is told of a refusal or a failure where there is a policy: other lines may name
columns, files or numbers of samples."""
_RULED = {
    **dict.fromkeys((*FIGURES, "other_accuracies"), "scores"),
    **dict.fromkeys(("loss", "losses"), "losses"),
    # of a client's rows both are functions of n_k
    **dict.fromkeys(("flops_by_phase", "epsilon"), "samples"),
    "columns": "feature-names",
}
"""By field of a message, the rule `egress.…` that it is under."""
_FREE = {f.name for owner in (Report, Claim) for f in fields(owner)} | {wire.COUNT, "error", "name"}
_EMPTY = {"other_accuracies": "{}", "columns": "[]"}
"""What is told in the place of a field that must be there."""
COSTS = {
    "scores": "means, tuning, early stopping, verdicts and rows by site go without its scores",
    "losses": "mean losses go without it",
    "samples": "its weight and the sizes of its parts are not exact, its operations are not told",
    "feature-names": "the order of its columns is not checked against others'",
}
"""What it costs a run that a site keeps something back, by rule."""


def withheld(policy: Policy) -> list[str]:
    """The rules by which the site keeps something back in every run."""
    found = {
        "scores": policy.egress_scores != "each",
        "losses": not policy.egress_losses,
        "samples": policy.egress_samples != "exact",
        "feature-names": not policy.egress_feature_names,
    }
    return [rule for rule, kept in found.items() if kept]


def size_told(policy: Policy, size: int) -> int:
    """What is told in the place of a number of samples."""
    if policy.egress_samples == "capped":
        return min(size, policy.egress_cap or size)
    return size if policy.egress_samples == "exact" else _rounded(size, policy.egress_step)


def limited_upload(
    policy: Policy, upload: Upload, labels: Tensor, rows: Sequence[str], *, weighs: bool
) -> Upload:
    """The upload without rows of classes of too few samples, and n_k as it is told.

    labels: of the client's training samples. rows: `Method.class_rows`. weighs: whether the
    upload's number of samples is told, and is n_k. Raises UserError where nothing may leave."""
    if not policy.file:
        return upload
    least, tensors = policy.egress_min_count, dict(upload.tensors)
    if len(labels) < least:
        raise UserError(f"egress.min-count is {least} here, of {len(labels)} training samples")
    if policy.egress_samples != "exact" and any(
        not t.is_floating_point() and name not in rows for name, t in tensors.items()
    ):
        raise UserError("an upload has whole numbers, and egress.samples is not exact here")
    samples = size_told(policy, upload.samples) if weighs else upload.samples
    if "classes" in tensors:
        held = tensors["classes"]
        enough = torch.bincount(labels.cpu(), minlength=int(held.max()) + 1)[held.cpu()] >= least
        if not enough.any():
            raise UserError(f"egress.min-count is {least} here, and no class has as many samples")
        tensors |= {name: tensors[name][enough.to(tensors[name].device)] for name in rows}
    if "counts" in tensors:
        if policy.egress_class_counts == "rounded":
            step = policy.egress_step
            tensors["counts"] = (tensors["counts"] + step - 1) // step * step
        samples = int(tensors["counts"].sum())
    return Upload(tensors, samples)


def limit(policy: Policy, reply: Message) -> str:
    """Takes out of a reply what may not leave; the reason where it says a failure, which becomes
    NEUTRAL. Raises UserError where nothing of it may leave."""
    if reply.has_error():
        return reply.error.reason or "an error"
    said = wire.told_in(reply.content)
    failed = failure_in(said) if said else None
    if said is None or not policy.file:
        return failed[0] if failed else ""
    if failed:
        said["error"] = NEUTRAL
    kept = _limited(policy, said)
    said.clear()
    said.update(kept)
    wire.tell_size(reply.content, int(kept.get("test", 0)))
    return failed[0] if failed else ""


def _limited(policy: Policy, said: Mapping[str, Any]) -> Config:
    """The fields of a reply that leave."""
    least, exact = policy.egress_min_count, policy.egress_samples == "exact"
    if HELD_OUT in said:
        rows = json.loads(said[HELD_OUT])
        few = any(min(row["samples"], row["test"]) < least for row in rows)
        if few or not exact or policy.egress_scores != "each":
            raise UserError("an adaptation tells scores and samples, which egress rules withhold")
        return dict(said)
    free = {
        "scores": policy.egress_scores == "each"
        and not any(0 < said.get(part, 0) < least for part in ("validation", "test")),
        "losses": policy.egress_losses and exact,
        "samples": exact,
        "feature-names": policy.egress_feature_names,
    }
    kept, without = Config(), set[str]()
    for name, value in said.items():
        if free.get(_RULED.get(name, ""), name in _FREE) or value == _EMPTY.get(name):
            kept[name] = value
        else:
            without.add(_RULED.get(name, name))
            kept |= {name: _EMPTY[name]} if name in _EMPTY else {}
    if "partition_id" in said:
        without.update(withheld(policy))
    return _coarse(policy, kept) | ({WITHHELD: json.dumps(sorted(without))} if without else {})


def _coarse(policy: Policy, kept: Config) -> Config:
    """Scores as they are of so many samples as are told: a share's digits tell its denominator."""
    if policy.egress_samples == "exact" or "test" not in kept:
        return kept
    told = dict(kept)
    for part in ("validation", "test"):
        size = int(kept[part])
        told[part] = size_told(policy, size)
        right = int(kept[f"{part}_correct"]) / max(1, size)
        told[f"{part}_correct"] = round(right * int(told[part]))
    of = max(1, int(told["test"]))
    for name in ("balanced_accuracy", "macro_f1"):
        told[name] = round(float(kept[name]) * of) / of
    others = json.loads(str(kept.get("other_accuracies", "{}")))
    if "other_accuracies" in kept:
        told["other_accuracies"] = json.dumps({n: round(v * of) / of for n, v in others.items()})
    return told


def _rounded(size: int, step: int) -> int:
    return max(1, round(size / step)) * step if size else 0
