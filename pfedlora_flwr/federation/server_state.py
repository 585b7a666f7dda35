"""The server's state between rounds: before round 1, as a client receives it, as a round's uploads
change it, and what it must be. Methods do not know of the key `sharing`, which decides here.

`mean` is the method as it is. The other two are controls, which show how much of its accuracy comes
from sharing: under `none` every client is a federation of one, with a state of its own; under
`start` the first state stays, whatever clients upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError, kind, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import ByClient, Method, Refused, Tensors, check_layout
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory


def first_state(e: Experiment, method: Method) -> Tensors:
    """The server's state before round 1. Raises UserError if it is none, if it cannot be summed
    under masks or with noise and shall be, or if `sharing` makes the method Standalone."""
    state = method.state_init(derive(e.seed, "state"))
    check_state(f"method {e.method!r}: state_init", state)
    whole = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    if e.hides_clients and whole:
        raise UserError(
            f"method {e.method} shares the integer tensors {some(whole, 5)}, of which"
            f" {e.hides_clients} can take no mean"
        )
    if why := _why_standalone(e, method, state):
        raise UserError(
            f"method {e.method} with sharing={e.sharing} is Standalone by construction: {why}; run"
            " method=standalone"
        )
    return state


@lru_cache(maxsize=1024)
def is_standalone(setup: Setup) -> bool:
    """Whether `sharing` makes the method Standalone by construction: no client ever receives
    anything."""
    e = setup.experiment
    if _may_return(e):
        return False
    return bool(_why_standalone(e, setup.method, setup.method.state_init(derive(e.seed, "state"))))


Aggregate = Callable[[ByClient, Tensors, Round], Tensors]


class Shared:
    """One state for all clients, merged from all uploads of a round.

    state: the run's, which is changed in place. aggregate: makes the next state of a round's
    uploads and the state before them.
    """

    def __init__(self, run: RunDirectory, state: ServerState, aggregate: Aggregate) -> None:
        self._store = run.server_store
        self._server = state
        self._aggregate = aggregate

    def of(self, client: int) -> Tensors:
        """The state that this client's download is made of, and that its upload is checked
        against."""
        return self._server.tensors

    def merge(self, uploads: ByClient, round: Round) -> None:
        """Takes in a round's admitted uploads, by client in client order."""
        self._server.tensors = self._aggregate(uploads, self._server.tensors, round)


class Alone(Shared):
    """`none`: a state for each client, merged from its own uploads alone; the first one until it
    has been admitted.

    A state has the version of its client's model, the round of the last admitted upload, and lies
    on disk as that does: written when it changes, before the checkpoint that names it, and kept as
    long as one of the last two checkpoints may be gone back to."""

    def __init__(self, run: RunDirectory, state: ServerState, aggregate: Aggregate) -> None:
        super().__init__(run, state, aggregate)
        self._held: dict[int, Tensors] = {}  # of this round's clients

    def of(self, client: int) -> Tensors:
        version = self._server.versions.get(client, 0)
        if not version:
            return self._server.tensors
        if client not in self._held:
            store = self._store(client)
            stored = store.load(version)
            if stored is None:
                raise UserError(
                    f"{store.path(version)}, the state of client {client} on the server, is missing"
                    " or damaged; restore it"
                )
            self._held[client] = stored
        return self._held[client]

    def merge(self, uploads: ByClient, round: Round) -> None:
        server = self._server
        for client, upload in uploads.items():
            merged = self._aggregate({client: upload}, self.of(client), round)
            server.states[client] = self._store(client).save(
                round.number, merged, server.versions.get(client, 0)
            )
        self._held.clear()
        round.aggregation_error = None  # each merge was of one upload


class Start(Shared):
    """`start`: the first state for all clients, for ever; uploads are dropped."""

    def merge(self, uploads: ByClient, round: Round) -> None:
        pass


BY_NAME: Mapping[str, type[Shared]] = {"mean": Shared, "none": Alone, "start": Start}
"""What each value of `sharing` stands for."""


def shared_by(e: Experiment, run: RunDirectory, state: ServerState, aggregate: Aggregate) -> Shared:
    """What keeps a run's state, by `sharing`."""
    return BY_NAME[e.sharing](run, state, aggregate)


class NotFinite(UserError):
    """A state of the server with values that are not finite."""


def check_state(what: str, state: object, like: Tensors | None = None) -> None:
    """Raises UserError unless the server's state is named tensors with finite values and, where
    `like` is given, laid out like it.

    what: whose it is, in words.
    """
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        found = "a dict with other values" if isinstance(state, dict) else kind(state)
        raise UserError(f"{what} returned {found}, expected a dict of tensors")
    if like is not None:
        try:
            check_layout(state, like)
        except Refused as reason:
            raise UserError(f"{what} returned a state of another layout: {reason}") from None
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFinite(f"{what} returned {name} with values that are not finite")


def _why_standalone(e: Experiment, method: Method, state: Tensors) -> str:
    """Why no client ever receives anything, and the method then trains as Standalone does; empty
    where one may, and for a user's own method, which may train otherwise. It is decided by the
    first state, not by names."""
    if _may_return(e):
        return ""
    first = method.download(state, 0, 1)
    check_state(f"method {e.method!r}: download", first)
    if any(tensor.numel() for tensor in first.values()):
        return ""
    if e.sharing == "start":
        return "the first state holds nothing to send"
    return "a client receives nothing of what it uploads itself"


def _may_return(e: Experiment) -> bool:
    """Whether what clients upload may come back to them, so that what they first receive decides
    nothing; or the method is a user's own."""
    return (
        e.sharing == "mean"
        or ":" in e.method
        or (e.state_per_client and registry.find(e.method).returns_own)
    )
