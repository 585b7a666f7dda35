"""What a run counts of its clients' test parts, against an independent computation from its models
and its lines."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from sklearn.metrics import f1_score, recall_score

from pfedlora_flwr.data.local import Site
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import run_locally
from tests.test_resume import KEYS, extend

pytestmark = pytest.mark.slow


def test_scores_are_those_of_the_models_on_disk_and_with_all_clients_both_countings_agree(
    tmp_path: Path,
) -> None:
    done = run_locally(
        tmp_path / "run", KEYS | {"participation": 1.0, "rounds": 2, "evaluate-every": 1}
    )
    found = []
    for k in range(4):
        test = (
            Site.find(RunDirectory(done.output).experiment(), k, {}).load(torch.device("cpu")).test
        )
        taken = load_trained(done.output, k).logits(test.inputs.numpy()).argmax(1)
        options = {"labels": test.labels.unique().tolist(), "average": "macro", "zero_division": 0}
        found.append(
            (recall_score(test.labels, taken, **options), f1_score(test.labels, taken, **options))
        )
    visits = [row for row in done.rows("clients.jsonl") if row["round"] == 2]
    for told in (visits, done.result["per_client"].values()):
        assert [(row["balanced_accuracy"], row["macro_f1"]) for row in told] == [
            pytest.approx(pair) for pair in found
        ]
    rounds = done.rows("rounds.jsonl")
    for name, values in zip(
        ("balanced_accuracy", "macro_f1"), zip(*found, strict=True), strict=True
    ):
        scores = done.result[name]
        assert scores["final"] == rounds[-1][name] == pytest.approx(statistics.fmean(values))
        assert (
            scores["at_best_validation"]
            == rounds[done.result["accuracy"]["best_validation_round"]][name]
        )
    accuracy = done.result["accuracy"]
    assert accuracy["sampled_last"] == accuracy["final"]
    assert accuracy["sampled_highest"] == max(row["accuracy"] for row in rounds[1:])


def test_the_familys_counting_is_the_mean_over_the_admitted_clients_of_each_evaluated_round(
    tmp_path: Path,
) -> None:
    """Rounds 2, 4 and 5 of 5 evaluate, two of four clients each; what the extra evaluations of
    other clients give plays no part."""
    keys = {"rounds": 3, "evaluate-every": 2, "models": "cnn5,cnn4", "batch-size": 4, "lr": 0.1}
    short = run_locally(tmp_path / "run", KEYS | keys)
    assert short.result["accuracy"]["sampled_last"] == mean_of(short.rows("clients.jsonl"), 3)
    done, _ = extend(short.output, 5)  # the evaluation of round 3 is taken back
    lines = done.rows("clients.jsonl")
    assert {row["round"] for row in lines if "accuracy" in row} == {2, 4, 5}
    means = [mean_of(lines, round) for round in (2, 4, 5)]
    accuracy = done.result["accuracy"]
    assert (accuracy["sampled_last"], accuracy["sampled_highest"]) == (means[-1], max(means))


def mean_of(lines: list[dict[str, float]], round: int) -> float:
    """The mean accuracy of a round's lines, of which there are two."""
    first, second = (row["accuracy"] for row in lines if row["round"] == round)
    return (first + second) / 2


def test_event_files_have_every_round_of_a_run_that_went_on_and_of_one_that_is_completed(
    tmp_path: Path,
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = run_locally(tmp_path / "run", KEYS | {"rounds": 1})
    assert not (done.output / "events").exists()

    def written() -> list[tuple[int, float]]:
        events = accumulator.EventAccumulator(str(done.output / "events")).Reload()
        return [(event.step, event.value) for event in events.Scalars("scores/macro_f1")]

    extend(done.output, 2, observers="tensorboard")
    expected = [(row["round"], pytest.approx(row["macro_f1"])) for row in done.rows("rounds.jsonl")]
    assert (written(), [step for step, _ in written()]) == (expected, [0, 1, 2])
    (done.output / "events").rename(tmp_path / "moved")
    extend(done.output, 2, observers="tensorboard")  # there is nothing to run
    assert written() == expected
