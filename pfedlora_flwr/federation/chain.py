"""The chain for uploads: the links of a run. `features/links.py` has their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.links import LINKS
from pfedlora_flwr.federation.flower_compat import Mod
from pfedlora_flwr.federation.link import Drawn, Server
from pfedlora_flwr.federation.server_state import Shared, check_state
from pfedlora_flwr.methods.method import ByClient, Method, Tensors, Upload
from pfedlora_flwr.rng import SERVER, derive, seeded
from pfedlora_flwr.runs.rows import VisitRow
from pfedlora_flwr.training.loop import Visit

if TYPE_CHECKING:
    from pfedlora_flwr.features.demands import Ledger
    from pfedlora_flwr.federation.link import Tell
    from pfedlora_flwr.federation.messages import Instruction
    from pfedlora_flwr.federation.round import Round
    from pfedlora_flwr.federation.uplink import Uplink


def mods(config_of: Callable[[Context], RunConfig]) -> list[Mod]:
    """The links' mods of the ClientApp, which a client has whatever run it is asked for."""
    return [mod for link in LINKS if (mod := link.mod(config_of)) is not None]


class Chain:
    """The links that a run has."""

    def __init__(
        self, experiment: Experiment, method: Method, server: Server | None = None
    ) -> None:
        """server: None on a client."""
        execution = server.execution if server else None
        self._method = method
        self._experiment = experiment
        self._links = [
            link(experiment, method, server)
            for link in LINKS
            if link.is_used(experiment, execution)
        ]

    @property
    def notes(self) -> list[str]:
        """What the links say of themselves in the run's log."""
        return [link.note for link in self._links if link.note]

    def draw(self, told: Instruction, folder: Path, samples: int, ledger: Ledger | None) -> Drawn:
        """The noise that a client's training is to have, by the first link that has some."""
        drawn = (link.draw(told, folder, samples, ledger) for link in self._links)
        return next((found for found in drawn if found[0] is not None), (None, {}))

    def client_out(self, upload: Upload, received: Tensors, visit: Visit) -> Upload:
        """What leaves the client, except for the masks on it, in the place of `upload`."""
        for link in self._links:
            upload = link.client_out(upload, received, visit)
        return upload

    def begin(self, round: Round) -> None:
        """Asks the links before a round is sent out. Raises RunStopped where one ends the run."""
        for link in self._links:
            link.begin(round)

    def way_up(self, shared: Shared, fail: Tell, refuse: Tell) -> Uplink | None:
        """How uploads come up, where a link has a way of its own."""
        ways = (link.way_up(shared, fail, refuse) for link in self._links)
        return next((way for way in ways if way is not None), None)

    def refused(self, uploads: ByClient) -> dict[int, str]:
        """The clients whose admitted uploads do not count, and why. A link sees what those before
        it have left."""
        found: dict[int, str] = {}
        for link in self._links:
            left = {client: upload for client, upload in uploads.items() if client not in found}
            found |= link.refused(left)
        return found

    def too_few(self, uploads: ByClient, round: Round) -> str:
        """Why the uploads that are left make no round; empty where they may."""
        told = (link.too_few(uploads, round) for link in self._links)
        return next((why for why in told if why), "")

    def aggregate(self, uploads: ByClient, state: Tensors, round: Round) -> Tensors:
        """The state after `state`. What the method makes is checked as what is received is: it must
        not be a checkpoint from which no run can go on."""
        for link in self._links:
            uploads = link.server_in(uploads, state, round)
        e = self._experiment
        whose = next(iter(uploads), SERVER) if e.state_per_client else SERVER
        with seeded(derive(e.seed, "aggregate", whose, round.number)):  # for a user's own method
            merged = self._method.aggregate(uploads, state, round.number)
        check_state(
            f"method {e.method!r}: aggregate",
            merged,
            state if self._method.averages else None,
        )
        if not e.hides_clients and SERVER not in uploads:
            round.aggregation_error = self._method.aggregation_error(uploads, state, merged)
        for link in self._links:
            merged = link.server_out(merged, uploads, state, round)
        return merged

    def line(self, visits: Sequence[VisitRow]) -> dict[str, Any]:
        """What the links add to the line of the round that was last begun."""
        return {name: value for link in self._links for name, value in link.line(visits).items()}
