"""A run that begins from an earlier one's models (`start-from`): what is allowed, and what is
handed over. Its rounds go on behind those of the earlier run, so that no draw is made twice."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError, differing, permissions, some, wrong
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.records import protections
from pfedlora_flwr.files import tensors_sha256, write_atomically
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Origin, StartedFrom
from pfedlora_flwr.runs.shared_state import read


@dataclass(frozen=True)
class Renewal:
    """Of a run with these keys, from what its `start-from` names: an earlier run's directory, or
    the file of a shared state."""

    config: RunConfig

    @classmethod
    def of(cls, config: RunConfig) -> Renewal | None:
        """None: the run begins from nothing."""
        return cls(config) if config.experiment.start_from else None

    @property
    def after(self) -> int:
        """The earlier run's last round; 0 of a file."""
        return self._state.round if self.old else 0

    def check(self) -> None:
        """Raises UserError unless the run may begin so. Changes nothing."""
        e, place = self.config.experiment, self._place
        told = f"start-from is {str(place)!r}"
        if e.adds:
            raise UserError(
                f"{told}, and method {e.method} needs no start: one round has all rows' sums"
            )
        if e.noises_gradients or self.saved.noises_gradients:
            raise UserError(f"{told}, and what single records spend is counted in one run alone")
        if self.old:
            self._check_run(told, self.old)
        _ = self._tensors  # refuses what does not fit

    def words(self) -> list[str]:
        """What is said of it before it starts."""
        shared = "its shared state" if self._takes_state else "a shared state that begins anew"
        if self.old is None:
            return [f"start-from: {self._place}: {shared}; clients begin with initial models"]
        was = self.saved.method
        line = f"start-from: {was} after round {self.after} of {self._place}: {shared}, and each"
        lines = [f"{line} client's own model; rounds {self.after + 1} to {self._e.rounds} follow"]
        before = self._before
        if before and (why := more_sent(before, self._method)):
            lines.append(f"warning: start-from: {why}; a real node refuses it")
        return lines

    def hand_over(self, run: RunDirectory, *, simulated: bool) -> None:
        """Makes `run`, which is claimed, go on from there. simulated: whether its clients keep
        their models in its directory."""
        started: StartedFrom = {
            "place": str(self._place),
            "method": self.saved.method,
            "round": self.after,
            "shared_sha256": tensors_sha256(self._tensors),
        }
        state = ServerState(self._tensors, self.after)
        if old := self.old:
            self._hand_over_clients(old, run, state, simulated=simulated)
        write_atomically(run.start_file, json.dumps(started).encode())
        run.checkpoints.save(state)

    def _check_run(self, told: str, old: RunDirectory) -> None:
        e, saved, held = self._e, self.saved, self._state
        if Path(self.config.execution.output).resolve() == old.path.resolve():
            raise UserError(f"{told}, which is the run's own output; resume=true goes on with it")
        if not held.round:
            raise UserError(f"{told}, of which no round is done")
        if e.rounds <= held.round:
            raise UserError(
                f"rounds is {e.rounds}, and {told}, whose last round is {held.round}: the rounds go"
                f" on behind it; rounds={held.round + e.rounds} adds {e.rounds}"
            )
        if e.seed != saved.seed:
            raise UserError(
                f"seed is {e.seed}, and {told}, whose seed {saved.seed} decides which rows are for"
                f" tests: set seed={saved.seed}"
            )
        if e.clients < saved.clients:
            raise UserError(
                f"clients is {e.clients}, and {told}, which has {saved.clients}: each keeps"
                " its number"
            )
        methods = self._method, self._before or self._method
        now, was = ([str(model) for model in method.model_names] for method in methods)
        if now != was:
            raise UserError(
                f"{told}: {differing('models', now, 'that run has', was)}: another architecture"
                " cannot go on from its models"
            )
        if saved.state_per_client and not e.state_per_client:
            raise UserError(f"{told}, where every client had a state of its own: none is shared")
        owners = old.owners()
        if owners and permissions.own_machine():
            now = [*Setup.of(self.config).partition.owners][: len(owners)]
            if now != owners:
                raise UserError(
                    f"{told}: {differing('clients', now, 'that run has', owners)}: clients keep"
                    " their numbers, so the name of a new one must be the last in order"
                )

    def _hand_over_clients(
        self, old: RunDirectory, run: RunDirectory, state: ServerState, *, simulated: bool
    ) -> None:
        held, e = self._state, self._e
        state.versions, state.models = dict(held.versions), dict(held.models)
        state.stale = {*held.versions}
        if e.state_per_client:
            for client, version in held.versions.items():
                own = old.server_store(client)
                tensors = own.read(version) if self.saved.state_per_client else state.tensors
                state.states[client] = run.server_store(client).save(version, tensors, 0)
        if not (simulated or old.clients.is_dir()):
            mine: Origin = {"run": str(old.path), "token": old.token, "round": held.round}
            run.write_origin(old, mine)
            return
        for client, version in held.versions.items():
            store, own = run.client_store(client), old.client_store(client)
            own.read(version)  # refuses a damaged one
            store.folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(own.path(version), store.path(version))
        if old.parts_file.exists():
            shutil.copyfile(old.parts_file, run.parts_file)

    @property
    def _e(self) -> Experiment:
        return self.config.experiment

    @property
    def _place(self) -> Path:
        return Path(self._e.start_from)

    @cached_property
    def old(self) -> RunDirectory | None:
        """The earlier run; None of a file. Raises UserError."""
        permissions.check_file("start-from", str(self._place), permissions.OUTPUT)
        if self._place.is_file():
            return None
        if not self._place.is_dir():
            raise wrong(
                "start-from",
                str(self._place),
                "a run's directory, or a file of `pfedlora export RUN --shared`",
            )
        old = RunDirectory(self._place)
        if not old.holds_run:
            raise UserError(f"start-from is {str(self._place)!r}, which holds no run")
        old.check_whole()
        return old

    @cached_property
    def saved(self) -> Experiment:
        """What the earlier run trained."""
        return self.old.experiment() if self.old else read(self._place).experiment

    @cached_property
    def _state(self) -> ServerState:
        assert self.old is not None
        return self.old.latest() or ServerState({})

    @cached_property
    def _method(self) -> Method:
        return Setup.of(self.config).method

    @cached_property
    def _before(self) -> Method | None:
        """The earlier run's method; None where its data, by which models are chosen, is gone."""
        assert self.old is not None
        with suppress(UserError):
            return Setup.of(self.old.run_config()).method
        return None

    @cached_property
    def _first(self) -> Tensors:
        return self._method.state_init(derive(self._e.seed, "state"))

    @property
    def _takes_state(self) -> bool:
        """Whether the method goes on from the shared state: it is its own, or has all of its
        tensors."""
        return self._is_same or self._first.keys() <= self._held.keys()

    @property
    def _is_same(self) -> bool:
        return self.saved.method == self._e.method

    @cached_property
    def _held(self) -> Tensors:
        """The earlier shared state. Raises UserError for a file whose models receive different
        ones."""
        if self.old:
            return self._state.tensors
        every = [*read(self._place).downloads.values()]
        if len({tensors_sha256(one) for one in every}) > 1:
            raise UserError(
                f"start-from is {str(self._place)!r}, in which each model has a state of its own:"
                " it cannot begin a run"
            )
        return every[0]

    @cached_property
    def _tensors(self) -> Tensors:
        """The server's state, with which the run begins."""
        first, held = self._first, self._held
        if not self._takes_state:
            return first
        mine = held if self._is_same else {name: held[name] for name in first}
        what = f"the shared state of {self._place}"
        return grown(what, mine, {**mine, **first}, self._method.classes)


def grown(what: str, tensors: Tensors, fresh: Tensors, classes: int) -> Tensors:
    """Earlier tensors in the layout of `fresh`: where that has `classes` rows and these fewer, the
    last rows are those of `fresh`; where it has none, those of a memory stay. Raises UserError, by
    the name `what`, for another layout."""
    if missing := [*(fresh.keys() ^ tensors.keys())]:
        raise UserError(
            f"{what} has other tensors than the model here ({some(sorted(missing), 2)}): another"
            " architecture cannot go on from it"
        )
    return {name: _grown(what, name, tensors[name], like, classes) for name, like in fresh.items()}


def _grown(what: str, name: str, tensor: Tensor, like: Tensor, classes: int) -> Tensor:
    rows, wanted = ([*t.shape[:1]] for t in (tensor, like))
    if tensor.shape == like.shape or wanted == [0]:
        return tensor
    if tensor.shape[1:] == like.shape[1:] and rows < wanted == [classes]:
        return torch.cat([tensor, like[len(tensor) :].to(tensor)])
    raise UserError(
        f"{what}: {name} is {[*tensor.shape]}, and {[*like.shape]} here: another architecture"
        " cannot go on from it"
    )


def more_sent(before: Method, now: Method) -> str:
    """What a method would send of models that another has trained and kept at home; empty: it sends
    a part of what that one sent, as well hidden."""
    e, earlier = now.experiment, before.experiment
    if less := [key for key in protections(earlier) if key not in protections(e)]:
        return f"the earlier run had {less[0]}, and this one has not"
    if e.method == "standalone":
        return ""
    alike = e.method == earlier.method or (now.averages and before.averages)
    if more := sorted(_sent(now) - _sent(before)) if alike else [e.method]:
        of = "uploads" if not alike else some(more, 2)
        return f"{e.method} sends {of}, which {earlier.method} kept with the clients"
    return ""


def _sent(method: Method) -> set[str]:
    e = method.experiment
    return {*method.renewed(method.state_init(derive(e.seed, "state")), 1), *method.rows_sent(e)}
