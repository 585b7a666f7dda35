"""A run's shared state as a client receives it that was not in the run: from a run's directory, or
as one file for a site that has nothing but this package.

It holds what the method would send to such a client, never what clients have sent: a server that
remembers single reports, as FedProto's does, gives their means."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.local import (
    OWN,
    models_own,
)
from pfedlora_flwr.data.normalisation import Constants
from pfedlora_flwr.errors import UserError, kind
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import check_replaceable, from_json, make_folder, tensors_sha256
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.lora_residual import LEFT, RIGHT
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.runs.data_name import sites_told
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import versions
from pfedlora_flwr.runs.store import ABOUT, read_tensors, write_tensors
from pfedlora_flwr.training import kinds

WHAT = "pfedlora shared state 1"
"""What such a file calls itself, with the version of its layout."""


@dataclass(frozen=True)
class SharedState:
    """What a client receives after `round` that was not in the run.

    downloads: the tensors that such a client is sent, by the name of its model; most methods send
    all models the same. class_names: as far as they are known. feature_names: of a table's columns.
    constants: mean and standard deviation of the federation's inputs; None where every site has its
    own."""

    experiment: Experiment
    task: Task
    round: int
    downloads: Mapping[str, Tensors]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    constants: Constants | None
    merged: tuple[int, ...] = ()
    """The clients whose uploads the last round merged, as far as they are known."""

    def method(self, e: Experiment | None = None) -> Method:
        """The run's method, by the keys of `e` where they are given."""
        return registry.make(e or self.experiment, self.task)

    def write(self, file: Path, *, overwrite: bool = False) -> str:
        """Writes one safetensors file, and returns the SHA-256 of its tensors. Raises UserError for
        a file that is there, unless it is to be overwritten."""
        if any(n.endswith((LEFT, RIGHT)) for one in self.downloads.values() for n in one):
            raise UserError(
                f"method {self.experiment.method} sends clients' factors side by side, and a file"
                " would hold single clients'; adapt from the run's directory"
            )
        if len(self.merged) == 1:
            raise UserError(
                f"the last round that merged updates merged client {self.merged[0]}'s alone, and a"
                " file would hold these; train a round with more clients, or adapt from the run's"
                " directory"
            )
        check_replaceable(file, overwrite=overwrite)
        make_folder(file.absolute().parent)
        sets = list({tensors_sha256(one): one for one in self.downloads.values()}.values())
        place = {tensors_sha256(one): i for i, one in enumerate(sets)}
        # one set may hold a part of another's tensors
        tensors = {f"{i}/{n}": t.clone() for i, one in enumerate(sets) for n, t in one.items()}
        told = {
            "round": self.round,
            "experiment": self.experiment.flat(),
            "classes": self.task.classes,
            "shape": self.task.shape,
            "kind": self.task.kind.name,
            "class_names": self.class_names,
            "feature_names": self.feature_names,
            "constants": self.constants,
            "set_of_model": {n: place[tensors_sha256(one)] for n, one in self.downloads.items()},
            "versions": versions(),
        }
        try:
            return write_tensors(file, tensors, what=WHAT, about=json.dumps(told))
        except OSError as error:
            raise UserError(f"{file} cannot be written ({error.strerror})") from None


def find(place: Path) -> SharedState:
    """The shared state of a run in the folder `place`, or in the file of that name. Raises
    UserError."""
    return of_run(RunDirectory(place)) if place.is_dir() else read(place)


def read(file: Path) -> SharedState:
    """What `write` wrote. Raises UserError for a file that is no shared state, or is damaged."""
    try:
        tensors, metadata = read_tensors(file)
    except (UserError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{file} is neither a run nor a file of `pfedlora export RUN --shared` ({why})"
        ) from None
    if metadata.get("what") != WHAT:
        raise UserError(
            f"{file} holds no shared state; `pfedlora export RUN --shared --output FILE` writes one"
        )
    try:
        return _read(tensors, from_json(metadata["about"]))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        if isinstance(error, UserError):  # a key that is not known here
            raise
        raise UserError(
            f"{file} is damaged, or of another version: what it says of its state cannot be read"
            f" ({type(error).__name__})"
        ) from None


def _read(tensors: Tensors, told: Any) -> SharedState:
    sets: dict[int, Tensors] = {}
    for name, tensor in tensors.items():
        number, _, own = name.partition("/")
        sets.setdefault(int(number), {})[own] = tensor
    return SharedState(
        experiment=from_flat(told["experiment"]),
        task=Task(told["classes"], tuple(told["shape"]), kinds.named(told["kind"])),
        round=told["round"],
        downloads={name: sets[number] for name, number in told["set_of_model"].items()},
        class_names=tuple(told["class_names"]),
        feature_names=tuple(told["feature_names"]),
        constants=told["constants"] and tuple(map(tuple, told["constants"])),
    )


def of_run(run: RunDirectory) -> SharedState:
    """The state after a run's last round. Raises UserError if it has none, or its method shares
    nothing with a client that comes later."""
    if not run.holds_run:
        raise UserError(f"{run.path} holds no run")
    setup = Setup.of(run.run_config())
    e = setup.experiment
    if e.state_per_client:
        raise UserError(
            f"{run.path} has {e.control}: every client had a state of its own, and none is shared"
        )
    state = run.latest()
    if state is None or not state.round:
        run.check_whole()
        raise UserError(f"{run.path} has no round that is done: there is no shared state")
    task = _task(run, setup)
    method = registry.make(e, task)
    downloads = {
        str(model): download(
            method, state.tensors, newcomer(e, i, len(method.model_names)), state.round
        )
        for i, model in enumerate(method.model_names)
    }
    if not any(tensor.numel() for one in downloads.values() for tensor in one.values()):
        raise UserError(
            f"method {e.method} shares nothing with a client that comes later: it would train alone"
        )
    names, columns, constants = _data(run, setup, task)
    last = [tuple(row["admitted"]) for row in run.rounds() if row["round"] <= state.round]
    merged = next(filter(None, reversed(last)), ())
    return SharedState(e, task, state.round, downloads, names, columns, constants, merged)


def download(method: Method, state: Tensors, client: int, after: int) -> Tensors:
    """What a client receives that has never uploaded anything, once round `after` is merged. Raises
    UserCodeError if the method's code fails, UserError if it gives no tensors."""
    sent = method.download(state, client, after + 1)
    if not isinstance(sent, dict):
        raise UserError(
            f"method {method.experiment.method}: its download for client {client}, which was not in"
            f" the run, is {kind(sent)}, expected a dict of tensors"
        )
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sent.items()}


def newcomer(e: Experiment, place: int, turn: int) -> int:
    """The first number that no client of the run has and that means the model at this place of
    `turn` models in turn."""
    return next(k for k in count(e.clients) if k % turn == place)


def _task(run: RunDirectory, setup: Setup) -> Task:
    """What the models take and give, as a client left it where there is one here."""
    about = next(_abouts(run, setup.experiment), (0, {}))[1]
    if not {"classes", "shape", "kind"} <= about.keys():
        return setup.task
    return Task(about["classes"], tuple(about["shape"]), kinds.named(about["kind"]))


def _data(
    run: RunDirectory, setup: Setup, task: Task
) -> tuple[tuple[str, ...], tuple[str, ...], Constants | None]:
    """Class names, columns and constants: as the run's clients left them where they are here, else
    from its dataset; of sites with data of their own what they have told."""
    if run.partition == OWN:
        names, columns = sites_told(run)
        return names, columns, None
    for k, about in _abouts(run, setup.experiment):
        if models_own(setup.experiment, task, k) is None:  # else its constants are its model's
            columns = tuple(about.get("feature_names") or ())
            constants = tuple(about["mean"]), tuple(about["std"])
            return tuple(about["class_names"]), columns, constants
    columns = tuple(setup.dataset.feature_names or ())
    return tuple(setup.dataset.class_names), columns, setup.constants


def _abouts(run: RunDirectory, e: Experiment) -> Iterator[tuple[int, dict[str, Any]]]:
    """What simulated clients left beside their models, by client."""
    for k in range(e.trained_clients):
        store = run.client_store(k)
        if (store.folder / ABOUT).exists():
            yield k, store.about()
