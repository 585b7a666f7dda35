"""The server's state between rounds, by the key `sharing`: in one place for all methods, which do
not know of it.

`mean` is the method as it is. The other two are controls, which show how much of its accuracy comes
from sharing: under `none` every client is a federation of one, with a state of its own; under
`start` the first state stays, whatever clients upload."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pfedlora_flwr.data.local import task_of
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.server_state import Aggregate, Shared, check_state
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.store import ClientStore


def check_sharing(e: Experiment, method: Method, state: Tensors) -> None:
    """Raises UserError if `sharing` makes the method Standalone.

    state: the server's before round 1."""
    if why := _why_standalone(e, method, state):
        raise UserError(
            f"method {e.method} with sharing={e.sharing} is Standalone by construction: {why}; run"
            " method=standalone"
        )


@lru_cache(maxsize=1024)
def is_standalone(e: Experiment, data_path: str) -> bool:
    """Whether `sharing` makes the method Standalone by construction: no client ever receives
    anything."""
    if _may_return(e):
        return False
    method = registry.make(e, task_of(e, data_path))
    return bool(_why_standalone(e, method, method.state_init(derive(e.seed, "state"))))


def _why_standalone(e: Experiment, method: Method, state: Tensors) -> str:
    """Why no client ever receives anything; empty where one may. It is decided by the first state,
    not by names."""
    if _may_return(e):
        return ""
    first = method.download(state, 0, 1)
    check_state(f"method {e.method!r}: download", first)
    if any(tensor.numel() for tensor in first.values()):
        return ""
    return (
        "the first state holds nothing to send"
        if e.sharing == "start"
        else "a client receives nothing of what it uploads itself"
    )


def _may_return(e: Experiment) -> bool:
    """Whether what clients upload may come back to them, so that what they first receive decides
    nothing."""
    return e.sharing == "mean" or (e.sharing == "none" and registry.find(e.method).returns_own)


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

    def merge(self, uploads: Mapping[int, Upload], round: Round) -> None:
        server = self._server
        for client, upload in uploads.items():
            merged = self._aggregate({client: upload}, self.of(client), round)
            server.states[client] = self._store(client).save(
                round.number, merged, server.versions.get(client, 0)
            )
        self._held.clear()

    def _store(self, client: int) -> ClientStore:
        return ClientStore(self._states / str(client))


class Start(Shared):
    """`start`: the first state for all clients, for ever; uploads are dropped."""

    def merge(self, uploads: Mapping[int, Upload], round: Round) -> None:
        pass


BY_NAME: Mapping[str, type[Shared]] = {"mean": Shared, "none": Alone, "start": Start}
"""What each value of `sharing` stands for."""


def shared_by(
    e: Experiment, method: Method, run: RunDirectory, state: ServerState, aggregate: Aggregate
) -> Shared:
    """What keeps a run's state, by `sharing`. Raises UserError before round 1 if that makes the
    method Standalone."""
    if not state.round:
        check_sharing(e, method, state.tensors)
    return BY_NAME[e.sharing](run, state, aggregate)
