"""Loads the models for `predict`, `evaluate` and `export`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.checks import Say
from pfedlora_flwr.runs.code_copy import note_of
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import Trained, clients_of, load_trained


def models_of(
    place: Path, client: int | None, warn: Say, *, all_clients: bool = False
) -> Iterable[Trained]:
    """The model of `client` or, loaded one at a time, of all clients. Raises UserError unless it is
    one of the two.

    warn: is told where the user's code is not what the run's rounds were done with, and how many
    clients have no model."""
    if (client is None) != all_clients:
        raise UserError("give either client=K or all-clients=true")
    note_code(place, warn)
    if client is not None:
        return [load_trained(place, client)]
    trained, untrained = clients_of(place)
    if untrained:
        warn(
            f"note: {len(untrained)} of {len(trained) + len(untrained)} clients have not been"
            " trained: they have no model"
        )
    return (load_trained(place, k) for k in trained)


def note_code(place: Path, warn: Say) -> None:
    """Tells where the user's code is not what the rounds of the run there were done with."""
    if place.is_dir() and (said := note_of(RunDirectory(place))):
        warn(f"note: {said}")
