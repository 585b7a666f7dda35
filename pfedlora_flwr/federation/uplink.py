"""How uploads reach the server: admitted and ready to be merged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pfedlora_flwr.errors import as_line
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.admission import Admitted, admit
from pfedlora_flwr.federation.clients import Clients
from pfedlora_flwr.federation.messages import taken_in
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.server_state import Shared
from pfedlora_flwr.methods.method import Diverged, Method, Refused, Upload
from pfedlora_flwr.runs.checkpoint import Summed


@dataclass(frozen=True)
class Collected:
    """What a round has brought: the admitted visits, and the uploads to merge, both in client
    order.

    reason: why the round does not count all the same; empty where it may. summed: what the clients
    tell together, where none tells it alone.
    """

    visits: dict[int, Admitted]
    uploads: dict[int, Upload]
    reason: str = ""
    summed: Summed | None = None


@dataclass
class Uplink(ABC):
    """How a round's uploads come up.

    refuse: told of a client whose answer is not admitted, and why.
    """

    experiment: Experiment
    execution: Execution
    method: Method
    shared: Shared
    refuse: Callable[[Round, int, str], None]
    asks_for_scores = True
    """Whether a client is asked for its scores by itself, outside a visit."""

    @abstractmethod
    def train(self, round: Round, clients: Clients) -> Collected:
        """Sends the round's sampled clients their instructions, and admits what they answer."""


class PlainUplink(Uplink):
    """Every client's upload by itself, as the server can read it."""

    def train(self, round: Round, clients: Clients) -> Collected:
        messages = clients.messages(round, round.sampled, "training")
        round.clock.lap("prepare")
        replies = clients.ask(round, messages, "training")
        round.clock.lap("wait")
        e, x = self.experiment, self.execution
        visits, uploads = dict[int, Admitted](), dict[int, Upload]()
        for client, reply in sorted(replies.items()):
            try:
                visits[client], uploads[client] = admit(
                    reply,
                    self.method,
                    self.shared.of(client),
                    client,
                    round.number,
                    1 if e.weighs_alike else x.max_samples,
                    e.evaluates(round.number),
                    told=taken_in(e),
                    tells_samples=not e.noises_rounds,
                )
            except Diverged as told:
                round.diverged[client] = as_line(str(told))
                self.refuse(round, client, f"it diverged: {told}")
            except Refused as refusal:
                self.refuse(round, client, str(refusal))
        return Collected(visits, uploads)
