"""What the features keep of a run, and what they tell of it in `result.json`: what it hides of its
clients' updates from its server, and what it does not, one line each."""

from __future__ import annotations

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp import record as noise
from pfedlora_flwr.features.held_out import record as held_out
from pfedlora_flwr.features.masks import record as masks
from pfedlora_flwr.features.membership import record as membership
from pfedlora_flwr.features.record import Record
from pfedlora_flwr.features.rules import FEATURES
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.rows import Privacy, Result

RECORDS: tuple[Record, ...] = masks.Unmasked(), noise.Account()
OUTLIVING = {record.outlives for record in RECORDS if record.outlives}
"""Files of `server` that outlive the run that wrote them."""
SIMULATED = "a simulation protects nobody: one machine holds every client's data and models"
_PLAIN = "the server reads every client's upload"
read_by_server = masks.read_by_server
add_measures = held_out.add_measures
by_numbers, check_clients = membership.by_numbers, membership.check_clients
as_before, members_of, resumed = membership.as_before, membership.members_of, membership.resumed


def outliving(run: RunFiles, e: Experiment | None) -> dict[str, bytes | None]:
    """By name, what is to stay of these files when another run takes the directory. e: of the run
    there; None where it cannot be read. Raises UserError for a damaged one."""
    return {one.outlives: one.outliving(run, e) for one in RECORDS if one.outlives}


def are_void(run: RunFiles) -> bool:
    """Whether what is kept there is of replaced runs alone."""
    return all(record.is_void(run) for record in RECORDS)


def lines_of(result: Result) -> list[str]:
    """What is said of a run beside its figures."""
    privacy = result.get("privacy")
    return [noise.line(told)] if privacy and (told := privacy.get("dp")) else []


def notes_of(e: Experiment) -> list[str]:
    """What a simulation of `e` is to say of its privacy before it begins, a line each."""
    return [f"{name}: {SIMULATED}" for name in protections(e)]


def protections(e: Experiment) -> list[str]:
    """The keys by which `e` hides something of its clients."""
    return [*filter(None, (e.hides_uploads, e.noises))]


def privacy_of(config: RunConfig, run: RunFiles) -> Privacy:
    """The section of `result.json`."""
    e, simulated = config.experiment, run.clients.is_dir()
    kept = bool(run.uploads.rounds()) or config.execution.keeps_uploads
    others = [line for feature in FEATURES for line in feature.unnoised(e, kept)]
    hidden = masks.not_covered(config)
    return {
        "secagg": masks.section(config),
        "dp": noise.section(e, run),
        "not_covered": [
            *([SIMULATED] if simulated else []),
            *(hidden or [_PLAIN]),
            *noise.not_covered(e, others, run, one_sum=bool(hidden)),
        ],
    }
