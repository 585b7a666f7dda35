"""The contract of a feature's `rules.py`: how its keys go together with others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method


class Feature:
    """Each hook says nothing unless a feature defines it.

    phases: what a server does with clients beside their training and evaluation, in words by phase.
    lines: the files of a run's directory in which it writes lines, which stay when the run goes on.
    files: what it leaves in a run's directory of the rounds so far. controls: by key its values, as
    reports call them; all but the first make a run a control. growing: its keys that a resumed run
    may change. told: fields of a client's report that are told in the clear, but under masks.
    learns_otherwise: its keys with which clients no longer learn as in the paper's tables."""

    phases: Mapping[str, str] = MappingProxyType({})
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    controls: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    growing: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    learns_otherwise: frozenset[str] = frozenset()

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        """Raises UserError for keys that do not go together."""

    def unused(self, name: str, e: Experiment) -> str:
        """Why the key `name` changes nothing in the run; empty where it may."""
        return ""

    def one_mean(self, e: Experiment, x: Execution) -> str:
        """The key by which it works on the one mean of a round's uploads; empty: it does not."""
        return ""

    def needs_state(self, e: Experiment) -> str:
        """The key, with its value, for which all clients must share a state; empty: none."""
        return ""

    def unnoised(self, e: Experiment, kept: bool) -> list[str]:
        """What it lets be learned in spite of noise, a line each. kept: whether uploads are."""
        return []

    def add_result(self, result: Any, e: Experiment, round: int) -> None:
        """Adds to a run's result after `round` what it tells."""

    def without_scores(self, result: Any) -> int:
        """How many clients of a run with this result its last means leave out, as they should."""
        return 0


def check_mean(e: Experiment, method: type[Method], needs: str) -> None:
    """Raises UserError for a method that takes no mean of uploads, which the key `needs` does."""
    if not method.averages and not method.adds:
        found = ((name, registry.find(name)) for name in registry.NAMES)
        averaging = ", ".join(name for name, one in found if one.averages or one.adds)
        raise UserError(
            f"method {e.method} does not take a mean of uploads; {needs} needs one that does:"
            f" {averaging}"
        )
