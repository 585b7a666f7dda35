"""Who gains, site by site, and what of pooling's gain a method gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfedlora_flwr.report import decision, opening, sites
from pfedlora_flwr.report.load import load
from pfedlora_flwr.runs import right_rows
from tests.conftest import result_of
from tests.report.made import make_run


def made(folder: Path, pooled: list[float]) -> None:
    """Standalone, Pooled and FedAvg of three sites and seeds: with FedAvg site 0 loses, site 2
    gains."""
    for seed in range(3):
        alone, more = 0.5 + 0.01 * seed, 0.001 * (seed - 1)
        for method, mean, clients in (
            ("standalone", alone, [alone, 0.6, 0.4]),
            ("pooled", alone + pooled[seed], [0.9] * 3),
            ("fedavg", alone + 0.06 + more, [alone - 0.1 + more, 0.6, 0.7]),
        ):
            keys = {"method": method, "seed": seed, "models": "cnn5", "rounds": 2}
            make_run(folder / f"{method}-{seed}", [0.1, 0.1, mean], clients, **keys)


@pytest.mark.slow
def test_rows_by_site_mark_who_loses_in_words_and_colour(tmp_path: Path, laid_out: None) -> None:
    made(tmp_path, [0.1, 0.101, 0.099])
    study = load([tmp_path])
    found = decision.findings(study)
    assert [f.ours.method for f in found] == ["fedavg"]  # pooled is no method that was tried
    table = sites.table(study, found)
    assert [line[0] for line in table.lines] == ["client 2", "client 1", "client 0"]
    assert [line[-1] for line in table.lines] == [
        "+30.00 ± 0.00",
        "+0.00 ± 0.00",
        "▼ -10.00 ± 0.25",
    ]
    assert table.html().count('class="n loss"') == 1
    assert [p.path.stem for p in sites.figures(study, found, tmp_path)] == ["sites"]
    assert opening.conclusion(study, found).endswith(
        " By site, after the last round: 1 of 3 gain with FedAvg and 1 lose (1 by an interval that"
        " excludes 0); the worst one then is client 0, with 41.0 % (alone 51.0)."
    )


@pytest.mark.slow
def test_sites_are_told_of_at_the_rounds_that_the_verdict_judges(tmp_path: Path) -> None:
    """Their visits up to the best validation tell their scores; else the last round does."""
    for seed in range(3):
        for method, best, last in (("standalone", 0.5, 0.4), ("fedavg", 0.6, 0.3)):
            keys = {"method": method, "seed": seed, "models": "cnn5", "rounds": 2}
            folder = tmp_path / f"{method}-{seed}"
            make_run(folder, [0.1, best, last], 2, **keys)
            of = {"status": "ok", "samples": 40}
            visits = [
                {"round": 1, "client": 0, "accuracy": best - 0.1},
                {"round": 1, "client": 1, "accuracy": best + 0.1},
                {"round": 2, "client": 1, "accuracy": last},
            ]
            lines = "".join(json.dumps(visit | of) + "\n" for visit in visits)
            (folder / "clients.jsonl").write_text(lines)
    study = load([tmp_path])
    found = decision.findings(study)
    one, other = sites.sites(found[0])
    assert [(round(s.alone, 3), round(s.ours, 3)) for s in (one, other)] == [(0.4, 0.5), (0.6, 0.7)]
    assert "By site, at the best validation: 2 of 2 gain" in sites.sentence(study, found)
    assert "its gain is not their mean" not in sites.table(study, found).note
    file = tmp_path / "fedavg-1" / "clients.jsonl"
    file.write_text(file.read_text().replace('"accuracy": 0.5', '"no": 0'))
    study = load([tmp_path])
    found = decision.findings(study)
    assert "By site, after the last round: 0 of 2 gain" in sites.sentence(study, found)
    assert "its gain is not their mean" in sites.table(study, found).note


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (
            "log-loss",
            "last round: 0 of 3 gain with FedAvg and 3 lose (0 by an interval that excludes 0);"
            " the worst one then is client 2, with 53.0 hundredths (alone 50.0).",
        ),
        ("auroc", "last round (1 site without AUROC left out): 2 of 2 gain with FedAvg and 0 lose"),
    ],
)
def test_by_site_less_loss_is_better_and_one_without_the_score_is_left_out(
    tmp_path: Path, score: str, told: str
) -> None:
    """Site 1 has one class in its test part."""
    name = score.replace("-", "_")
    made(tmp_path, [0.1] * 3)
    for file in tmp_path.glob("*/result.json"):
        result = json.loads(file.read_text())
        more = 0.03 if result["method"] == "fedavg" else 0.0
        result[name] = {"final": 0.4, "at_best_validation": 0.4 + more}
        for k, row in result["per_client"].items():
            if score != "auroc" or k != "1":
                row[name] = (0.3, 0.4, 0.5)[int(k)] + more
        file.write_text(json.dumps(result))
    study = load([tmp_path], verdict={"verdict.score": score})
    assert told in opening.conclusion(study)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shares", "scores", "ours", "worth"),
    [
        # half of 80 rows: 0.5, all: 0.6, so 0.1 a doubling
        ([0.5, 1.0], [[0.5, 0.6]] * 3, [0.65, 0.6, 0.9], ["33", "–", "> 80"]),
        # of three shares the middle one is the site's; what twice as many gain is measured
        ([0.25, 0.5, 1.0], [[0.1, 0.5, 0.6]] * 3, [0.55, 0.7, 0.9], ["17", "120", "> 120"]),
        ([0.5, 1.0], [[0.6, 0.6]] * 3, [0.7, 0.7, 0.7], ["–", "–", "–"]),
    ],
)
def test_a_gain_in_labelled_rows_is_read_off_each_sites_learning_curve(
    tmp_path: Path, shares: list[float], scores: list[list[float]], ours: list[float], worth: list
) -> None:
    for seed in range(3):
        for place, share in enumerate(shares):
            alone = [of_site[place] for of_site in scores]
            for method, clients in (("standalone", alone), ("fedavg", ours)):
                keys = {"method": method, "seed": seed, "models": "cnn5", "rounds": 2}
                folder = tmp_path / f"{method}-{share}-{seed}"
                mean = float(np.mean(clients)) + 0.001 * seed
                make_run(folder, [0.1, 0.1, mean], clients, **keys, **{"partition.share": share})
                result = result_of(folder)
                for row in result["per_client"].values():
                    row["samples"] = round(80 * share)
                (folder / "result.json").write_text(json.dumps(result))
    study = load([tmp_path])
    table = sites.table(study, decision.findings(study))
    named = {line[0]: line[-1] for line in table.lines}
    assert table.columns[-1] == "worth, rows"
    assert [named[f"client {k}"] for k in range(3)] == worth


@pytest.mark.parametrize(
    ("pooled", "told"),
    [
        (
            [0.1, 0.101, 0.099],
            "training alone (+9.75 to +10.25); of that FedAvg gets on average 60 %.",
        ),
        ([0.1, -0.1, 0.2], "so nothing is sure to be won."),
    ],
)
def test_a_share_of_poolings_gain_is_told_where_that_is_sure(
    tmp_path: Path, pooled: list[float], told: str
) -> None:
    made(tmp_path, pooled)
    text = opening.conclusion(load([tmp_path]))
    assert told in text
    assert ("gets" in text) == ("gets" in told)


@pytest.mark.slow
def test_a_report_reads_which_rows_were_right_at_the_headlines_round(tmp_path: Path) -> None:
    made(tmp_path, [0.1] * 3)
    assert [f.rows for f in decision.findings(load([tmp_path]))] == [None]
    study = load([tmp_path])
    rows, classes = np.arange(100), np.array([0] * 50 + [1] * 50)
    for run in study.runs:
        right = np.arange(100) < round(100 * run.accuracy)
        for client in run.clients:
            file = run.directory.right_rows(client)
            right_rows.keep(file, 2, rows, classes, ~right)  # done again after a resume
            right_rows.keep(file, 2, rows, classes, right)
            right_rows.keep(file, 3, rows, classes, ~right)
        run.result["accuracy"]["at_best_validation"] = float(right.mean())
    [finding] = decision.findings(study)
    # six of a hundred rows differ: √(0.06 · 0.94 / 99 / 3) over three sites
    assert finding.rows == pytest.approx(1.96 * (0.06 * 0.94 / 99 / 3) ** 0.5, rel=0.1)
    for run in study.runs:  # seeds that differ: the interval is within 6.5, and with other rows 8.7
        more = 0.001 * run.experiment.seed * (run.experiment.method == "fedavg")
        run.result["accuracy"]["at_best_validation"] += more
    study = replace(study, margin=0.065)
    assert "; with other test rows of the same sites it could matter." in opening.conclusion(study)
    assert "Test rows limit it" in opening.conclusion(study)
