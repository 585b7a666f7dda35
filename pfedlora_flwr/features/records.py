"""What the features tell of a run in `result.json`: what it hides of its clients' updates from its
server, and what it does not, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp import record as noise
from pfedlora_flwr.features.held_out import record as held_out
from pfedlora_flwr.features.masks import record as masks
from pfedlora_flwr.features.membership import record as membership
from pfedlora_flwr.features.rules import FEATURES
from pfedlora_flwr.runs.rows import FailedVisitRow, Privacy, VisitRow

SIMULATED = "a simulation protects nobody: one machine holds every client's data and models"
_PLAIN = "the server reads every client's upload"
read_by_server = masks.read_by_server
add_measures = held_out.add_measures
by_numbers, check_clients = membership.by_numbers, membership.check_clients
as_before, gone, resumed = membership.as_before, membership.gone_after, membership.resumed


def notes_of(e: Experiment) -> list[str]:
    """What a simulation of `e` is to say of its privacy before it begins, a line each."""
    return [f"{name}: {SIMULATED}" for name in protections(e)]


def protections(e: Experiment) -> list[str]:
    """The keys by which `e` hides something of its clients."""
    return [key for feature in reversed(FEATURES) if (key := feature.hides(e))]


def privacy_of(
    config: RunConfig,
    spent: Path,
    simulated: bool,
    visits: Iterable[VisitRow | FailedVisitRow] = (),
    *,
    own_data: bool = False,
    uploads_kept: bool = False,
) -> Privacy:
    """The section of `result.json`. spent: the server's record of `dp`. simulated: whether the
    clients were this machine's. visits: the lines of `clients.jsonl`, which tell what records have
    spent. own_data: whether each client has data of its own, and no part of one dataset.
    uploads_kept: whether uploads of earlier rounds lie in the run's directory."""
    e, kept = config.experiment, uploads_kept or config.execution.keeps_uploads
    others = [line for feature in FEATURES for line in feature.unnoised(e, kept)]
    hidden = masks.not_covered(config)
    return {
        "secagg": masks.section(config),
        "dp": noise.section(e, [*visits], spent),
        "not_covered": [
            *([SIMULATED] if simulated else []),
            *(hidden or [_PLAIN]),
            *noise.not_covered(
                e, others, simulated=simulated, own_data=own_data, one_sum=bool(hidden)
            ),
        ],
    }
