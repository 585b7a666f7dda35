"""A link of the chain for uploads: one step between a client's training and the server's state.
`features/links.py` has the order of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context

from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.flower_compat import Mod
from pfedlora_flwr.methods.method import ByClient, Method, Tensors, Upload
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import VisitRow
from pfedlora_flwr.training.loop import Noise, Visit

if TYPE_CHECKING:  # the server's, which a client's process need not import
    from pfedlora_flwr.features.demands import Ledger
    from pfedlora_flwr.federation.messages import Instruction
    from pfedlora_flwr.federation.round import Round
    from pfedlora_flwr.federation.server_state import Shared
    from pfedlora_flwr.federation.uplink import Uplink

    Tell = Callable[[Round, int, str], None]

Drawn = tuple[Noise | None, dict[str, Any]]
"""Noise for a client's training, and what its report says of that."""


@dataclass(frozen=True)
class Server:
    """What links have on the server and not on a client."""

    execution: Execution
    run: RunDirectory
    state: ServerState
    """The server's memory, which the checkpoint of each round keeps."""


class Link:
    """The contract. Each hook passes on what it is given unless a link defines it.

    A link is made anew in every process of a run and for every visit of a client: what it must
    remember from one round to the next belongs in the server's memory or the run's directory.
    """

    note = ""
    """A line for the run's log; empty: none."""

    def __init__(self, experiment: Experiment, method: Method, server: Server | None) -> None:
        """server: None on a client."""
        self.experiment = experiment
        self.method = method
        self._server = server

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        """Whether a run of `e` has this link. x: None on a client, which is told little of it."""
        return True

    @property
    def server(self) -> Server:
        """What a hook on the server works with."""
        assert self._server is not None
        return self._server

    # On a client

    @classmethod
    def mod(cls, config_of: Callable[[Context], RunConfig]) -> Mod | None:
        """A mod of Flower's around every message to a client, of all runs. It comes after
        `client_out` of all links.

        Args:
            config_of: the run's keys, from the context of a message.
        """
        return None

    def draw(self, told: Instruction, folder: Path, samples: int, ledger: Ledger | None) -> Drawn:
        """The noise that training is to have, counted before it is drawn, and what the client's
        report says of it.

        Args:
            told: what the client is told of this visit.
            folder: where what is known of its data is kept, whatever number the client has.
            samples: of its training part.
            ledger: of a real node with a `state-path`.
        """
        return None, {}

    def client_out(self, upload: Upload, received: Tensors, visit: Visit) -> Upload:
        """What is to leave the client in the place of `upload`.

        Args:
            upload: what the method sends, on the client's device; its `samples` are its weight.
            received: what the server sent for this visit, there too.
            visit: its client, its round and its generator.
        """
        return upload

    # On the server

    def begin(self, round: Round) -> None:
        """A round is about to be sent out. Raises RunStopped where the run is to end before it."""

    def way_up(self, shared: Shared, fail: Tell, refuse: Tell) -> Uplink | None:
        """How uploads come up, where that is not each by itself.

        Args:
            shared: the states that clients received.
            fail, refuse: told of a client without an answer, or without an admitted one, and why.
        """
        return None

    def refused(self, uploads: ByClient) -> Mapping[int, str]:
        """The clients whose admitted uploads are not to count, and why; they fail in this round."""
        return {}

    def too_few(self, uploads: ByClient, round: Round) -> str:
        """Why the uploads that are left make no round; empty where they may. round: with its
        failures."""
        return ""

    def server_in(self, uploads: ByClient, state: Tensors, round: Round) -> ByClient:
        """The uploads that are to be aggregated into `state`, of a round that counts.

        Args:
            uploads: by client; under masks one, of SERVER: the mean of all.
            round: its number, and in `visits` who was admitted.
        """
        return uploads

    def server_out(
        self, merged: Tensors, uploads: ByClient, state: Tensors, round: Round
    ) -> Tensors:
        """The server's next state, in the place of `merged`, which `uploads` made of `state`."""
        return merged

    def line(self, visits: Sequence[VisitRow]) -> dict[str, Any]:
        """What it adds to the round's line. visits: the lines of those that were admitted."""
        return {}
