"""The key `verdict.score`: what a score decides, who tells it, and where none may be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.checkpoint import Counts, ServerState
from pfedlora_flwr.runs.clear import scores_told
from pfedlora_flwr.runs.result import at_best
from pfedlora_flwr.training.metrics import OF_DECISIONS
from tests.conftest import run_locally
from tests.test_resume import KEYS

ROWS: list[Any] = [
    {"round": r, "evaluated": 2, "accuracy": a, "validation_accuracy": a, "log_loss": loss}
    | ({} if v is None else {"validation_log_loss": v})
    for r, (a, loss, v) in enumerate([(0.9, 3.0, 2.0), (0.7, 1.0, 1.0), (0.8, 2.0, 1.0)])
]


@pytest.mark.parametrize(("score", "round"), [("accuracy", 0), ("log-loss", 2), ("auroc", 0)])
def test_the_best_round_is_by_the_score_then_by_accuracy(score: str, round: int) -> None:
    """Of the lowest loss there are two; AUROC is in no line."""
    found = at_best(Experiment(rounds=2), ROWS, score)
    assert found["accuracy"]["best_validation_round"] == round
    assert found["log_loss"] == {"final": 2.0, "at_best_validation": ROWS[round]["log_loss"]}


def test_a_mean_is_over_the_clients_that_have_the_score() -> None:
    told = {0: Counts(1, 2, 1, 2, {"auroc": 0.5}), 1: Counts(1, 2, 2, 2)}
    line = ServerState({}, counts=told).evaluated()
    assert (line["auroc"], line["scored"], line["accuracy"]) == (0.5, {"auroc": 1}, 0.75)
    old = {"validation_correct": 1, "validation": 2, "test_correct": 1, "test": 2, "macro_f1": 0.3}
    assert Counts.of(old).line()["macro_f1"] == 0.3


HIDING: dict[str, dict[str, Any]] = {
    "secagg.enabled": {"secagg.enabled": True},
    "dp": {"dp.clip": 1.0, "dp.noise": 1.0},
}


@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize(
    "asked",
    [{"verdict.score": "auroc"}, {"verdict.score": "sensitivity@1"}, {"scores.by-class": True}],
)
def test_with_masks_and_dp_no_client_tells_more(hiding: str, asked: dict[str, Any]) -> None:
    keys = {"method": "fedavg", "setting": "homogeneous"} | HIDING[hiding]
    with pytest.raises(UserError, match=f"with {hiding}"):
        run_config(keys | asked)
    config = run_config(keys)
    x = config.execution.replace(scores_by_class=True, verdict_score="sensitivity@1")
    assert scores_told(config.experiment, x) == OF_DECISIONS


@pytest.mark.slow
def test_a_class_decides_and_counts_by_class_are_told_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    asked = {"verdict.score": "sensitivity@1", "scores.by-class": True, "rounds": 2}
    done = run_locally(tmp_path / "run", KEYS | asked | {"participation": 1.0})
    assert done.code == 0, done.stderr
    last = [row for row in done.rows("clients.jsonl") if row["round"] == 2]
    means = []
    for row in last:
        matrix = np.array(row["confusion"])
        assert row["accuracy"] == matrix.trace() / matrix.sum()
        assert ("sensitivity@1" in row) == bool(matrix[1].sum())
        if "sensitivity@1" in row:
            assert row["sensitivity@1"] == matrix[1, 1] / matrix[1].sum()
            means.append(row["sensitivity@1"])
    rounds = done.rows("rounds.jsonl")
    assert rounds[-1]["sensitivity@1"] == pytest.approx(np.mean(means))
    best = max(rounds, key=lambda r: (r["validation_sensitivity@1"], r["validation_accuracy"]))
    assert done.result["accuracy"]["best_validation_round"] == best["round"]
    assert done.result["per_client"]["0"]["confusion"] == last[0]["confusion"]
    assert {"auroc", "validation_log_loss"} <= rounds[-1].keys()
    with pytest.raises(UserError, match="no class is 'eleven'; the classes: 0, 1"):
        run_locally(tmp_path / "wrong", KEYS | {"verdict.score": "sensitivity@eleven"})
