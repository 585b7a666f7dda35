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
from pfedlora_flwr.federation.messages import HELD_OUT, RULED, WITHHELD, Config, Report, failure_in
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.site.policy import Policy
from pfedlora_flwr.training.metrics import SENSITIVITY

NEUTRAL = "this site takes no part in it; the site's own log says why"
"""All that a server is told of a refusal or a failure where there is a policy: other lines may name
columns, files or numbers of samples."""
_FREE = {f.name for owner in (Report, Claim) for f in fields(owner)} | {wire.COUNT, "error", "name"}
_EMPTY = {"other_accuracies": "{}", "columns": "[]"}
"""What is told in the place of a field that must be there."""
COSTS = {
    "scores": "means, tuning, early stopping, verdicts and rows by site go without its scores",
    "losses": "mean losses go without it",
    "samples": "its weight and the sizes of its parts are not exact, its operations are not told",
    "feature-names": "the order of its columns is not checked against others'",
    "class-counts": "scores by class go without it",
}
"""What it costs a run that a site keeps something back, by rule."""


def _free(policy: Policy) -> dict[str, bool]:
    """By rule, whether what it is about leaves in every run."""
    exact = policy.egress.samples == "exact"
    return {
        "scores": policy.egress.scores == "each",
        "losses": policy.egress.losses and exact,
        "samples": exact,
        "feature-names": policy.egress.feature_names,
        "class-counts": policy.egress.class_counts == "each",
    }


def size_told(policy: Policy, size: int) -> int:
    """What is told in the place of a number of samples."""
    if policy.egress.samples == "capped":
        return min(size, policy.egress.cap or size)
    return size if policy.egress.samples == "exact" else _nearest(size, policy.egress.step)


def limited_upload(
    policy: Policy, upload: Upload, labels: Tensor, rows: Sequence[str], *, weighs: bool
) -> Upload:
    """The upload without rows of classes of too few samples, and n_k as it is told.

    labels: of the client's training samples. rows: `Method.class_rows`. weighs: whether the
    upload's number of samples is told, and is n_k. Raises UserError where nothing may leave."""
    if not policy.file:
        return upload
    least, tensors = policy.egress.min_count, dict(upload.tensors)
    if len(labels) < least:
        raise UserError(f"egress.min-count is {least} here, of {len(labels)} training samples")
    if policy.egress.samples != "exact" and any(
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
        if policy.egress.class_counts == "rounded":
            step = policy.egress.step
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
    least, free = policy.egress.min_count, _free(policy)
    if HELD_OUT in said:
        few = any(min(row["samples"], row["test"]) < least for row in json.loads(said[HELD_OUT]))
        if few or not (free["samples"] and free["scores"]):
            raise UserError("an adaptation tells scores and samples, which egress rules withhold")
        return dict(said)
    without = {rule for rule in free if "partition_id" in said and not free[rule]}
    free["scores"] &= not any(0 < said.get(part, 0) < least for part in ("validation", "test"))
    free["class-counts"] &= free["scores"] and free["samples"] and least == 1
    kept = Config()
    for name, value in said.items():
        rule = RULED.get(name, "")
        if free.get(rule, name in _FREE) or value == _EMPTY.get(name):
            kept[name] = value
            continue
        without.add(rule)
        kept |= {name: _EMPTY[name]} if name in _EMPTY else {}
    without.discard("")
    return _coarse(policy, kept) | ({WITHHELD: json.dumps(sorted(without))} if without else {})


def _coarse(policy: Policy, kept: Config) -> Config:
    """Scores as they are of so many samples as are told: a share's digits tell its denominator. A
    single class's go where a class may have too few."""
    exact = (policy.egress.samples, policy.egress.class_counts) == ("exact", "each")
    told = dict(kept)
    if policy.egress.min_count > 1 and "scores" in kept:
        scores = json.loads(str(kept["scores"]))
        told["scores"] = json.dumps({n: v for n, v in scores.items() if SENSITIVITY not in n})
    if exact or "test" not in kept:
        return told
    for part in ("validation", "test"):
        size = size_told(policy, was := int(kept[part]))
        told[part] = size
        told[f"{part}_correct"] = round(int(kept[f"{part}_correct"]) * size / max(1, was))
    of = max(1, int(told["test"]))
    for name in ("scores", "other_accuracies"):
        if name in told:
            values = json.loads(str(told[name]))
            told[name] = json.dumps({n: round(v * of) / of for n, v in values.items()})
    return told


def _nearest(size: int, step: int) -> int:
    return max(1, round(size / step)) * step if size else 0
