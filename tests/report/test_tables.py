"""The tables of a tiny fixed study, against numbers computed by hand."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pfedlora_flwr.commands.results import show_report
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.report import countings, figures, measures, opening, style, tables, words
from pfedlora_flwr.report.load import Study, load
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.report.write import Written
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.result import comparable, to_target
from tests.conftest import keys_in
from tests.report.made import make_run

# The 97.5 % quantile of Student's t with two degrees of freedom is 4.30265; the standard error of
# (m − d, m, m + d) is d / √3.
T2 = 4.30265 / 3**0.5
PAPER = keys_in(
    "dataset=cifar10 partition.kind=pathological partition.classes-per-client=2 participation=1.0"
)
"""With ten clients the paper's first column; its partition is not made here."""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Three methods, two seeds, two clients (CNN-1 and CNN-2), the target at 90 %."""
    made: dict[str, list[tuple[list[float], list[float]]]] = {
        "standalone": [
            ([0.2, 0.86, 0.88, 0.86], [0.90, 0.80]),
            ([0.2, 0.90, 0.89, 0.90], [0.95, 0.85]),
        ],
        "pfedlora": [
            ([0.2, 0.85, 0.90, 0.89], [0.90, 0.90]),
            ([0.2, 0.94, 0.90, 0.93], [0.90, 0.95]),
        ],
        "fedproto": [
            ([0.2, 0.70, 0.80, 0.90], [0.90, 0.90]),
            ([0.2, 0.60, 0.70, 0.80], [0.80, 0.80]),
        ],
    }
    costs = {"standalone": {"up": 0}, "fedproto": {"up": 25, "flops": 3000}}
    for method, runs in made.items():
        for seed, (curve, clients) in enumerate(runs):
            place = tmp_path / f"{method}{seed}"
            make_run(place, curve, clients, method=method, seed=seed, **costs.get(method, {}))
    return load([tmp_path])


def row(table: Table, method: str) -> dict[str, str]:
    return next(dict(row) for row in table.rows if row["method"] == method)


def three_seeds(folder: Path, **accuracies: list[float]) -> Study:
    """Methods with an accuracy a seed, on two clients."""
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            make_run(folder / f"{method}{seed}", accuracy, 2, method=method, seed=seed)
    return load([folder])


def test_accuracy_is_the_mean_over_seeds_with_its_t_interval(tmp_path: Path) -> None:
    table = tables.accuracy(
        three_seeds(
            tmp_path,
            standalone=[0.88, 0.89, 0.90],
            fedproto=[0.80, 0.85, 0.90],
            pfedlora=[0.90, 0.92, 0.94],
        )
    )
    assert [row["method"] for row in table.rows] == ["Standalone", "FedProto", "pFedLoRA"]
    assert row(table, "Standalone")["accuracy"] == f"89.00 ± {T2 * 1.0:.2f}"
    # by 3 ± 2.48 above Standalone, but 7 ± 7.45 above FedProto
    assert row(table, "pFedLoRA")["accuracy"] == f"92.00 ± {T2 * 2.0:.2f}"
    assert row(table, "FedProto")["accuracy"] == f"85.00 ± {T2 * 5.0:.2f}"


@pytest.mark.slow
def test_a_table_for_a_paper_has_the_deviation_and_marks_the_best_and_the_second(
    tmp_path: Path,
) -> None:
    study = three_seeds(
        tmp_path / "runs",
        standalone=[0.88, 0.89, 0.90],
        fedproto=[0.80, 0.85, 0.90],
        fd=[0.88, 0.89, 0.90],
        pfedlora=[0.90, 0.92, 0.94],
    )
    table = tables.accuracy(replace(study, std=True, best=True))
    cells = {name: row(table, name)["accuracy"] for name in study.titles}
    half, tied = T2 * 2.0, f"89.00 ± 1.00 ({89 - T2:.2f} to {89 + T2:.2f})"
    assert cells["pFedLoRA"] == f"**92.00 ± 2.00 ({92 - half:.2f} to {92 + half:.2f})**"
    assert cells["Standalone"] == cells["FD"] == f"*{tied}*"
    assert "*" not in cells["FedProto"]
    assert f"| *{tied}* |" in table.markdown()
    assert f"<u>{tied}</u>" in table.html()
    assert r"\underline{89.00 $\pm$ 1.00 (" in table.latex()
    assert r"\textbf{92.00 $\pm$ 2.00 (" in table.latex()
    assert f",{tied}," in table.csv()
    assert "mean ± standard deviation over seeds (95 % t-interval of the mean)" in table.note
    assert not re.search(r"\*|underlined", tables.accuracy(study).markdown())
    one = row(tables.accuracies(replace(study, std=True)), "pFedLoRA")["final"]
    assert one.startswith("92.00 ± 2.00 (")


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    """Wide intervals that overlap, and differences of 3, 4 and 5 points."""
    study = three_seeds(tmp_path, standalone=[0.50, 0.70, 0.90], pfedlora=[0.53, 0.74, 0.95])
    assert row(tables.accuracy(study), "pFedLoRA")["accuracy"] == f"74.00 ± {T2 * 21.0:.2f}"
    assert (
        row(tables.accuracies(study), "pFedLoRA")["− Standalone, points"]
        == f"+4.00 ± {T2 * 1.0:.2f}"
    )
    assert "**" not in row(tables.accuracy(study), "Standalone")["accuracy"]


def test_below_three_seeds_the_values_stand_without_an_interval(study: Study) -> None:
    cells = [
        row(tables.accuracy(study), method)["accuracy"]
        for method in ("Standalone", "FedProto", "pFedLoRA")
    ]
    assert cells == ["88.00, 90.00", "90.00, 80.00", "90.00, 94.00"]


def test_all_three_accuracies_and_the_comparison_with_standalone(study: Study) -> None:
    ours = row(tables.accuracies(study), "pFedLoRA")
    assert ours["seeds"] == "2"
    assert ours["final"] == "89.00, 93.00"
    assert ours["max test"] == "90.00, 94.00"
    assert ours["worst client"] == "90.00"
    assert ours["− Standalone, points"] == "+2.00, +4.00"
    assert ours["clients better than Standalone"] == "62 %"  # a tie, a win, a loss, a win: 2.5 of 4
    assert row(tables.accuracies(study), "Standalone")["− Standalone, points"] == "–"


def test_balanced_accuracy_and_macro_f1_stand_beside_accuracy(study: Study) -> None:
    """pFedLoRA has 0.90 and 0.94 at its best, 0.89 and 0.93 at the end; the made scores are 0.9 and
    0.8 of the accuracy."""
    ours = row(countings.scores(study), "pFedLoRA")
    assert ours["balanced accuracy, at best validation"] == "81.00, 84.60"
    assert ours["macro-F1, final"] == "71.20, 74.40"
    told = opening.conclusion(replace(study, score="balanced-accuracy"))
    assert re.search(r"test balanced accuracy by seed: .*; pFedLoRA 81.00, 84.60 %\. In", told)
    line = next(csv.DictReader(io.StringIO(tables.runs_csv(study))))
    assert float(line["macro_f1"]) == pytest.approx(0.8 * float(line["at_best_validation"]))


def test_both_ways_of_counting_stand_beside_the_papers_figure(tmp_path: Path) -> None:
    paper = {
        "partition": "any",
        "dataset": "cifar10",
        "partition.kind": "pathological",
        "partition.classes-per-client": 2,
    }
    for seed, means in enumerate(([0.5, 0.9, 0.8], [0.5, 0.6, 0.7])):
        make_run(
            tmp_path / str(seed),
            [0.1, 0.5, 0.5, 0.5],
            10,
            method="pfedlora",
            seed=seed,
            sampled=means,
            **paper,
        )
    ours = row(countings.sampled(load([tmp_path])), "pFedLoRA")
    assert ours["mean over the sampled clients, last round"] == "80.00, 70.00"
    assert ours["mean over the sampled clients, highest round"] == "90.00, 70.00"
    assert ours["the paper prints"] == "96.66"


def test_the_headline_is_the_test_accuracy_at_the_best_validation(tmp_path: Path) -> None:
    make_run(
        tmp_path / "a", [0.1, 0.5, 0.9, 0.7], method="pfedlora", validation=[0.2, 0.8, 0.6, 0.8]
    )
    study = load([tmp_path])
    # the first of two best rounds, not the best test round
    assert row(tables.accuracy(study), "pFedLoRA")["accuracy"] == "50.00"
    found = row(tables.accuracies(study), "pFedLoRA")
    assert (found["final"], found["max test"]) == ("70.00", "90.00")


def test_without_round_0_the_rounds_that_leave_clients_out_are_not_compared() -> None:
    counts = {"parameters_up": 1, "parameters_down": 1, "bytes_up": 4, "bytes_down": 4, "flops": 5}
    seen = [(1, 2, 0.95), (2, 4, 0.7), (3, 4, 0.9)]
    rows = [
        {"round": round, "evaluated": clients, "accuracy": accuracy, **counts}
        for round, clients, accuracy in seen
    ]
    assert [row["round"] for row in comparable(Experiment(), rows)] == [2, 3]
    assert to_target(Experiment(), rows) == {
        "accuracy": 0.9,
        "rounds": 3,
        "parameters": 6,
        "bytes": 24,
        "flops": 15,
    }


def test_costs_in_both_conventions(study: Study) -> None:
    """pFedLoRA is there after 2 rounds and after 1; CNN-1 and CNN-2 take 9,651,600 and 6,771,600
    operations an image forward."""
    ours = row(tables.costs(study), "pFedLoRA")
    assert (ours["target"], ours["seeds there"], ours["rounds"]) == ("90 %", "2 of 2", "1.5")
    assert ours["parameters, full"] == "90"  # 1.5 rounds × 2 clients × (10 up + 20 down)
    assert ours["bytes, full"] == "360 B"
    assert ours["FLOP, full"] == "3 k"
    assert ours["parameters, paper"] == "15"  # 1.5 rounds × 10
    assert ours["FLOP, paper"] == "12.3 M"  # 1.5 rounds × 8,211,600
    theirs = row(tables.costs(study), "FedProto")
    assert (theirs["seeds there"], theirs["rounds"]) == ("1 of 2", "3")
    assert row(tables.costs(study), "Standalone")["parameters, full"] == "0"


@pytest.mark.slow
def test_operations_that_clients_withhold_are_not_zero(tmp_path: Path, laid_out: None) -> None:
    make_run(tmp_path / "s", [0.2, 0.9], method="standalone")
    own = "tests.federation.test_sharing:Patient"  # which counts none
    make_run(tmp_path / "o", [0.2, 0.9], method=own, flops=0)
    hidden = {"secagg.enabled": True, "method": "fedavg", "models": "cnn5"}
    make_run(tmp_path / "d", [0.2, 0.9], [0.9, 0.9, 0.9], flops=0, **hidden)
    study = load([tmp_path])
    found = row(tables.costs(study), "FedAvg")
    assert (found["FLOP, full"], found["FLOP"]) == ("–", "–")
    assert row(tables.costs(study), "Standalone")["FLOP"] == "1 k"
    lines = [*csv.DictReader(io.StringIO(tables.runs_csv(study)))]
    told = {line["method"]: line["flops"] for line in lines}
    assert told == {"standalone": "1000", "fedavg": "", own: ""}
    for scenario in study.scenarios:
        for draw in figures.drawers(study, scenario).values():
            draw(study, scenario, tmp_path)


def test_a_run_that_was_extended_alone_is_missing(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.2, 0.5, 0.6], method="standalone")
    assert isinstance(read_run(tmp_path / "a", 2), Run)
    found = read_run(tmp_path / "a", 1)
    assert isinstance(found, Missing)
    assert (found.reason, found.final) == ("extended to 2 rounds, of 1 here", True)


def test_costs_may_be_counted_to_another_target(tmp_path: Path) -> None:
    for seed, curve in enumerate(([0.2, 0.5, 0.6, 0.7], [0.2, 0.3, 0.4, 0.7])):
        make_run(tmp_path / f"{seed}", curve, [0.9] * 10, method="pfedlora", seed=seed)
    [ours] = tables.costs(load([tmp_path])).rows
    assert (ours["target"], ours["rounds"]) == ("90 %", "not reached")
    [ours] = tables.costs(load([tmp_path], target=0.6)).rows
    assert (ours["target"], ours["seeds there"], ours["rounds"]) == ("60 %", "2 of 2", "2.5")
    assert ours["parameters, full"] == "750"  # 2.5 rounds × 10 clients × (10 up + 20 down)


def test_headline_ratios_count_the_seeds_in_which_both_arrive(tmp_path: Path) -> None:
    of_seed: dict[str, list[list[float]]] = {
        "standalone": [[0.2, 0.86, 0.88, 0.86], [0.2, 0.90, 0.89, 0.90]],
        "pfedlora": [[0.2, 0.85, 0.90, 0.89], [0.2, 0.94, 0.90, 0.93]],
        "fedproto": [[0.2, 0.70, 0.80, 0.90], [0.2, 0.60, 0.70, 0.80]],
    }
    for method, curves in of_seed.items():
        costs = {"up": 25, "flops": 3000} if method == "fedproto" else {}
        for seed, curve in enumerate(curves):
            make_run(
                tmp_path / f"{method}{seed}",
                curve,
                [0.9] * 10,
                method=method,
                seed=seed,
                partition="any",
                **costs,
                **PAPER,
            )
    table = tables.headline(load([tmp_path]))
    ours = table.rows[0]
    assert ours["best baseline"] == "Standalone"
    assert ours["pFedLoRA above it, points"] == "+2.00, +4.00"
    # seed 0 alone: 3 rounds × 3000 against 2 rounds × 1000
    assert ours["FedProto ÷ pFedLoRA: FLOP, full"] == "4.50"
    assert ours["FLOP, paper"] == "1.50"  # 3 rounds against 2
    assert ours["parameters, full"] == "3.75"  # 3 × 25 against 2 × 10
    assert ours["parameters, paper"] == "3.75"
    assert table.lines[-1] == [
        "**the paper, at most**",
        "",
        "",
        "**+1.35**",
        "",
        "**11.81**",
        "",
        "**7.41**",
    ]


def test_the_papers_figure_stands_beside_ours_in_its_own_scenarios_only(tmp_path: Path) -> None:
    paper = PAPER | {"partition": "any"}
    make_run(tmp_path / "a", 0.5, 10, method="pfedlora", **paper)
    make_run(tmp_path / "b", 0.5, 10, method="pfedlora", **paper | {"setting": "homogeneous"})
    make_run(tmp_path / "c", 0.5, 50, method="fd", **paper | {"participation": 0.2})
    make_run(
        tmp_path / "d", 0.5, 10, method="pfedlora", **paper | {"partition.classes-per-client": 4}
    )
    few = paper | {"partition.samples-per-client": 30}
    make_run(tmp_path / "e", 0.5, 10, method="pfedlora", **few)
    printed = [tables.accuracy(load([tmp_path / name])).lines[0][1] for name in "abcde"]
    assert printed == ["50.00 [96.66]", "50.00 [96.69]", "50.00 [-]", "50.00", "50.00"]
    rows = [len(tables.headline(load([tmp_path / name])).rows) for name in "abcde"]
    # ours and the paper's; c has no pFedLoRA, d and e are no cells of the paper
    assert rows == [2, 2, 0, 0, 0]
    sampled = [countings.sampled(load([tmp_path / name])).rows[0] for name in "ae"]
    assert ["the paper prints" in row for row in sampled] == [True, False]


def test_csv_holds_the_same_cells_and_runs_csv_the_unrounded_numbers(study: Study) -> None:
    table = tables.accuracy(study)
    cells = list(csv.reader(io.StringIO(table.csv())))
    assert cells[0] == table.columns
    assert cells[3] == ["pFedLoRA", "90.00, 94.00", "720 B", "6 k", "3"]
    lines = list(csv.DictReader(io.StringIO(tables.runs_csv(study))))
    assert len(lines) == 6
    ours = next(line for line in lines if line["method"] == "pfedlora" and line["seed"] == "1")
    assert (
        float(ours["at_best_validation"]),
        float(ours["final"]),
        int(ours["parameters_up"]),
    ) == (0.94, 0.93, 60)


def test_scenarios_are_the_keys_that_differ(tmp_path: Path) -> None:
    for mu in (0.5, 0.9):
        make_run(tmp_path / str(mu), mu, method="pfedlora", mu=mu)
    study = load([tmp_path])
    assert study.scenarios == [{"mu": 0.5}, {"mu": 0.9}]
    assert tables.accuracy(study).columns == ["method", "μ=0.5", "μ=0.9"]


def test_a_report_names_the_keys_that_decide_what_is_merged(tmp_path: Path) -> None:
    """They are of the Execution, and nevertheless change a result where a client fails."""
    for seed in (0, 1):
        make_run(tmp_path / f"{seed}", 0.6, 2, seed=seed, min_success=0.6, actors=1)
    told = tables.settings(load([tmp_path]))
    assert told["min-success"] == 0.6
    assert not {"actors", "max-samples"} & told.keys()


def test_a_report_names_files_without_their_folders(tmp_path: Path) -> None:
    """It may be shown to people who have not this machine."""
    models = "timm:vit_tiny_patch16_224:weights=/home/me/vit.pt,hf:/home/me/minilm:layers=2"
    for seed in (0, 1):
        make_run(tmp_path / f"{seed}", 0.6, 2, seed=seed, models=models)
    study = load([tmp_path])
    told = {"models": "timm:vit_tiny_patch16_224:weights=vit.pt,hf:minilm:layers=2"}
    assert told.items() <= tables.settings(study).items()
    assert words.keys({"models": models, "dataset": "npz:/home/me/own.npz"}) == (
        f"models={told['models']}, npz:own.npz"
    )


@pytest.mark.slow
def test_two_methods_of_the_same_name_have_a_column_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("mine_one", "mine_two"):
        lines = (
            "from pfedlora_flwr.methods.standalone import Standalone",
            "class Mine(Standalone): ...",
        )
        (tmp_path / f"{module}.py").write_text("\n".join(lines))
        for n in range(9):  # so many scenarios that the methods are the columns
            make_run(
                tmp_path / "runs" / f"{module}{n}", 0.5, method=f"{module}:Mine", lr=(n + 1) / 100
            )
    assert tables.accuracy(load([tmp_path / "runs"])).columns == [
        "scenario",
        "mine_one:Mine",
        "mine_two:Mine",
    ]
    shown = load([tmp_path / "runs"]).outcomes
    assert {row["method"] for row in tables.accuracies(load([tmp_path / "runs"])).rows} == {
        "mine_one:Mine",
        "mine_two:Mine",
    }
    assert len({style.of_method(o.method, o.own) for o in shown}) == 2


def planned(folder: Path, setting: str, **accuracies: float) -> None:
    """A comparison of these methods with a run each."""
    text = (
        f"methods: [{', '.join(accuracies)}]\nbase: {{setting: {setting}, clients: 2, rounds: 1,"
        " partition: {kind: iid}}\n"
    )
    folder.with_suffix(".yaml").write_text(text)
    comparison = Comparison.load(folder.with_suffix(".yaml"))
    comparison.plan().write(folder)
    for method, accuracy in accuracies.items():
        make_run(folder / method / "seed-0", accuracy, 2, method=method, setting=setting)


def test_a_comparison_without_a_completed_run_concludes_nothing(tmp_path: Path) -> None:
    planned(tmp_path / "none", "homogeneous", standalone=0.9, pfedlora=0.95)
    for result in (tmp_path / "none").rglob("result.json"):
        result.write_text('{"status": "failed", "error": "the disk is on fire"}')
    study = load([tmp_path / "none"])
    assert opening.conclusion(study) == "No run is completed, so nothing is concluded."
    assert dict(opening.facts(study))["Runs"] == "0 of 2 completed"
    assert tables.missing(study).rows


def test_two_comparisons_with_the_same_scenarios_stay_apart(tmp_path: Path) -> None:
    planned(tmp_path / "homo", "homogeneous", standalone=0.9, pfedlora=0.95)
    planned(tmp_path / "hetero", "heterogeneous", standalone=0.5, pfedlora=0.7)
    study = load([tmp_path / "homo", tmp_path / "hetero"])
    assert tables.accuracy(study).lines == [
        ["Standalone", "90.00", "50.00"],
        ["pFedLoRA", "95.00", "70.00"],
    ]
    assert tables.accuracy(study).columns == ["method", "homo", "hetero"]
    ours = [row for row in tables.accuracies(study).rows if row["method"] == "pFedLoRA"]
    assert [row["− Standalone, points"] for row in ours] == ["+5.00", "+20.00"]


def test_a_failed_run_without_a_plan_is_missing_with_its_reason(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / str(seed), 0.5, method="pfedlora", seed=seed)
    (tmp_path / "1" / "result.json").write_text(
        '{"status": "failed", "error": "the disk is on fire"}'
    )
    make_run(tmp_path / "gone", 0.5, method="pfedlora", seed=2)
    (tmp_path / "gone" / "result.json").unlink()
    (tmp_path / "gone" / "config.yaml").write_text("experiment: {method: 'gone.module:Class'}\n")
    study = load([tmp_path])
    assert tables.accuracy(study).lines == [
        ["pFedLoRA", "50.00 (1 of 2 seeds)", "120 B", "1 k", "1"]
    ]
    assert tables.missing(study).lines == [
        ["all runs", "pFedLoRA", "1", "failed: the disk is on fire"]
    ]


def test_methods_with_other_data_are_not_called_paired(study: Study, tmp_path: Path) -> None:
    assert measures.same_data(study.outcomes)
    make_run(tmp_path / "other", [0.1, 0.2, 0.2, 0.5], [0.5, 0.5], method="fd", partition="another")
    other = load([tmp_path]).outcomes
    assert not measures.same_data(other)
    runs = {o.method: o.runs for o in other}
    fd, alone = runs["fd"], {0: runs["standalone"][0]}
    assert measures.paired(fd, alone) is None
    assert measures.win_rate(fd, alone) is None
    assert measures.paired(runs["fedproto"], runs["standalone"])


def test_the_headline_compares_with_the_papers_baselines_alone(tmp_path: Path) -> None:
    for method, accuracy in (("fedavg", 0.9), ("fd", 0.5), ("pfedlora", 0.7)):
        make_run(
            tmp_path / method,
            accuracy,
            10,
            method=method,
            partition="any",
            **PAPER | {"setting": "homogeneous"},
        )
    assert tables.headline(load([tmp_path])).lines[0][1:4] == ["90 %", "FD", "+20.00"]


def test_costs_of_a_dataset_that_is_not_here(tmp_path: Path) -> None:
    make_run(
        tmp_path / "a", 0.95, method="pfedlora", dataset=f"folder:{tmp_path}/gone", partition="any"
    )
    ours = row(tables.costs(load([tmp_path])), "pFedLoRA")
    assert (ours["FLOP, full"], ours["FLOP, paper"]) == ("1 k", "–")


def test_numbers_in_short() -> None:
    assert [words.count(n) for n in (999.4, 999_600, 1_234_000, float("nan"))] == [
        "999",
        "1 M",
        "1.23 M",
        "–",
    ]
    assert [words.size(n) for n in (999.4, 1_234_000, 5e9, float("nan"))] == [
        "999 B",
        "1.23 MB",
        "5 GB",
        "–",
    ]


def test_a_class_with_a_slash_in_its_name_is_found_in_a_result() -> None:
    told = {"sensitivity@n/a": {"final": 0.5}, "sensitivity@n": {"a": {"final": 0.1}}}
    assert measures.figure(told, "sensitivity@n/a/final") == 0.5
    assert measures.figure(told, "sensitivity@n/b/final") is None


@pytest.mark.parametrize("score", ["sensitivity@yes", "balanced accuracy", "accuracy"])
def test_the_table_on_a_terminal_is_as_wide_as_it_at_most(score: str) -> None:
    cells = {"accuracy with sharing": "86.11 ± 23.90", "accuracy without sharing": "= Standalone"}
    rows = [{"method": "Standalone"} | cells | {score: "–", "sent, up and down": "9.54 MB"}]
    out = Console(file=io.StringIO(), width=80)
    show_report(Written(Path("folder"), "Helps.", Table("accuracy", "Accuracy", rows)), out)
    assert isinstance(out.file, io.StringIO)
    shown = [line for line in out.file.getvalue().splitlines() if line[:1] in "┏┃┡│└"]
    assert {line[-1] for line in shown} == {*"┓┃┩│┘"}


def test_a_score_that_no_run_tells_judges_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0.5, 2)
    with pytest.raises(UserError, match="no run tells sensitivity@1: its"):
        load([tmp_path], verdict={"verdict.score": "sensitivity@1"})


def test_nothing_to_report_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        load([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no completed run"):
        load([tmp_path])
    make_run(tmp_path / "a", 0.5, method="pfedlora")
    make_run(tmp_path / "b", 0.5, method="pfedlora")
    with pytest.raises(UserError, match="hold the same Experiment"):
        load([tmp_path])


def test_a_table_in_latex() -> None:
    rows = [
        {"method": "pfedlora_plus", "accuracy": "**46.8 ± 1.2**", "μ": "0.5 & 50 %"},
        {"method": "FD", "accuracy": "−2.1", "μ": ""},
    ]
    table = Table("some", "Accuracy in %", rows, "Target `a_b`: ≥ 90 %.")
    assert (
        table.latex()
        == r"""% needs \usepackage{booktabs}
\begin{table}
\centering
\caption{Accuracy in \%}
\label{tab:some}
\begin{tabular}{lrr}
\toprule
method & accuracy & $\mu$ \\
\midrule
pfedlora\_plus & \textbf{46.8 $\pm$ 1.2} & 0.5 \& 50 \% \\
FD & $-$2.1 &  \\
\bottomrule
\end{tabular}
\par\smallskip{\footnotesize Target \texttt{a\_b}: $\geq$ 90 \%.}
\end{table}
"""
    )


EVIL = "\x1b]0;OWNED\x07a\n\n# Forged\ud800\u2028<script>x</script> ![x](http://x) | **b**"


def test_a_cell_does_nothing_whoever_wrote_it() -> None:
    table = Table("some", "Some", [{"method": "FD", EVIL: EVIL}], "")
    for text in (table.markdown(), table.csv(), table.latex(), table.html()):
        text.encode()
        assert all(c.isprintable() or c == "\n" for c in text)
    lines = table.markdown().splitlines()
    assert (len(lines), lines[0]) == (5, "## Some")
    assert "<script" not in table.markdown() + table.html()
    assert "](" not in table.markdown()
    assert [len(line) for line in csv.reader(io.StringIO(table.csv()))] == [2, 2]


def test_letters_that_a_script_joins_stay_joined() -> None:
    joined = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # Persian, with a non-joiner
    assert joined in Table("some", "Some", [{"class": joined}], "").markdown()


@pytest.mark.parametrize(
    "cell",
    ["=cmd|' /C calc'!A0", "**=1+1**", "@SUM(1)", "-2+3+cmd|' /C calc'!A0", "+A1", "\t=1", "--1"],
)
def test_no_cell_of_a_csv_is_a_formula(cell: str) -> None:
    rows = list(csv.reader(io.StringIO(Table("some", "Some", [{cell: cell}]).csv())))
    assert [text for [text] in rows] == ["'" + cell.replace("**", "").replace("\t", " ")] * 2


@pytest.mark.parametrize(
    "cell",
    [
        *("+1.50 ± 0.20", "-0.42", "-", "−0.42", "+1.23, -1.30 (2 seeds)", "-1.23 ± 0.20 (1 seed)"),
        *("", "–", "− Standalone, points", "1.23 M", "p<0.01", "96.66 [-]"),
    ],
)
def test_numbers_stay_as_they_are(cell: str) -> None:
    table = Table("some", "Some", [{"x": "y", cell: cell}])
    assert [*csv.reader(io.StringIO(table.csv()))] == [["x", cell], ["y", cell]]
    assert table.markdown().splitlines()[-1] == f"| y | {cell} |"


def test_every_table_of_a_study_has_latex_cells_in_every_column(study: Study) -> None:
    for table in tables.all_tables(study):
        if table.rows:
            body = table.latex().partition("\\toprule\n")[2].partition("\\bottomrule")[0]
            cells = [len(re.split(r"(?<!\\)&", line)) for line in body.splitlines() if "&" in line]
            assert set(cells) <= {len(table.columns)}
            assert body.isascii()
