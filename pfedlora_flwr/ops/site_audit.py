"""What a site's own uploads and its personal model tell, measured on its node: by what it received
and sent (`keep-uploads` of its policy), its model and its data. Nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pfedlora_flwr.audit.classes import audit_classes
from pfedlora_flwr.audit.measure import Bools, Part, measure
from pfedlora_flwr.audit.membership import audit_membership, candidates, losses
from pfedlora_flwr.audit.seen import SeenRound
from pfedlora_flwr.audit.views import shared_part, shared_predictor
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.local import LocalData, Site
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features import audits
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.rng import numpy_generator
from pfedlora_flwr.runs.audits import Attack
from pfedlora_flwr.runs.provenance import versions
from pfedlora_flwr.runs.store import ClientStore
from pfedlora_flwr.runs.trained import clients_of, load_trained, node_stores
from pfedlora_flwr.runs.uploads import UPLOADS, Uploads
from pfedlora_flwr.site.egress import drawn

FILE = "audit.json"
"""Beside the client's model."""


@dataclass(frozen=True)
class _OwnRound(SeenRound):
    """A visit as its site saw it: `before` is what it received."""

    def start(self, client: int) -> Tensors:
        return shared_part(self.method, self.before)

    def left(self, client: int) -> Tensors:
        assert self.upload is not None
        return shared_part(self.method, self.before, self.upload(client).tensors)

    def merged(self, client: int) -> Tensors:
        return self.start(client)  # what others sent is not known here


class _Home:
    """A site's last visits, as `Seen` is a server's rounds. Raises UserError where it kept none, or
    its data is another now."""

    source: Literal["uploads"] = "uploads"

    def __init__(self, place: Path, client: int | None) -> None:
        held = clients_of(place)[0]
        if client is None and len(held) > 1:
            raise UserError(f"{place} holds clients {', '.join(map(str, held))}: give one")
        self.client = held[0] if client is None else client
        self.trained = load_trained(place, self.client)
        self.folder = node_stores(place, self.client)[0].folder
        self.path, self.run = self.folder.parent, self
        self.experiment, self.method = self.trained.experiment, self.trained.method
        self.setup = Setup(self.experiment, self.trained.about["site"]["data-path"])
        self.uploads = Uploads(self.folder / UPLOADS)
        self.numbers = self.uploads.rounds()
        if not self.numbers:
            raise UserError(
                f"{self.folder} kept no uploads: set keep-uploads in the site's policy, and train"
            )
        site = Site.find(self.experiment, self.client, self.trained.about["site"])
        known = self.trained.own_data, self.trained.about["partition"]
        if (site.own_data, site.fingerprint) != known:
            raise UserError(f"the data of {site.dataset.name} is not what the model was trained on")
        size = self.uploads.trained(self.numbers[-1], self.client)
        train = drawn(site.split.train, size, self.experiment.seed, self.client)
        self.site = replace(site, split=replace(site.split, train=train))

    def clients(self, number: int) -> list[int]:
        return [self.client]

    def round(self, number: int) -> SeenRound:
        before = self.uploads.state(number)
        read = partial(self.uploads.read, number)
        return _OwnRound(self.method, number, [self.client], before, read, lambda: before)

    @cached_property
    def counts(self) -> Any:
        """Of its training samples by class, [C]."""
        labels = np.asarray(self.site.dataset.labels[self.site.split.train])
        return np.bincount(labels, minlength=self.method.classes)

    def held(self, client: int) -> Bools:
        return self.counts > 0

    def data(self, client: int) -> LocalData:
        return self.site.load(torch.device("cpu"))

    def client_store(self, client: int) -> ClientStore:
        return ClientStore(self.folder)


def site_audit(place: Path, client: int | None = None, shadows: int = 0) -> dict[str, Any]:
    """The audit, which it also writes beside the model.

    shadows: models that are trained as the last visit was, each on half of the samples, to tell
    hard samples from such that were not trained on. Raises UserError."""
    torch.set_num_threads(1)
    seen: Any = _Home(place, client)
    e, notes = seen.experiment, list[str]()
    classes = audit_classes(seen)["upload"]
    membership = audit_membership(seen, notes)
    canaries = audits.at_site(seen, notes)
    if e.hides_uploads:
        notes.append("the server read only a sum: what is said of the upload is a bound")
    rows = "classes" in seen.uploads.read(seen.numbers[-1], seen.client).tensors
    found = {
        "method": e.method,
        "client": seen.client,
        "rounds": seen.numbers,
        **audits.protections(e),
        "classes": classes,
        "membership": membership,
        "shadows": _by_shadows(seen, shadows) if shadows else None,
        "personal": _of_model(seen),
        "single": int((seen.counts == 1).sum()) if rows or e.adds else None,
        "canaries": canaries,
        "sha256": seen.trained.sha256,
        "versions": {k: v for k, v in versions().items() if v},
        "notes": notes,
    }
    write_atomically(seen.folder / FILE, (json.dumps(found, indent=1) + "\n").encode())
    return found


def statement(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The same for somebody who decides whether a model may leave: facts with their names."""
    yield "run", f"{found['method']}, client {found['client']}, {len(found['rounds'])} visits kept"
    yield "the shared state leaves", f"at each visit, {audits.leaves(found)}"
    yield "the personal model leaves", f"only by an export; SHA-256 {found['sha256']}"
    yield "classes, by an upload", _of(found["classes"], "every class is held, or none has a row")
    yield "samples, by an upload", _of(found["membership"], "it makes no prediction by itself")
    if found["shadows"]:
        yield "samples, by shadow models", _of(found["shadows"], "")
    yield "samples, by the personal model", _of(found["personal"], "no samples to compare")
    if found["single"] is not None:
        what = f"{found['single']} classes have one sample, which its row or sum shows as it is"
        yield "reconstruction", what if found["single"] else "no class has only one sample"
    yield from audits.statement(found)
    yield "versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())


def _of(attack: Attack | None, why: str) -> str:
    """An AUC beside what chance gives: one that is below shows nothing, and proves nothing."""
    if attack is None:
        return f"not measured: {why}"
    p, n = attack["positives"], attack["negatives"]
    chance = 0.5 + 1.645 * ((p + n + 1) / (12 * p * n)) ** 0.5
    shown = "" if attack["auc"] > chance else ": nothing shown by this attack, which is no proof"
    return f"AUC {attack['auc']:.3f}, of which chance gives up to {min(1, chance):.3f}{shown}"


def _of_model(seen: Any) -> Attack | None:
    """Samples by their loss with the personal model."""
    samples, members = candidates(seen, seen.client)
    if not len(samples):
        return None
    return measure([Part(members, -losses(seen.method.predictor(seen.trained.module), samples))])


def _by_shadows(seen: Any, count: int) -> Attack | None:
    """Samples by how far their loss with the upload is below that with uploads of the same visit on
    other samples (Watson et al. 2022, arXiv 2111.08440)."""
    samples, members = candidates(seen, seen.client)
    round, method, client = seen.round(seen.numbers[-1]), seen.method, seen.client
    predict = shared_predictor(method, round.left(client))
    if predict is None or len(samples) < 4:
        return None
    draws = numpy_generator(seen.experiment.seed, "audit/shadows", client)
    without = np.full((count, len(samples)), np.nan)
    for shadow in without:
        half = torch.from_numpy(draws.permutation(len(samples))[: len(samples) // 2])
        data = replace(samples, inputs=samples.inputs[half], labels=samples.labels[half])
        upload, _ = visits.visit(
            method, method.initial_model(client), round.before, data, client, round.number
        )
        made = shared_predictor(method, shared_part(method, round.before, upload.tensors))
        shadow[:] = losses(made, samples)
        shadow[half.numpy()] = np.nan
    known = ~np.isnan(without).all(0)
    fall = np.nanmean(without[:, known], 0) - losses(predict, samples)[known]
    return measure([Part(members[known], fall)])
