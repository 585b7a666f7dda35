"""Builds `result.json` from a run's lines and its last checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast, get_args

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.records import add_measures, privacy_of
from pfedlora_flwr.features.rules import FEATURES
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.models.named import without_path
from pfedlora_flwr.models.registry import models_of, of_client
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.data_name import data_name, own_data, versions_told
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import FORMAT
from pfedlora_flwr.runs.rows import (
    Communication,
    FailedVisitRow,
    Result,
    RoundRow,
    Status,
    StoppedBy,
    ToTarget,
    VisitRow,
)
from pfedlora_flwr.training.metrics import VALIDATION, is_score, place, worth

logger = logging.getLogger(__name__)
LINE = "pfedlora: "
RESULT_LINE = LINE + "result "
"""How the ServerApp's own lines begin in Flower's log, and its last one, which holds the result."""
STATUS_LINE, FILES_LINE = LINE + "status ", LINE + "files "
"""How the lines begin there that hold a RunStatus, and a run's files."""
FOR_PROGRAMS = (RESULT_LINE, STATUS_LINE, FILES_LINE)
_UNTIL = ("rounds", "parameters", "bytes", "flops")


def write_result(
    run: RunDirectory,
    config: RunConfig,
    status: Status,
    error: str | None = None,
    stopped_by: StoppedBy | None = None,
    *,
    resumable: bool = True,
    diverged_in: int | None = None,
    begun: bool = True,
    tell: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Writes and returns the result.

    resumable: whether what ended the run is over when it is resumed. diverged_in: the round in
    which it diverged. begun: False where what is here is still the run that this one was to
    replace. tell: is handed the result before it is written, and may add to it; once it is
    there, a launcher ends this process."""
    experiment = config.experiment
    state = run.checkpoints.load() if begun else None
    result: Result = {
        "format": FORMAT,
        "status": status,
        "error": error,
        "stopped_by": stopped_by,
        "method": experiment.method,
        "dataset": data_name(run, experiment),
        "fingerprint": experiment.fingerprint(),
        "clients": experiment.clients,
        "resumable": resumable and status != "completed" and begun,
    }
    for feature in FEATURES:
        feature.add_result(result, experiment, state.round if state else 0)
    if diverged_in is not None:
        result["diverged_in"] = diverged_in
    if begun:
        result = _with_what_is_here(result, run, config, state)
    tell(result)
    try:
        run.write_result(result)
    except OSError as failure:  # a full disk: whoever reads the log must still get the reason
        if status == "completed":
            raise
        logger.warning("result.json cannot be written: %s", failure.strerror)
    return result


def result_in(log: Iterable[str]) -> dict[str, Any] | None:
    """What the ServerApp printed at its end, `directory` and `result`, from the lines of its log;
    None if there is none, or it is damaged."""
    lines = [line for line in log if line.startswith(RESULT_LINE)]
    try:
        told: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT_LINE))
        found = told["result"]
        whole = found["status"] in get_args(Status) and isinstance(found["error"], str | None)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return told if whole else None


def _with_what_is_here(
    result: Result, run: RunDirectory, config: RunConfig, state: ServerState | None
) -> Result:
    """With what the directory tells of the run: its privacy, where it was begun, its measures."""
    experiment = config.experiment
    result["privacy"] = privacy_of(config, run)
    if origins := run.origins():
        result["begun_from"] = [
            {"run": o["run"], "without": o["without"], "round": o["round"]}
            for o in origins
            if "without" in o
        ]
    if started := run.started_from():
        result["started_from"] = started
    rows = run.rounds()
    if state is not None and rows:
        result = _with_measures(result, run, config, state, rows)
        add_measures(result, experiment, run)
    return result


def _data_notes(run: RunDirectory, config: RunConfig) -> list[str] | None:
    """Of a simulation's data, which is on this machine; otherwise the sites have it."""
    if not run.clients.is_dir():
        return None
    try:
        return Setup.of(config).remarks
    except UserError:  # gone since
        return None


def _with_measures(
    result: Result, run: RunDirectory, config: RunConfig, state: ServerState, rows: list[RoundRow]
) -> Result:
    e = config.experiment
    per_client, means_alone = state.accuracies("test"), state.means is not None
    over_all = comparable(e, rows)
    best = at_best(e, rows, config.execution.verdict_score)
    samples: dict[int, int | None] = {}  # of the clients' last visits
    nodes: Counter[str] = Counter()
    lost = 0
    for row in run.visits():
        if row["status"] == "ok":
            samples[row["client"]] = row["samples"]
            lost += row["lost"]
            nodes.update([row["node"]] if "node" in row else [])
    means = [*sampled_by_round(run.visits()).values()]
    task = Setup.of(config).task
    if own := own_data(run, task, samples, state.counts):
        result = {**result, "own_data": own}
    totals = state.totals
    models = [without_path(name) for name in models_of(e, task)]
    trained = [row for row in rows if row["round"] > 0]
    workers = max((row["workers"] for row in trained), default=0)
    found = {
        **result,
        "rounds": state.round,
        **({"ended_early": True} if state.round < e.rounds and ends_early(e, rows) else {}),
        "accuracy": {
            "final": rows[-1]["accuracy"],
            **best.pop("accuracy"),
            "max_test": max(row["accuracy"] for row in over_all),
            "sampled_last": means[-1] if means else None,
            "sampled_highest": max(means, default=None),
            "std": None if means_alone else statistics.pstdev(per_client.values() or [0.0]),
            "evaluated": state.evaluated()["evaluated"],
            "worst": None if means_alone else min(per_client.values(), default=0.0),
            "other": rows[-1]["other_accuracies"],
        },
        **best,
        "per_client": {
            str(k): {
                "model": of_client(k, models),
                **state.counts[k].line(),
                "test": state.counts[k].test,
                "samples": samples.get(k),
                "last_round": state.versions.get(k, 0),
            }
            for k in per_client
        },
        "communication": cast(
            Communication, {k: n for k, n in totals.as_dict().items() if k != "flops"}
        ),
        "flops": totals.flops,
        "operations": {"clients": totals.flops, "server": state.server_flops},
        "to_target": to_target(e, rows),
        "seconds": {
            "total": state.seconds,
            "training": state.training_seconds,
            "per_round_median": (
                statistics.median([row["seconds"] for row in trained]) if trained else 0.0
            ),
            "workers": workers,
            "busy_share": (
                state.busy_seconds / (workers * state.seconds) if workers and state.seconds else 0.0
            ),
        },
        "machine": {"nodes": dict(nodes)},
        **({"versions": told} if (told := versions_told(run)) else {}),
        "shared_sha256": shared_sha256(e, state),
        **({"models_sha256": models_sha256(state)} if state.models else {}),
        "partition": run.partition,
        "data_notes": _data_notes(run, config),
        "refused": state.refused,
        "lost": lost,
    }
    return cast(Result, found)


def never_evaluated(result: Result) -> int:
    """How many clients of a completed run count in none of its means, since they were not evaluated
    before their first visit and had none; those that have left or are held out are no such ones."""
    gone = sum(feature.without_scores(result) for feature in FEATURES)
    return result["clients"] - gone - result["accuracy"]["evaluated"]


def comparable(e: Experiment, rows: list[RoundRow]) -> list[RoundRow]:
    """The rounds whose accuracy is a mean over as many clients as the last one's, and over none
    that has left since: the others' are means over other clients.

    That is all of them, unless clients had not been evaluated before their first visit
    (`evaluate-initial` is false, or they failed), or some have joined or left. Under masks each
    round has the mean of its own clients, which is the only one there is: all count."""
    last = rows[-1]
    if e.hides_uploads:
        return [row for row in rows if row["evaluated"]] or rows
    since = e.fewer_since(last["round"])
    alike = [row for row in rows if row["evaluated"] == last["evaluated"]]
    return [row for row in alike if row["round"] > since]


def best_round(e: Experiment, rows: list[RoundRow], score: str = "accuracy") -> RoundRow:
    """Of the comparable rounds that evaluate the best one by the clients' mean `score` on their
    validation parts, then by their accuracy there; the earliest of ties."""
    over_all = comparable(e, rows)
    return max(
        [row for row in over_all if e.evaluates(row["round"])] or over_all,
        key=lambda row: (validation_of(row, score), row["validation_accuracy"]),
    )


def best_versions(
    run: RunDirectory, e: Experiment, rows: list[RoundRow], score: str
) -> dict[int, int]:
    """The versions of clients' models, by client, in the best round by this score; of those that
    had none then, none."""
    best = best_round(e, rows, score)["round"]
    found = {
        row["client"]: row["round"]
        for row in run.visits()
        if row["status"] == "ok" and row["round"] <= best
    }
    state = run.latest()
    for client in set(state.versions if state else ()) - set(found):  # of a run before this one
        before = [v for v in run.client_store(client).versions() if v <= best]
        found |= {client: before[-1]} if before else {}
    return found


def ends_early(e: Experiment, rows: list[RoundRow]) -> bool:
    """Whether a run with these lines is to end, by `stop.patience`."""
    if e.stop.patience is None or not rows:
        return False
    best = best_round(e, rows, e.stop.score)
    since = [r for r in rows if r["round"] > best["round"] and e.evaluates(r["round"])]
    # finite unless its site withholds it
    return math.isfinite(validation_of(best, e.stop.score)) and len(since) >= e.stop.patience


def validation_of(row: Mapping[str, Any], score: str) -> float:
    """A round's mean score on the validation parts, so that more is better; −inf if it has none."""
    return worth(score, row.get(VALIDATION + place(score)))


def at_best(e: Experiment, rows: list[RoundRow], score: str) -> dict[str, Any]:
    """What of the result depends on which round is the best by validation: of `accuracy` a part,
    and the other scores."""
    best, last = best_round(e, rows, score), rows[-1]
    accuracy = {"at_best_validation": best["accuracy"], "best_validation_round": best["round"]}
    names = [name for name in last if is_score(name) and not name.startswith(VALIDATION)]
    scores = {n: {"final": last.get(n), "at_best_validation": best.get(n)} for n in names}
    return {"accuracy": accuracy, **scores}


def sampled_by_round(visits: Iterable[VisitRow | FailedVisitRow]) -> dict[int, float]:
    """The mean accuracy over the clients that a round admitted, from their lines, by round in
    order."""
    by_round: dict[int, list[float]] = {}
    for row in visits:
        if row["status"] == "ok" and "accuracy" in row:
            by_round.setdefault(row["round"], []).append(row["accuracy"])
    return {round: statistics.fmean(by_round[round]) for round in sorted(by_round)}


def to_target(e: Experiment, rows: list[RoundRow]) -> ToTarget:
    """Totals up to the first comparable round at the target accuracy, all clients and both ways;
    nulls when it was not reached."""
    target = e.target_accuracy if e.target_accuracy is not None else datasets.find(e.dataset).target
    first = max(1, comparable(e, rows)[0]["round"])
    reached = next(
        (i for i, row in enumerate(rows) if row["round"] >= first and row["accuracy"] >= target),
        None,
    )
    if reached is None:
        return cast(ToTarget, {"accuracy": target} | dict.fromkeys(_UNTIL))
    until = rows[: reached + 1]
    return {
        "accuracy": target,
        "rounds": rows[reached]["round"],
        "parameters": sum(row["parameters_up"] + row["parameters_down"] for row in until),
        "bytes": sum(row["bytes_up"] + row["bytes_down"] for row in until),
        "flops": sum(row["flops"] for row in until),
    }


def shared_sha256(e: Experiment, state: ServerState) -> str:
    """SHA-256 of the server's tensors; where each client has a state, over all of them in client
    order (the first if none was merged)."""
    whole = tensors_sha256(state.tensors)
    if not e.state_per_client:
        return whole
    return _over_clients({k: state.states.get(k, whole) for k in range(e.clients)})


def models_sha256(state: ServerState) -> str:
    """SHA-256 over all visited clients' models, in client order (a client never visited still has
    its initial model)."""
    return _over_clients(state.models)


def _over_clients(digests: Mapping[int, str]) -> str:
    lines = "".join(f"{client}:{digest}\n" for client, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
