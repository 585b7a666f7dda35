"""What leaves a site, field by field, as its policy has it. A field that is not named here does not
leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from pfedlora_flwr.data.local import Site
from pfedlora_flwr.data.source import Indices
from pfedlora_flwr.data.split import Split
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.claim import Claim
from pfedlora_flwr.federation.messages import ADAPTED, RULED, WITHHELD, Config, Report, failure_in
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.rng import numpy_generator
from pfedlora_flwr.site.policy import Policy
from pfedlora_flwr.training.metrics import VALIDATION, is_by_class, log_loss

NEUTRAL = "this site takes no part in it; the site's own log says why"
"""All that a server is told of a refusal or a failure where there is a policy: other lines may name
columns, files or numbers of samples."""
_FREE = {f.name for owner in (Report, Claim) for f in fields(owner)} | {wire.COUNT, "error", "name"}
_ENOUGH = "enough"
"""The field of `vouched`, which no node lets out."""
_EMPTY = {"other_accuracies": "{}", "columns": "[]"}
"""What is told in the place of a field that must be there."""
COSTS = {
    "scores": "means, tuning, early stopping, verdicts and rows by site go without its scores",
    "losses": "mean losses and log-losses go without it",
    "samples": "it takes part with fewer samples than it has",
    "feature-names": "the order of its columns is not checked against others'",
    "class-counts": "scores by class go without it",
}
"""What it costs a run that a site keeps something back, by rule."""


def _free(policy: Policy) -> dict[str, bool]:
    """By rule, whether what it is about leaves in every run."""
    out = policy.egress
    return {
        "scores": out.scores == "each",
        "losses": out.losses,
        "samples": out.samples == "exact",
        "feature-names": out.feature_names,
        "class-counts": out.class_counts == "each",
    }


def taking_part(policy: Policy, site: Site, seed: int, client: int) -> Site:
    """The site with as many samples of each part as it tells: losses, batches and the steps of a
    visit tell their number, and so does a refusal by it."""
    if not policy.file or policy.egress.samples == "exact":
        return site

    def some(part: Indices) -> Indices:
        return drawn(part, size_told(policy, len(part)), seed, client)

    split = site.split
    told = Split(some(split.train), some(split.validation), some(split.test))
    if not len(told.train):
        raise UserError(f"egress.step is {policy.egress.step} here, of {len(split.train)} samples")
    return replace(site, split=told)


def drawn(part: Indices, size: int, seed: int, client: int) -> Indices:
    """So many of a part that take part; fewer are always some of more."""
    order = numpy_generator(seed, "egress/samples", client).permutation(len(part))
    return part[np.sort(order[:size])]


def size_told(policy: Policy, size: int) -> int:
    """What is told in the place of a number of samples: never more."""
    out = policy.egress
    if out.samples == "capped":
        return min(size, out.cap or size)
    return size if out.samples == "exact" else size // out.step * out.step


def limited_upload(policy: Policy, upload: Upload, labels: Tensor, rows: Sequence[str]) -> Upload:
    """The upload without rows of classes of too few samples.

    labels: of the training samples that take part. rows: `Method.class_rows`. Raises UserError
    where nothing may leave."""
    if not policy.file:
        return upload
    least, tensors, samples = policy.egress.min_count, dict(upload.tensors), upload.samples
    if len(labels) < least:
        raise UserError(f"egress.min-count is {least} here, of {len(labels)} training samples")
    if least == 1 and policy.egress.class_counts == "each":
        return upload
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


def vouched(policy: Policy, validation: Tensor, test: Tensor) -> Config:
    """What a client tells its own gate of the labels that it was evaluated on: the parts, by how
    their scores begin, in which every class has enough samples. From scores by class the size of a
    small class follows within some rounds."""
    if not policy.file or policy.egress.min_count == 1:
        return {}
    sizes = {VALIDATION: torch.bincount(validation.cpu()), "": torch.bincount(test.cpu())}
    least = policy.egress.min_count
    return {_ENOUGH: json.dumps([part for part, n in sizes.items() if (n[n > 0] >= least).all()])}


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
    if ADAPTED in said:
        told = ("scores", "losses", "samples", "class-counts")
        if least > 1 or not all(free[rule] for rule in told):
            raise UserError("an adaptation tells scores and samples, which egress rules withhold")
        return dict(said)
    without = {rule for rule in free if "partition_id" in said and not free[rule]}
    free["scores"] &= not any(said.get(part, least) < least for part in ("validation", "test"))
    free["class-counts"] &= free["scores"]
    enough = json.loads(str(said.get(_ENOUGH, "[]")))
    kept = Config()
    for name, value in said.items():
        rule = RULED.get(name, "")
        leaves = free.get(rule, name in _FREE)
        leaves &= name != "confusion" or least == 1  # its cells are counts
        if leaves or value == _EMPTY.get(name):
            kept[name] = value
            continue
        without.add(rule)
        kept |= {name: _EMPTY[name]} if name in _EMPTY else {}
    if "scores" in kept:
        scores = json.loads(str(kept["scores"]))
        parts = {n: VALIDATION if n.startswith(VALIDATION) else "" for n in scores}
        stay = {
            n
            for n, part in parts.items()
            if not free[_rule_of(n)] or (is_by_class(n) and least > 1 and part not in enough)
        }
        without |= {_rule_of(n) for n in stay}
        kept["scores"] = json.dumps({n: v for n, v in scores.items() if n not in stay})
    without.discard("")
    return kept | ({WITHHELD: json.dumps(sorted(without))} if without else {})


def _rule_of(score: str) -> str:
    """The rule by which a score beside accuracy is withheld."""
    if is_by_class(score):
        return "class-counts"
    return "losses" if score.removeprefix(VALIDATION) == log_loss.__name__ else "scores"
