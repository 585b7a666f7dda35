"""The contract of a feature's `demands.py`: a section of a site's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import Section
from pfedlora_flwr.methods.method import ByClient, Tensors

if TYPE_CHECKING:
    from flwr.app import Message


class Demand(Section):
    """Each hook says nothing unless a feature defines it. node_keys: its keys that a node-config
    may hold itself."""

    node_keys: ClassVar[tuple[str, ...]] = ()

    def counting(self) -> str:
        """Its keys for which the node has to count on its disk; empty: none is set."""
        return ""

    def contradictions(self, scores: str) -> Iterator[str]:
        """Rules of which no run keeps both. scores: `egress.scores`."""
        return iter(())

    def objections(self, config: RunConfig, asked: Mapping[str, Any], kind: str) -> Iterator[str]:
        """What stands against a message of this run. asked: what it says. kind: of it."""
        return iter(())

    def protection(self, e: Experiment, asked: Message) -> str:
        """By what it protects the answer, in the site's log; empty: by nothing."""
        return ""

    def logged(self, e: Experiment, folder: Path) -> dict[str, Any]:
        """What the log is to say beside that. folder: the node's state-path."""
        return {}

    def sent(self, home: Path, round: int, received: Tensors, own: ByClient, samples: int) -> None:
        """Is told of a client's own upload. home: the folder of its models in the run. received:
        what the visit began with. samples: of the training part."""
