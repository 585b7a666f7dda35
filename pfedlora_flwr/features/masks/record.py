"""What secure aggregation hides of a run's updates and what it does not, for `result.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features.record import Record
from pfedlora_flwr.runs.clear import in_words
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.rows import Privacy, SecAgg

_SECURE = (
    (
        "what the sums of a round's updates and scores tell, such as the classes that its clients"
        " hold together, and their mean accuracies"
    ),
    "operations: the clients tell none, and every total here is without theirs",
    (
        "a server that forges clients' keys, registers nodes of its own, repeats a round in another"
        " run, or submits another app"
    ),
    (
        "a client that sends a wrong update: it is hidden from the server too, which can refuse"
        " none for its size"
    ),
    (
        "clients that collude with the server: a third of those that hold shares of a client's"
        " keys, or all but one"
    ),
)


class Unmasked(Record):
    """The rounds that were unmasked, or were about to be."""

    def is_void(self, run: RunFiles) -> bool:
        return not run.unmasking_file.exists()


def section(config: RunConfig) -> SecAgg:
    on, clip = config.experiment.secagg.enabled, config.experiment.secagg.clip
    if not on:
        return {"enabled": False, "threshold": None, "clip": None}
    return {"enabled": True, "threshold": config.execution.secagg_threshold, "clip": clip}


def not_covered(config: RunConfig) -> list[str]:
    """What can still be learned, a line each; without masks they are the other features' to say."""
    e = config.experiment
    return [*_SECURE, f"in the clear: {in_words(e)}"] if e.secagg.enabled else []


def leaves(found: Mapping[str, Any]) -> str:
    """How a site's uploads leave it, by its audit."""
    return (
        "masked: the server read only sums" if found["masked"] else "read by the server as it was"
    )


def read_by_server(told: Privacy) -> str:
    """What the server of a run could read of its clients, by its result."""
    return "a round's sum" if told["secagg"]["enabled"] else "each client's upload"
