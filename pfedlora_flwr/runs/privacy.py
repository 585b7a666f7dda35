"""What a run hides of its clients' updates from its server, and what it does not, one line each;
docs/privacy.md has more."""

from __future__ import annotations

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.rows import Privacy

SIMULATED = "a simulation protects nobody: one machine holds every client's data and models"
_PLAIN = "the server reads every client's upload"
_SECURE = (
    "what the sum of a round's updates tells, such as the classes that its clients hold together",
    (
        "in the clear: accuracies and sample counts of the evaluation parts, from which n_k follows"
        " roughly, seconds, the hash of the model"
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


def notes_of(e: Experiment) -> list[str]:
    """What a simulation of `e` is to say of its privacy before it begins, a line each."""
    return [f"secagg.enabled: {SIMULATED}"] if e.secagg_enabled else []


def privacy_of(config: RunConfig, simulated: bool) -> Privacy:
    """The section of `result.json`. simulated: whether the clients were this machine's."""
    on = config.experiment.secagg_enabled
    return {
        "secagg": {
            "enabled": on,
            "threshold": config.execution.secagg_threshold if on else None,
            "clip": config.experiment.secagg_clip if on else None,
        },
        "not_covered": [*([SIMULATED] if simulated else []), *(_SECURE if on else [_PLAIN])],
    }
