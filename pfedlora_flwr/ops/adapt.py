"""`pfedlora adapt`: a client that was not in the run trains a personal model from the run's shared
state and its own data. Beside it stands the same client alone, with as many operations."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedlora_flwr import config
from pfedlora_flwr.client_app import prepare_process
from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.data.local import OWN, Site, models_own, site_settings
from pfedlora_flwr.errors import UserError, first_line, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.adapt import Adapted, row_of, site_with
from pfedlora_flwr.federation.adapt import adapt as adapted_to
from pfedlora_flwr.files import absolute, check_writable, make_folder, write_atomically
from pfedlora_flwr.methods.method import Method, Refused, Tensors, check_layout
from pfedlora_flwr.models import registry as models
from pfedlora_flwr.models.kept import base_of
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs import shared_state
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import AdaptedRow
from pfedlora_flwr.runs.shared_state import SharedState, newcomer
from pfedlora_flwr.runs.store import ClientStore
from pfedlora_flwr.runs.trained import about_of
from pfedlora_flwr.training.device import find_device
from pfedlora_flwr.training.kinds import TEXT, VECTORS

RESULT = "adapted.json"
_KEYS = ("dataset", "data-path", "models", "rounds", "device")
"""Keys that a client may set for itself, beside those of its own data, `data.…`."""


@dataclass(frozen=True)
class Newcomer:
    """A client that was not in the run, and where its data is, as a node-config says it."""

    client: int
    experiment: Experiment
    where: Mapping[str, str]


def adapt(
    place: Path,
    output: Path,
    *,
    client: int | None = None,
    samples: int | None = None,
    overwrite: bool = False,
    options: Mapping[str, object],
) -> AdaptedRow:
    """Adapts a client to the shared state in `place`, a run's directory or a file of `pfedlora
    export RUN --shared`, and writes its model and `adapted.json` to the folder `output`.

    client: its number; None: the first one that no client of the run has. samples: the largest
    number of its training samples; None: all. options: keys, as `-o` has them. Raises UserError."""
    for name, number, least in (("samples", samples, 2), ("client", client, 0)):
        if number is not None and (type(number) is not int or number < least):
            raise UserError(f"{name} is {number!r}; allowed: None, or an integer ≥ {least}")
    _check_output(output, overwrite=overwrite)
    shared = shared_state.find(place)
    if place.is_dir() and "data-path" not in options and "dataset" not in options:
        options = {**options, "data-path": RunDirectory(place).run_config().execution.data_path}
    who = _newcomer(shared, client, options)
    e, k = who.experiment, who.client
    method = shared.method(e)
    received = _received(shared, method, who)
    site = _site(shared, who)
    device = find_device(e.device)
    prepare_process(device)
    if bad := [n for n, t in received.items() if t.is_floating_point() and not t.isfinite().all()]:
        raise UserError(f"the shared state of {place} has values that are not finite in {bad[0]}")
    received = {name: tensor.to(device) for name, tensor in received.items()}
    data = site_with(site, samples, e.seed, k).load(device)
    try:
        found = adapted_to(method, received, data, k, e.rounds)
    except (KeyError, IndexError, RuntimeError, ValueError) as error:
        if place.is_dir():  # else what the file says of itself may be wrong
            raise
        raise UserError(
            f"{place} holds a shared state that method {e.method} cannot take"
            f" ({type(error).__name__}: {first_line(str(error))})"
        ) from error
    row = row_of(method, found, data, k, shared.round, samples)
    about = about_of(site, e, k, who.where)
    about["adapted_to"] = {"round": shared.round, "experiment": shared.experiment.flat()}
    if shared.class_names:  # the client's own may lack some
        about["class_names"] = [*shared.class_names]
    _write(output, found, about, row, site.own_data, overwrite=overwrite)
    return row


def _write(
    output: Path,
    found: Adapted,
    about: dict[str, Any],
    row: AdaptedRow,
    own_data: str,
    *,
    overwrite: bool,
) -> None:
    """Writes aside first, so that what is there stays until all is written; in the folder itself,
    which may be a volume, a link, or where the shell stands."""
    try:
        make_folder(output)
        _check_output(output, overwrite=overwrite)  # something may have come there since
        before = [*output.iterdir()]
        with tempfile.TemporaryDirectory(prefix=".adapt-", dir=output) as aside:
            new, old = Path(aside) / "new", Path(aside) / "old"
            store = ClientStore(new / str(row["client"]))
            base = base_of(found.model)
            store.save(found.visits, found.tensors(), 0, found.counts, base, data=own_data)
            store.write_about(found.visits, about["site"], lambda: about)
            write_atomically(new / RESULT, (json.dumps(row, indent=1) + "\n").encode())
            old.mkdir()
            for path in before:
                path.rename(old / path.name)
            for path in (store.folder, new / RESULT):
                path.rename(output / path.name)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror})") from None


def _check_output(output: Path, *, overwrite: bool) -> None:
    if os.path.lexists(output) and not output.is_dir():
        raise UserError(f"{output} is no folder; give a folder as output")
    if output.is_dir() and any(output.iterdir()):
        if not overwrite:
            raise UserError(
                f"{output} is not empty; replace it with overwrite=true, or give another output"
            )
        inside = [path.name for path in output.iterdir()]
        if RESULT not in inside or not all(n == RESULT or n.isdecimal() for n in inside):
            raise UserError(f"{output} is not what adapt wrote, so it is not overwritten")
    check_writable(output)


def _newcomer(shared: SharedState, client: int | None, options: Mapping[str, object]) -> Newcomer:
    """Raises UserError for keys that are the run's, and for a client that was in it."""
    for name in options:
        if name not in _KEYS and not name.startswith("data."):
            config.parse({name: options[name]})  # an unknown key is named as such
            raise UserError(
                f"{name} is as in the run; allowed with adapt: {', '.join(_KEYS)}, and data.… of"
                " the client's own dataset"
            )
    e = shared.experiment
    keys = config.run_config(e.by_itself().flat() | {"rounds": e.held_out.rounds, **options})
    wanted, path = keys.experiment, keys.execution.data_path
    where = {"data-path": str(absolute(path))} if path else {}
    own = "dataset" in options
    if client is not None and client in range(e.trained_clients):
        what = "leave client out: the data is then a new client's" if own else _allowed(e)
        raise UserError(f"client {client} was in the run; {what}")
    if not own:
        if of_own := [n for n in options if n == "models" or n.startswith("data.")]:
            raise UserError(
                f"{of_own[0]} is for a client with data of its own; give dataset=…, too, or leave"
                " it out"
            )
        if client is None or client not in e.held_out_clients:
            which = "no client is given" if client is None else f"client {client} has no data"
            raise UserError(f"{which}; {_allowed(e)}")
        return Newcomer(client, wanted, where)
    if unused := config.unused(options, keys):
        raise UserError(f"{unused[0]}; leave it out")
    if client is not None and client in e.held_out_clients:
        raise UserError(
            f"client {client} is held out and has its part of the run's data; leave dataset or"
            f" client out, or give client={e.clients} or more"
        )
    where |= {"dataset": str(options["dataset"])}
    model = str(wanted.models or "auto") if "models" in options else None
    wanted = wanted.replace(dataset=e.dataset, models=e.models)
    if shared.task.kind != TEXT:
        shape = shared.task.kind.write(shared.task.shape)
        wanted = wanted.replace(classes=shared.task.classes, input_shape=shape, image_size=None)
    if model is None:
        return Newcomer(e.clients if client is None else client, wanted, site_settings(where))
    wanted, number = _with_model(shared, wanted, model, client)
    return Newcomer(number, wanted, site_settings(where))


def _allowed(e: Experiment) -> str:
    held = [str(k) for k in e.held_out_clients]
    of_run = f"{some(held)}, which {'was' if len(held) == 1 else 'were'} held out, or "
    return f"allowed: {of_run if held else ''}a client with data of its own, by dataset=…"


def _with_model(
    shared: SharedState, e: Experiment, model: str, client: int | None
) -> tuple[Experiment, int]:
    """The keys with another model behind those of the run, and the number of a client that has it.
    Raises UserError."""
    if client is not None:
        raise UserError("client chooses a model of the run, and models another one: give one")
    if "," in model:
        raise UserError(f"models is {model!r}; allowed with adapt: one model")
    if len(e.train) > 1 or ("lora" in e.train and len(e.lora.rank) > 1):
        raise UserError(
            f"models is {model!r}, and the run's train or lora.rank has several values: leave"
            " models out, and choose by client=…"
        )
    names = [one.name for one in shared.method().model_names]
    e = e.replace(models=",".join([*names, models.located(model)]))
    config.run_config(e.flat())  # one model for all, where the method needs it
    return e, newcomer(e, len(names), len(names) + 1)


def _received(shared: SharedState, method: Method, who: Newcomer) -> Tensors:
    """What the client is sent. Raises UserError if its model changes what the method shares."""
    name, e = str(method.model_of(who.client)), shared.experiment
    sets = shared.downloads
    if who.experiment.models != e.models:
        first, own = _first_state(shared.method()), _first_state(method)
        try:
            check_layout(own, first)
        except Refused as reason:
            raise UserError(
                f"models is {name!r}, which does not fit the shared state of {e.method}: {reason}"
            ) from None
    if name in sets:
        return sets[name]
    if len({id(one) for one in sets.values()}) == 1 or _alike(sets):
        return next(iter(sets.values()))
    raise UserError(
        f"models is {name!r}; method {e.method} sends each model a state of its own; allowed:"
        f" {', '.join(sets)}"
    )


def _first_state(method: Method) -> Tensors:
    return method.state_init(derive(method.experiment.seed, "state"))


def _alike(sets: Mapping[str, Tensors]) -> bool:
    """Whether all models are sent the same."""
    first, *others = sets.values()
    return all(
        one.keys() == first.keys() and all(one[name].equal(first[name]) for name in first)
        for one in others
    )


def _site(shared: SharedState, who: Newcomer) -> Site:
    """The client's data, normalised as the federation's. Raises UserError if it is of other
    classes or columns."""
    site = Site.find(who.experiment, who.client, who.where)
    if site.fingerprint == OWN:
        _check_same("classes", site, site.dataset.class_names, shared.class_names)
        if site.task.kind == VECTORS:
            _check_named(site, shared.feature_names)
        _check_same("columns", site, site.dataset.feature_names or (), shared.feature_names)
    if shared.constants is None or models_own(who.experiment, site.task, who.client):
        return site
    mean, std = shared.constants
    return replace(site, mean=mean, std=std)


def _check_named(site: Site, known: Sequence[str]) -> None:
    """Raises UserError if the columns of one side alone have names."""
    name, own = datasets.without_path(site.dataset.name), site.dataset.feature_names or ()
    if own and not known:
        raise UserError(
            f"dataset {name!r} names its columns ({some([*own])}), and the run's data had"
            " no names: give arrays (npz:FILE), their columns in the run's order"
        )
    if known and not own:
        raise UserError(
            f"dataset {name!r} does not name its columns, and the run's were"
            f" {some([*known])}: give a table or a data frame with these"
        )


def _check_same(what: str, site: Site, own: Any, known: Any) -> None:
    """A site may know fewer classes, but those are the first; its columns are all."""
    first = known[: len(own)] if what == "classes" else known
    if known and list(own) != list(first):
        name = datasets.without_path(site.dataset.name)
        raise UserError(
            f"dataset {name!r} has the {what} {some([*own])}, and the shared state"
            f" {some([*known])}: each needs the same place"
            + ("; set data.class-names, or data.class-map" if what == "classes" else "")
        )
