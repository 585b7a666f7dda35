"""Loads a trained client's personalised model, from a run's directory or from its node."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site, site_settings
from pfedlora_flwr.data.parts import FOLDER
from pfedlora_flwr.data.source import Inputs
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.records import by_numbers
from pfedlora_flwr.files import check_folder, tensors_sha256
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.kept import kept, restore
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.models.text import tokenised
from pfedlora_flwr.runs.checkpoint import Counts, ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import versions
from pfedlora_flwr.runs.result import best_versions
from pfedlora_flwr.runs.store import ABOUT, ClientStore
from pfedlora_flwr.training import kinds
from pfedlora_flwr.training.device import channels_last
from pfedlora_flwr.training.kinds import TEXT
from pfedlora_flwr.training.loop import Samples, infer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """A client's model after its visit in round `version`, in evaluation mode on the CPU.

    about: what the client left beside it: experiment, classes, shape, class_names, feature_names,
    mean, std, data_notes, versions, kind; partition and site, which say where its data is. counts:
    of its evaluation; None where this version was not evaluated. own_data: what the site's own data
    was known by; empty for a part of a shared dataset. Of a client that was not in the run, version
    is the number of its visits, and about has adapted_to: the run's experiment, and the round of
    the shared state."""

    client: int
    version: int
    sha256: str
    experiment: Experiment
    method: Method
    module: nn.Module
    about: Mapping[str, Any]
    counts: Counts | None
    own_data: str = ""

    @property
    def run(self) -> Experiment:
        """What was trained in the run; `experiment` is the client's."""
        told = self.about.get("adapted_to")
        return from_flat(told["experiment"]) if told else self.experiment

    @property
    def round(self) -> int:
        """The run's round that the model is of, or whose shared state it was adapted to."""
        told = self.about.get("adapted_to")
        return told["round"] if told else self.version

    @property
    def class_names(self) -> list[str]:
        return self.about["class_names"]

    @property
    def task(self) -> Task:
        """What the model takes and gives."""
        return self.method.task

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of the vectors that it takes, in their order; empty where they have none."""
        return tuple(self.about.get("feature_names") or ())

    def samples(self, inputs: Inputs, labels: Tensor | None = None) -> Samples:
        """Inputs as a dataset has them, texts also as tokens, normalised as in training; labels:
        int64 [n], zeros where none are given."""
        if self.task.kind == TEXT and inputs.dtype == np.uint8:
            inputs = tokenised(self.method.model_of(self.client).name, inputs)
        labels = torch.zeros(len(inputs), dtype=torch.int64) if labels is None else labels
        inputs = inputs if inputs.flags.writeable else inputs.copy()  # PyTorch warns of such arrays
        return self.task.kind.samples(
            torch.from_numpy(inputs), labels, tuple(self.about["mean"]), tuple(self.about["std"])
        )

    def logits(self, inputs: Inputs) -> Tensor:
        """The model's output in fp32, as exported programs compute it, of inputs as a dataset has
        them: [n, classes]."""
        return infer(self.method.predictor(self.module), self.samples(inputs))

    def representations(self, inputs: Inputs) -> Tensor:
        """The input of the last layer, of inputs as a dataset has them: [n, width]."""
        return infer(self.method.predictor(self.module).encode, self.samples(inputs))


def load_trained(place: Path, client: int) -> Trained:
    """The model of `client` in a run's directory, or on its node: `place` is the state-path, or a
    run's folder in it.

    Raises UserError when it is not there.
    """
    check_folder(place)
    run = RunDirectory(place)
    if run.holds_run:
        return _from_run(run, client)
    stores = node_stores(place, client)
    if not stores:
        held = _clients_held(place)
        named = some([str(k) for k in held])
        others = f"; it holds that of client {named} (the server numbers the sites)" if held else ""
        raise UserError(f"{place} holds neither a run nor a model of client {client}{others}")
    if len(stores) > 1:
        places = ", ".join(str(store.folder.parent) for store in stores)
        raise UserError(
            f"{place} holds models of client {client} from several runs; give one of {places}"
        )
    damaged = []
    # the newest whole one: the server, which knows what it admitted, is elsewhere
    newest, chosen = stores[0].versions()[::-1], stores[0].chosen
    for version in newest if chosen is None else [chosen]:
        try:
            tensors = stores[0].read(version)
        except UserError as error:
            damaged.append(str(error))
            continue
        for line in damaged:
            logger.warning("%s: falling back to the previous one", line)
        return _build(stores[0], client, version, tensors, stores[0].counts(version))
    raise UserError(
        f"{stores[0].folder} holds no readable model: {'; '.join(damaged) or 'it is empty'}"
    )


def node_stores(place: Path, client: int) -> list[ClientStore]:
    """Where a node keeps models of `client`, by run: in its state-path, or a run's folder in it."""
    found = [*place.glob(f"{client}/{ABOUT}"), *place.glob(f"*/{client}/{ABOUT}")]
    return [ClientStore(about.parent) for about in sorted(found)]


def about_of(
    site: Site, experiment: Experiment, client: int, where: Mapping[str, Any]
) -> dict[str, Any]:
    """What is left beside a client's model, for `load_trained`: all that `predict`, `evaluate` and
    `export` need. where: the settings by which `site` was found."""
    dataset = site.dataset
    return {
        "client": client,
        "classes": site.task.classes,
        "shape": site.task.shape,
        "kind": site.task.kind.name,
        "class_names": dataset.class_names,
        "mean": site.mean,
        "std": site.std,
        "feature_names": dataset.feature_names,
        "data_notes": dataset.notes,
        "partition": site.fingerprint,
        "site": site_settings(where),
        "experiment": by_numbers(experiment).flat(),
        "versions": versions(),
    }


def clients_of(place: Path) -> tuple[list[int], list[int]]:
    """The clients that `load_trained` finds there, ascending, without those that have left; and of
    a run those that have not been trained yet.

    Raises UserError when there is none.
    """
    check_folder(place)
    run = RunDirectory(place)
    if run.holds_run:
        config = run.run_config()
        (state, versions), e = _versions(run, config), config.experiment
        gone = e.gone(state.round + 1 if state else 1)
        everyone = [client for client in range(e.trained_clients) if client not in gone]
        trained = [client for client in everyone if versions.get(client, 0)]
        untrained = [client for client in everyone if client not in trained]
    else:
        trained, untrained = _clients_held(place), []
    if not trained:
        raise UserError(f"{place} holds no client's model")
    return trained, untrained


def _clients_held(place: Path) -> list[int]:
    """The clients whose models a node's state-path, or a run's folder in it, holds, ascending."""
    found = {
        about.parent.name for about in (*place.glob(f"*/{ABOUT}"), *place.glob(f"*/*/{ABOUT}"))
    }
    return sorted(int(name) for name in found if name.isdecimal())


def _from_run(run: RunDirectory, client: int) -> Trained:
    config = run.run_config()
    experiment = config.experiment
    if not isinstance(client, Integral) or not 0 <= client < experiment.clients:
        raise UserError(f"client is {client!r}; allowed: 0 to {experiment.trained_clients - 1}")
    if why := experiment.untrained(client):
        raise UserError(
            f"client {client} of {run.path} {why}; adapt it with"
            f" `pfedlora adapt {run.path} --client {client} --output DIR`"
        )
    state, versions = _versions(run, config)
    version = versions.get(client, 0)
    if state is None or version == 0:
        run.check_whole()
        best = state and state.versions.get(client, 0)
        told = "was not trained before the best round (models.keep=best)" if best else ""
        raise UserError(f"client {client} of {run.path} {told or 'has not been trained yet'}")
    store = run.client_store(client)
    if not store.versions():
        raise UserError(
            f"the model of client {client} is not in {run.path}; on a deployed node it is in"
            f" <state-path>/{_token(run)}: run this there (compare removes those of tuning"
            " candidates that were not chosen, and with drop-models=true all)"
        )
    tensors = store.read(version)
    evaluated = client not in state.stale and version == state.versions[client]
    counts = state.counts.get(client) if evaluated else store.counts(version)
    return _build(store, client, version, tensors, counts)


def _versions(run: RunDirectory, config: RunConfig) -> tuple[ServerState | None, Mapping[int, int]]:
    """The newest state, and by client the version of its model that is taken (`models.keep`)."""
    state, e, x = run.latest(), config.experiment, config.execution
    if state is None or not x.keeps_best:
        return state, state.versions if state else {}
    return state, best_versions(run, e, run.rounds(), x.verdict_score)


def _token(run: RunDirectory) -> str:
    try:
        return run.token
    except OSError:
        return "…"


def _build(
    store: ClientStore,
    client: int,
    version: int,
    tensors: dict[str, Tensor],
    counts: Counts | None,
) -> Trained:
    about = store.about()
    about["site"] = {"data-path": ""} | about["site"]
    state_path = store.folder.parent.parent
    if (state_path / FOLDER).is_dir():  # of a node's own data, whose rows keep their parts
        about["site"]["state-path"] = str(state_path)
    experiment = from_flat(about["experiment"])
    # of the client's own data, which may have fewer classes than the federation
    about["class_names"] = _filled(about["class_names"], about["classes"])
    task = Task(about["classes"], tuple(about["shape"]), kinds.named(about["kind"]))
    method = registry.make(experiment, task)
    with random_weights():
        module = method.private_init(client, 0)
    try:
        restore(f"{store.path(version)}", module, tensors, store.base(version))
    except RuntimeError as error:
        raise UserError(
            f"{store.path(version)}: the code here builds another model than client"
            f" {client} has: {str(error).splitlines()[-1].strip()}"
        ) from None
    module = channels_last(module.eval())
    digest, data = tensors_sha256(kept(module)), store.data(version)
    return Trained(client, version, digest, experiment, method, module, about, counts, data)


def _filled(names: Sequence[str], classes: int) -> list[str]:
    """The names up to so many classes: `class 2` for the third, or `unnamed class 2` where the data
    calls another so."""
    missing, called = range(len(names), classes), "class"
    while any(f"{called} {i}" in names for i in missing):
        called = f"unnamed {called}"
    return [*names, *(f"{called} {i}" for i in missing)]
