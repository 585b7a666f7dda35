"""Masks as a link of the chain for uploads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import Context

from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.flower_compat import Mod
from pfedlora_flwr.federation.link import Link

if TYPE_CHECKING:
    from pfedlora_flwr.federation.link import Tell
    from pfedlora_flwr.federation.server_state import Shared
    from pfedlora_flwr.federation.uplink import Uplink


class Masks(Link):
    """Uploads leave a client under masks, and come up as their mean alone.

    On a client that is `guard.py`, a mod of the ClientApp: it masks the difference between what
    `client_out` of the last link gives and what was received, weighted by `samples`. On the server
    it is `uplink.py`."""

    note = (
        "secure aggregation: no single update can be seen, nor refused for its size; in a"
        " simulation it protects nobody"
    )

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return e.secagg.enabled

    @classmethod
    def mod(cls, config_of: Callable[[Context], RunConfig]) -> Mod:
        # imports Flower's protocol, which servers do not need
        from pfedlora_flwr.federation.secure.guard import Guard

        return Guard(config_of)

    def way_up(self, shared: Shared, fail: Tell, refuse: Tell) -> Uplink:
        # imports Flower's workflow, which clients and plain runs do not need
        from pfedlora_flwr.federation.secure.uplink import SecureUplink

        e, server = self.experiment, self.server
        return SecureUplink(e, server.execution, self.method, shared, refuse, server.run, fail)
