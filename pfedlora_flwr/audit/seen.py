"""What the server saw, from a run's directory: for each round the state before and after it and, if
kept, the uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch

from pfedlora_flwr.audit.measure import Bools
from pfedlora_flwr.audit.views import shared_part
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.local import OWN, LocalData, Site
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory

Source = Literal["uploads", "sum"]


@dataclass(frozen=True)
class SeenRound:
    """A round as the server saw it. upload: of a client; None where they were not kept. result: the
    state after the round."""

    method: Method
    number: int
    clients: list[int]
    before: Tensors
    upload: Callable[[int], Upload] | None
    result: Callable[[], Tensors]

    def start(self, client: int) -> Tensors:
        """The shared part as this client received it."""
        return shared_part(self.method, self.method.download(self.before, client, self.number))

    def left(self, client: int) -> Tensors:
        """The shared part as this client left it, from its upload."""
        assert self.upload is not None
        received = self.method.download(self.before, client, self.number)
        return shared_part(self.method, received, self.upload(client).tensors)

    def merged(self, client: int) -> Tensors:
        """The shared part as this client would receive it next: all that a sum tells."""
        return shared_part(self.method, self.method.download(self.after, client, self.number + 1))

    @cached_property
    def after(self) -> Tensors:
        return self.result()


class Seen:
    """A run's rounds as they can be audited. Raises UserError if nothing of them is left, or the
    clients' data is not here."""

    def __init__(self, run: RunDirectory) -> None:
        run.check_unlocked()
        self.run = run
        config = run.run_config()
        self.experiment: Experiment = config.experiment
        self.setup = Setup.of(config)
        self._data_path = config.execution.data_path
        self._check_data()
        self.method = self.setup.method
        state = run.latest()
        if state is None or not state.round:
            raise UserError(f"{run.path} has no round that is done: there is nothing to audit")
        self._state: ServerState = state
        # a later one's round was not finished
        kept = [n for n in run.uploads.rounds() if n <= state.round]
        if self.experiment.noises:
            # what follows a round has the state after it
            done = [row for row in run.rounds() if row["round"] <= state.round]
            merged = [row["round"] for row in done if row["admitted"]]
            kept = [n for n in kept if next((m for m in merged if m > n), n) in kept]
        self.source: Source = "uploads" if kept else "sum"
        self.numbers = kept or [state.round]

    def clients(self, number: int) -> list[int]:
        """Whose uploads of a round were admitted, ascending."""
        if self.source == "uploads":
            return self.run.uploads.clients(number)
        return next((row["admitted"] for row in self.run.rounds() if row["round"] == number), [])

    def round(self, number: int) -> SeenRound:
        """One of `numbers`."""
        return self._kept(number) if self.source == "uploads" else self._merged(number)

    def held(self, client: int) -> Bools:
        """Which classes this client trains on, [C]."""
        site = self._site(client)
        labels = np.asarray(site.dataset.labels[site.split.train])
        return np.isin(np.arange(self.method.classes), labels)

    def data(self, client: int) -> LocalData:
        return self._site(client).load(torch.device("cpu"))

    def _kept(self, number: int) -> SeenRound:
        uploads, clients = self.run.uploads, self.clients(number)
        before = uploads.state(number)

        def result() -> Tensors:
            if self.experiment.noises:  # what uploads give without noise was never released
                later = [n for n in self.numbers if n > number]
                return uploads.state(later[0]) if later else self._state.tensors
            all_of_it = {k: uploads.read(number, k) for k in clients}
            return self.method.aggregate(all_of_it, before, number)

        upload = partial(uploads.read, number)
        return SeenRound(self.method, number, clients, before, upload, result)

    def _merged(self, number: int) -> SeenRound:
        """The last round, from its checkpoint and the one before."""
        e, state, clients = self.experiment, self._state, self.clients(number)
        if e.control:
            raise UserError(f"{self.run.path} has {e.control}: its server keeps no sum to audit")
        if not clients:
            raise UserError(
                f"round {number} of {self.run.path} merged nothing: there is nothing to audit"
            )
        if number == 1:
            before = self.method.state_init(derive(e.seed, "state"))
        else:
            earlier = self.run.checkpoints.load(before=number)
            if earlier is None or earlier.round != number - 1:
                raise UserError(
                    f"{self.run.path} has no checkpoint of round {number - 1}, without which round"
                    f" {number} tells nothing"
                )
            before = earlier.tensors
        return SeenRound(self.method, number, clients, before, None, lambda: state.tensors)

    def _site(self, client: int) -> Site:
        return Site.find(self.experiment, client, {"data-path": self._data_path})

    def _check_data(self) -> None:
        if self.run.partition == OWN:
            raise UserError(
                f"the clients of {self.run.path} have data of their own, which is not here: an"
                " audit needs what they hold"
            )
        self.run.check_partition(self._site(0).fingerprint)
