"""The server's state between rounds: before round 1, as a client receives it, as a round's uploads
change it, and what it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError, kind, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods.method import Method, Refused, Tensors, Upload, check_layout
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory


def first_state(e: Experiment, method: Method) -> Tensors:
    """The server's state before round 1. Raises UserError if it is none, or cannot be summed under
    masks or with noise and shall be."""
    state = method.state_init(derive(e.seed, "state"))
    check_state(f"method {e.method!r}: state_init", state)
    if (e.secagg_enabled or e.dp_enabled) and (
        whole := [name for name, tensor in state.items() if not tensor.is_floating_point()]
    ):
        raise UserError(
            f"method {e.method} shares the integer tensors {some(whole, 5)}, of which"
            f" {'secagg.enabled' if e.secagg_enabled else 'dp'} can take no mean"
        )
    return state


Aggregate = Callable[[Mapping[int, Upload], Tensors, Round], Tensors]


class Shared:
    """One state for all clients, merged from all uploads of a round.

    state: the run's, which is changed in place. aggregate: makes the next state of a round's
    uploads and the state before them.
    """

    def __init__(self, run: RunDirectory, state: ServerState, aggregate: Aggregate) -> None:
        self._states = run.states
        self._server = state
        self._aggregate = aggregate

    def of(self, client: int) -> Tensors:
        """The state that this client's download is made of, and that its upload is checked
        against."""
        return self._server.tensors

    def merge(self, uploads: Mapping[int, Upload], round: Round) -> None:
        """Takes in a round's admitted uploads, by client in client order."""
        self._server.tensors = self._aggregate(uploads, self._server.tensors, round)


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
