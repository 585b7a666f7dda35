"""What a site may demand of the features, in the order in which a message is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pfedlora_flwr.features.audit.demands import Kept
from pfedlora_flwr.features.demand import Demand
from pfedlora_flwr.features.dp import demands as noise
from pfedlora_flwr.features.dp.ledger import Ledger as Ledger
from pfedlora_flwr.features.dp.ledger import terms_of as terms_of
from pfedlora_flwr.features.held_out.demands import Adapted
from pfedlora_flwr.features.masks import demands as masks
from pfedlora_flwr.keys import Section, section


@dataclass(frozen=True)
class Demands(Section):
    """Their sections of a policy."""

    masks: masks.Masked = section(masks.Masked)
    noise: noise.Noised = section(noise.Noised)
    uploads: Kept = section(Kept)
    adaptations: Adapted = section(Adapted)

    def demands(self) -> Iterator[Demand]:
        """Each section that is a feature's."""
        return (one for one in self.sections() if isinstance(one, Demand))


NODE_KEYS = tuple(name for one in Demands().demands() for name in one.node_keys)
"""Their keys that a node-config may hold itself."""
