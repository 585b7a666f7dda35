"""The sentence that a report opens with, against differences made by hand, and what it says was
run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.report import decision, opening, sites, tables, write
from pfedlora_flwr.report.load import load
from pfedlora_flwr.runs import directory
from tests.conftest import result_of
from tests.report.made import make_run


def concluded(folder: Path, *, rounds: int = 1, **accuracies: list[float]) -> str:
    """The conclusion of methods with an accuracy a seed, on two clients."""
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            run = folder / f"{method}-{seed}-{rounds}"
            make_run(run, [0.1, *[accuracy] * rounds], [accuracy] * 2, method=method, seed=seed)
    return opening.conclusion(load([folder]))


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        (  # differences of 0.3, 0.8 and 1.3 points: 0.8 ± 6.20535 (1 − 0.05 / 4) · 0.5 / √3
            {
                "standalone": [0.5, 0.6, 0.7],
                "fedproto": [0.503, 0.608, 0.713],
                "pfedlora": [0.4, 0.6, 0.8],
            },
            (
                "Cannot tell: FedProto +0.80 points of accuracy against training alone (95 %"
                " interval -0.99 to +2.59, 3 seeds); pFedLoRA +0.00 (-35.83 to +35.83)."
                " Intervals are wider by Holm's correction for the 2 differences tried (FedProto,"
                " pFedLoRA). A comparison like this one (of FedProto) sees a difference of about"
                " 2.3 points (from 1.2 to 15, since the spread is estimated) in four of five cases;"
                " 4 seeds would see 2."
            ),
        ),
        (
            {
                "standalone": [0.5, 0.6, 0.7],
                "fedproto": [0.507, 0.608, 0.709],
                "pfedlora": [0.4, 0.6, 0.8],
            },
            (
                "No difference that matters, within ± 2 points: FedProto +0.80 points of accuracy"
                " against training alone (95 % interval +0.44 to +1.16, 3 seeds), a small gain is"
                " likely. Cannot tell: pFedLoRA +0.00 (-24.84 to +24.84)."
            ),
        ),
        (  # 0.5, 0.8 and 1.1 points: after FD two are left, 0.8 ± 6.20535 · 0.3 / √3
            {
                "standalone": [0.5, 0.6, 0.7],
                "fedproto": [0.505, 0.608, 0.711],
                "fd": [0.451, 0.55, 0.649],
                "pfedlora": [0.4, 0.6, 0.8],
            },
            (
                "Harms: FD -5.00 points of accuracy against training alone (95 % interval -5.44 to"
                " -4.56, 3 seeds). No difference that matters, within ± 2 points: FedProto +0.80"
                " (-0.27 to +1.87). Cannot tell: pFedLoRA +0.00 (-35.83 to +35.83)."
            ),
        ),
        (
            {
                "standalone": [0.5, 0.6, 0.7],
                "fml": [0.41, 0.5, 0.59],
                "fedkd": [0.31, 0.4, 0.49],
                "fd": [0.6, 0.7],
            },
            (
                "Harms: FML -10.00 points of accuracy against training alone (95 % interval -12.48"
                " to -7.52, 3 seeds); FedKD -20.00 (-23.58 to -16.42). Intervals are wider by"
                " Holm's correction for the 2 differences tried (FML, FedKD). Of FD nothing is"
                " claimed, with fewer than 3 seeds in common."
            ),
        ),
        (
            {"standalone": [0.5, 0.6], "pfedlora": [0.7, 0.8]},
            (
                "With fewer than 3 seeds in common nothing is claimed; test accuracy by seed:"
                " Standalone 50.00, 60.00 %; pFedLoRA 70.00, 80.00 %. In points of accuracy,"
                " against training alone: pFedLoRA +20.00, +20.00."
            ),
        ),
        (
            {"standalone": [0.5, 0.6], "pfedlora": [0.7, 0.8, 0.9]},
            (
                "With fewer than 3 seeds in common nothing is claimed; test accuracy by seed:"
                " Standalone 50.00, 60.00 %; pFedLoRA 70.00, 80.00, 90.00 %."
            ),
        ),
        (
            {"pfedlora": [0.7]},
            (
                "pFedLoRA reaches 70.00 % mean test accuracy over 2 clients (one run, after round 1"
                " of 1, the best by validation); at the end the worst client has 70.00 %."
            ),
        ),
    ],
)
def test_the_sentence_claims_what_the_intervals_support(
    tmp_path: Path, accuracies: dict[str, list[float]], expected: str
) -> None:
    assert concluded(tmp_path, **accuracies).startswith(expected)


@pytest.mark.slow
def test_of_several_scenarios_it_counts_those_in_which_a_method_is_above(tmp_path: Path) -> None:
    concluded(
        tmp_path,
        rounds=1,
        standalone=[0.5, 0.6, 0.7],
        fml=[0.5, 0.6, 0.7],
        pfedlora=[0.6, 0.71, 0.8],
    )
    text = concluded(
        tmp_path,
        rounds=2,
        standalone=[0.5, 0.6, 0.7],
        fml=[0.5, 0.6, 0.7],
        pfedlora=[0.4, 0.6, 0.8],
    )
    assert (
        text == "By accuracy against training alone, in 2 scenarios: FML cannot tell "
        "in 2; pFedLoRA helps in 1, cannot tell in 1. Intervals are wider by Holm's correction for "
        "the 4 differences tried (FML, pFedLoRA)."
    )


@pytest.mark.slow
def test_the_sentence_says_that_it_leaves_controls_out(tmp_path: Path) -> None:
    accuracies = {"standalone": [0.5, 0.6, 0.7], "pfedlora": [0.4, 0.6, 0.8]}
    for seed in range(3):
        for method, values in accuracies.items():
            run, value = tmp_path / f"{method}-{seed}", values[seed]
            make_run(run, value, 2, method=method, seed=seed)
        alone = {"method": "pfedlora", "sharing": "none", "seed": seed}
        make_run(tmp_path / f"none-{seed}", 0.1, 2, **alone)
    assert opening.conclusion(load([tmp_path])).startswith(
        "With sharing. Cannot tell: pFedLoRA +0.00 points of accuracy"
    )


def test_visits_that_did_not_count_or_began_anew_are_counted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run, [0.1, 0.2, 0.3], [0.3, 0.3])
    assert "Visits" not in dict(opening.facts(load([run])))
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    rows[2] |= {"admitted": [0], "refused": [1]}
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = result_of(run) | {"lost": 2}
    (run / "result.json").write_text(json.dumps(result))
    assert dict(opening.facts(load([run])))["Visits"] == (
        "1 of 4 did not count; 2 began with an initial model, since the client had lost its own"
    )


@pytest.mark.slow
def test_equal_differences_in_all_seeds_are_no_certainty(tmp_path: Path) -> None:
    """Their interval has no width; a method with Standalone's very numbers does not differ."""
    alone = [0.5, 0.6, 0.7]
    twice = {"standalone": alone, "fml": alone, "fedproto": [0.52, 0.62, 0.72]}
    text = concluded(tmp_path, **twice).partition(" By site")[0]
    assert text == (
        "Cannot tell: FML +0.00 points of accuracy against training alone (95 % interval +0.00 to"
        " +0.00, 3 seeds), the same in all seeds: no claim; FedProto +2.00 (+2.00 to +2.00), the"
        " same in all seeds: no claim. Intervals are wider by Holm's"
        " correction for the 2 differences tried (FML, FedProto)."
    )
    assert decision.power(decision.findings(load([tmp_path]))).rows == []
    text = concluded(tmp_path, rounds=2, **twice)
    assert text == (
        "By accuracy against training alone, in 2 scenarios: FML cannot tell in 2; FedProto"
        " cannot tell in 2. Intervals are wider by Holm's correction for the 4"
        " differences tried (FML, FedProto)."
    )


@pytest.mark.slow
def test_what_diverged_is_told(tmp_path: Path) -> None:
    """The seeds that did not diverge are those that did well."""
    alone, proto = [0.5, 0.6, 0.7, 0.6, 0.6], [0.56, 0.662, 0.763, 0.1, 0.1]
    concluded(tmp_path, standalone=alone, fedproto=proto)
    for seed in (3, 4):
        result = {"status": "diverged", "error": "a loss", "diverged_in": 1}
        (tmp_path / f"fedproto-{seed}-1" / "result.json").write_text(json.dumps(result))
    study = load([tmp_path])
    told = opening.conclusion(study)
    assert told.startswith("Helps: FedProto +6.17 points")
    assert told.endswith(" FedProto diverged in 2 of 5 seeds, which are left out.")
    cell = tables.accuracy(study).lines[1][1]
    assert cell.startswith("66.17 ±")
    assert cell.endswith("(3 of 5 seeds, 2 diverged)")


def test_of_a_run_and_its_control_the_difference_is_said(tmp_path: Path) -> None:
    """Two folders; from three seeds on with a verdict."""
    paths = []
    for seed, gain in enumerate((0.04, 0.05, 0.06)):
        for sharing, mean in (("mean", 0.5 + gain), ("none", 0.5)):
            paths.append(tmp_path / f"{sharing}-{seed}")
            keys = {"method": "pfedlora", "seed": seed, "sharing": sharing}
            make_run(paths[-1], [0.1, mean], [mean, 0.5], **keys)
    study = load(paths[:2])
    found = decision.findings(study)
    assert study.name == "mean-0, none-0"
    assert opening.conclusion(study, found) == (
        "With fewer than 3 seeds in common nothing is claimed; test accuracy by seed: pFedLoRA"
        " without sharing 50.00 %; pFedLoRA 54.00 %. In points of accuracy, against pFedLoRA"
        " without sharing: pFedLoRA +4.00. By site, after the last round: 1 of 2 gain with pFedLoRA"
        " and 0 lose; the worst one then is client 1, with 50.0 % (pFedLoRA without sharing 50.0)."
    )
    assert sites.table(study, found).columns[2:4] == ["pFedLoRA without sharing", "pFedLoRA"]
    assert opening.conclusion(load(paths)).startswith(
        "Better than pFedLoRA without sharing: pFedLoRA +5.00 points of accuracy against pFedLoRA"
        " without sharing (95 % interval +2.52 to +7.48, 3 seeds)."
    )


def test_nothing_is_concluded_from_methods_with_other_data(tmp_path: Path) -> None:
    concluded(tmp_path, standalone=[0.5, 0.6, 0.7])
    make_run(tmp_path / "other", [0.1, 0.9], [0.9, 0.9], method="fd", partition="another")
    assert opening.conclusion(load([tmp_path])).endswith(
        "did not have the same data, so nothing is concluded."
    )


@pytest.mark.parametrize(
    ("partitions", "test", "told"),
    [
        (("a", "a"), (10, 10), "Better than pFedLoRA without sharing"),
        (("a", "b"), (10, 10), "With and without sharing the data are not the same"),
        ((OWN, OWN), (10, 10), "Better than pFedLoRA without sharing"),
        ((OWN, OWN), (10, 11), "With and without sharing the data are not the same"),
    ],
)
def test_a_run_is_beside_a_control_on_the_same_data_alone(
    tmp_path: Path, partitions: tuple[str, str], test: tuple[int, int], told: str
) -> None:
    """Of sites' own data their test parts tell whether they grew."""
    for sharing, mean, partition, count in zip(
        ("mean", "none"), (0.6, 0.5), partitions, test, strict=True
    ):
        for seed in range(3):
            keys = {"method": "pfedlora", "seed": seed, "sharing": sharing}
            run = tmp_path / f"{sharing}-{seed}"
            ends = [0.1, mean + seed / 100 * (mean > 0.5)]
            make_run(run, ends, [mean, 0.5], partition=partition, **keys)
            file = run / "result.json"
            file.write_text(file.read_text().replace('"test": 10', f'"test": {count}'))
    study = load([tmp_path])
    assert opening.conclusion(study).startswith(told)
    assert ("differences are not paired" in write._notes(study)[-1]) == told.startswith("With and")


def test_methods_that_several_versions_of_ones_code_ran_are_named(tmp_path: Path) -> None:
    concluded(tmp_path, standalone=[0.5, 0.6, 0.7], fedproto=[0.56, 0.662, 0.763])
    study = load([tmp_path])
    for run in study.runs:
        run.__dict__["code"] = {"net.py": "a", f"{run.experiment.method}.py": "its own"}
    assert "version" not in opening.conclusion(study)
    study.runs[0].__dict__["code"] = {"net.py": "b"}
    told = " Not all were run by the same version of your own code (net.py): what differs may be"
    assert told in opening.conclusion(study)


def test_a_missing_run_counts_once_whatever_scenarios_share_it(tmp_path: Path) -> None:
    for mu in (0.5, 0.7, 0.9):
        make_run(tmp_path / str(mu), 0.5, method="pfedlora", mu=mu)
    make_run(tmp_path / "alone", 0.5, method="standalone")
    (tmp_path / "alone" / "result.json").unlink()
    assert dict(opening.facts(load([tmp_path])))["Runs"] == "3 of 4 completed, seed 0"


def test_the_facts_are_what_the_runs_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = {"processor": "Abacus", "cores": 2, "memory": 16_000_000_000, "gpus": ["H200", "H200"]}
    monkeypatch.setattr(directory, "machine", lambda device: host)
    monkeypatch.setattr(directory, "git_commit", lambda: "0123456789abcdef-dirty")
    concluded(tmp_path, standalone=[0.5, 0.6], pfedlora=[0.7])
    facts = dict(opening.facts(load([tmp_path])))
    assert facts["Data"] == "digits: 1,797 images of 32 × 32 × 3, 10 classes"
    assert facts["Methods"] == "Standalone, pFedLoRA"
    assert facts["Runs"] == "3 of 3 completed, seeds 0, 1"
    assert facts["Commit"] == "0123456789-dirty"
    assert facts["Machine"] == "Abacus, 2 usable cores, 16 GB; 2 × H200"
    assert "flwr 1." in facts["Versions"]
    assert "Of the data" not in facts
    left_out, rare = "left out: 2 .txt", "a class of one sample"
    for seed, notes in ((0, [left_out, rare]), (1, [left_out])):
        file = tmp_path / f"standalone-{seed}-1" / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"data_notes": notes}))
    told = dict(opening.facts(load([tmp_path])))["Of the data"]
    assert told == "left out: 2 .txt; a class of one sample"
    make_run(
        tmp_path / "own",
        0.5,
        method="fd",
        dataset=f"folder:{tmp_path}/private/images",
        partition="any",
    )
    assert (
        dict(opening.facts(load([tmp_path / "own"])))["Data"]
        == "folder:images: the data that its clients had is not here"
    )


def test_whom_a_mean_is_of_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run, 0.5, 4)
    said = "50.00 % mean test accuracy over {} (one run"
    assert said.format("4 clients") in opening.conclusion(load([run]))
    result = result_of(run)
    result["accuracy"]["evaluated"] = 3
    result["clients"] = 6
    result["left"] = {"5": 0}
    (run / "result.json").write_text(json.dumps(result))
    study = load([run])
    missing = " Not counted: up to 2 clients of a run, never evaluated."
    assert said.format("3 clients") in opening.conclusion(study)
    assert opening.conclusion(study).endswith(missing)
    for table in (tables.accuracy(study), tables.accuracies(study)):
        assert missing in table.note
