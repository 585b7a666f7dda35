"""Comparisons: what a file says, what is left to do, and real runs that survive a kill."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from filelock import FileLock
from rich.console import Console

from pfedlora_flwr.commands.comparison import compare
from pfedlora_flwr.comparison.outcome import reported
from pfedlora_flwr.comparison.plan import Plan
from pfedlora_flwr.comparison.spec import Comparison, slug
from pfedlora_flwr.comparison.work import Shard, Work
from pfedlora_flwr.config import find_conf
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import is_locked
from pfedlora_flwr.launch import execute as executing
from pfedlora_flwr.launch import resources
from pfedlora_flwr.launch.checks import Say
from pfedlora_flwr.launch.cluster import Node
from pfedlora_flwr.ops import compare as comparing
from pfedlora_flwr.ops import run_queue
from pfedlora_flwr.ops.compare import Compared
from pfedlora_flwr.runs import directory
from pfedlora_flwr.runs.completed import Missing
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.runs.output import from_here, of_comparison
from tests.alike import SAME
from tests.conftest import ROOT, Call, Cli, key_words, result_of, run_locally
from tests.deployment.processes import wait
from tests.report.made import make_run

HERE: Any = {"engine": "flower", "jobs": "1"}
"""One run after the other from the test's own process."""
BASIC = (
    "methods: [standalone, pfedlora]\nseeds: [0, 1]\nbase: {clients: 4, rounds: 2, partition:"
    " {kind: iid}}\n"
)


def conf(folder: Path, text: str) -> Path:
    path = folder / "conf.yaml"
    path.write_text(text)
    return path


def load(folder: Path, text: str, *options: str) -> Comparison:
    return Comparison.load(conf(folder, text), options)


def console() -> Console:
    """One that keeps what it is given."""
    return Console(record=True, width=200, file=io.StringIO())


class Made:
    """Runs that are made and not trained, with round numbers.

    began: where, as they began. instead: by method and seed, what is otherwise in a result; a run
    that failed leaves nothing."""

    def __init__(self) -> None:
        self.began: list[Path] = []
        self.instead: dict[tuple[str, int], dict[str, Any]] = {}

    def execute(self, config: RunConfig, show: executing.Show, say: Say, *, engine: str) -> Any:
        e, output = config.experiment, Path(config.execution.output)
        self.began.append(output)
        changed = self.instead.get((e.method, e.seed), {})
        if changed.get("status") == "failed":
            return changed
        show(None, SoFar())
        own = {"mu": e.options.mu} if e.method == "pfedlora" else {}
        if not output.exists():
            make_run(output, [0.1, 0.2, 0.3], [0.5] * 4, method=e.method, seed=e.seed, **own)
        result = result_of(output) | changed
        (output / "result.json").write_text(json.dumps(result))
        return result


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made()
    monkeypatch.setattr(executing, "execute", found.execute)
    return found


def begun(
    cli: Cli, *options: str, runs: Sequence[RunDirectory], after: int = 1
) -> subprocess.Popen[str]:
    """`compare conf.yaml` in the background, when each of these has had a round after this one."""
    process = subprocess.Popen(
        cli.command("compare", "conf.yaml", *options),
        env=cli.environment,
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    wait(lambda: all(run.checkpoints.rounds()[-1:] > [after] for run in runs), process, 150)
    return process


def test_a_file_says_methods_scenarios_and_seeds(tmp_path: Path) -> None:
    text = (
        BASIC
        + "axes:\n  batch-size: [16, 32]\n  federation: [{clients: 4}, {clients: 8, participation:"
        " 0.5}]\n"
    )
    found = load(tmp_path, text.replace("clients: 4, rounds", "rounds"), "lr=0.1")
    cells = found.cells()
    assert [(cell.scenario, cell.method) for cell in cells[:3]] == [
        ({"batch-size": 16, "clients": 4}, "standalone"),
        ({"batch-size": 16, "clients": 4}, "pfedlora"),
        ({"batch-size": 16, "clients": 8, "participation": 0.5}, "standalone"),
    ]
    assert len(cells) == 2 * 2 * 2
    assert (
        cells[2].candidates[0].runs[1]
        == "batch-size-16_clients-8_participation-0.5/standalone/seed-1"
    )
    flat = found.config(cells[2], cells[2].candidates[0], 1).experiment.flat()
    said = {"batch-size": 16, "clients": 8, "participation": 0.5, "rounds": 2, "lr": 0.1}
    assert flat.items() >= (said | {"method": "standalone", "seed": 1}).items()


def test_methods_of_a_scenario_and_seed_share_partition_and_sampling(tmp_path: Path) -> None:
    from pfedlora_flwr.data.setup import DataSetup
    from pfedlora_flwr.rng import sample_clients

    found = load(
        tmp_path,
        BASIC.replace(
            "methods: [standalone, pfedlora]", "methods: [fd, fml, fedkd, standalone, pfedlora]"
        ),
    )
    cells = found.cells()
    experiments = [found.config(cell, cell.candidates[0], 1).experiment for cell in cells]
    assert len({DataSetup(e).partition.fingerprint for e in experiments}) == 1
    assert (
        len({tuple(sample_clients(e.seed, 3, range(e.clients), e.sampled)) for e in experiments})
        == 1
    )


def test_a_selection_keeps_the_directories(tmp_path: Path) -> None:
    whole = load(
        tmp_path,
        BASIC + "axes: {batch-size: [16, 32, 64], mu: {tune: [0.5, 0.9], methods: [pfedlora]}}\n",
    )
    part = whole.select(["pfedlora"], [1], ["batch-size=16,64", "mu=0.9"])
    assert [cell.scenario for cell in part.cells()] == [{"batch-size": 16}, {"batch-size": 64}]
    assert {r for c in part.cells() for k in c.candidates for r in k.runs.values()} == {
        f"batch-size-{b}/pfedlora_mu-0.9/seed-{s}" for b in (16, 64) for s in (0, 1)
    }
    all_runs = {r for c in whole.cells() for k in c.candidates for r in k.runs.values()}
    assert {r for c in part.cells() for k in c.candidates for r in k.runs.values()} <= all_runs
    for words, match in (
        ((["fml"], [], []), "'fml' is not in the comparison; allowed: standalone, pfedlora"),
        (([], [7], []), "7 is not in the comparison; allowed: 0, 1"),
        (([], [], ["clients=4"]), "expected key=value with a key of an axis: batch-size, mu"),
        (([], [], ["batch-size=17"]), "allowed values: 16, 32, 64"),
        (([], [], ["batch-size=x"]), "batch-size is 'x'"),
    ):
        with pytest.raises(UserError, match=re.escape(match)):
            whole.select(*words)


def test_the_example_of_the_documentation_is_valid(tmp_path: Path) -> None:
    [example] = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "comparison.md").read_text(), re.DOTALL
    )
    cell = load(tmp_path, example).cells()[-1]
    assert (
        cell.candidates[1].runs[0]
        == "clients-50_participation-0.2_batch-size-64/pfedlora_mu-0.7/seed-0"
    )


def test_ours_are_found_by_name_and_write_to_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ROOT / "conf" / "quick" / "table2.yaml"
    assert [find_conf(name) for name in ("quick/table2", "quick/table2.yaml", str(quick))] == [
        quick
    ] * 3
    assert find_conf("quickstart") == ROOT / "conf" / "quickstart.yaml"
    monkeypatch.chdir(tmp_path)
    for name in ("quick/table2", str(quick)):
        assert of_comparison(find_conf(name)) == Path("runs/quick-table2")
    (tmp_path / "quick").mkdir()  # a folder in the way is no configuration
    assert find_conf("quick/table2") == quick
    own = conf(tmp_path, BASIC)
    assert find_conf("conf.yaml").samefile(own)
    assert of_comparison(find_conf("conf.yaml")) == Path("runs/conf")
    with pytest.raises(
        UserError, match=r"^quick: a folder, .* those are cifar10, .*, quick/table2, "
    ) as raised:
        find_conf("quick")
    assert "\n" not in str(raised.value)


def test_an_override_of_an_axis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mu: it is on an axis; .*only=mu=…"):
        load(tmp_path, BASIC + "axes: {mu: [0.5, 0.9]}\n", "mu=0.7")


@pytest.mark.slow
def test_every_conf_of_ours_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pyarrow.table({"text": ["one", "two"] * 2, "label": [0, 1] * 2})
    pyarrow.parquet.write_table(texts, tmp_path / "newsgroups.parquet")
    monkeypatch.chdir(tmp_path)
    confs = sorted((ROOT / "conf").glob("*/*.yaml"))
    assert {path.parent.name for path in confs} == {"paper", "quick"}
    for path in confs:
        assert Comparison.load(path).cells()


TUNED = BASIC + "axes: {mu: {tune: [0.5, 0.7, 0.9], methods: [pfedlora]}}\n"


@pytest.fixture
def tuning(tmp_path: Path) -> Work:
    """pFedLoRA's μ of 0.5, 0.7 and 0.9, of which nothing has run."""
    return Work(load(tmp_path, TUNED).select(["pfedlora"], [], []), tmp_path / "runs")


def done(work: Work, run: str, *accuracies: float, validation: list[float] | None = None) -> Path:
    """A completed run in the comparison's directory; `0.7/seed-0` is pFedLoRA's with this μ."""
    method, seed = run.split("/")
    keys = {"method": method} if method.isalpha() else {"method": "pfedlora", "mu": float(method)}
    place = work.output / (run if method.isalpha() else f"pfedlora_mu-{run}")
    number = int(seed.removeprefix("seed-"))
    make_run(place, [0.1, *accuracies], [0.5] * 4, seed=number, validation=validation, **keys)
    return place


def left(work: Work) -> list[tuple[str, int]]:
    return [(str(job.directory.relative_to(work.output)), job.repeats) for job in work.jobs()]


def test_tuned_keys_are_chosen_by_validation_with_the_first_seed_then_run_with_the_others(
    tmp_path: Path,
) -> None:
    work = Work(load(tmp_path, TUNED), tmp_path / "runs")
    first, others = "standalone/seed-0", "standalone/seed-1"
    runs = [f"pfedlora_mu-{mu}/seed-0" for mu in (0.5, 0.7, 0.9)]
    assert left(work) == [(first, 1), (runs[0], 1), (runs[1], 1), (runs[2], 2), (others, 1)]
    done(work, first, 0.2, 0.3)
    for mu, best in ((0.5, 0.3), (0.7, 0.6), (0.9, 0.6)):
        done(work, f"{mu}/seed-0", best, 0.2)
    assert left(work) == [(others, 1), ("pfedlora_mu-0.7/seed-1", 1)]
    done(work, others, 0.2, 0.3)
    done(work, "0.7/seed-1", 0.2, 0.3)
    assert left(work) == []


def test_the_choice_looks_at_validation_not_at_test_accuracy(tuning: Work) -> None:
    for mu, test, validation in ((0.5, 0.9, 0.2), (0.7, 0.2, 0.3), (0.9, 0.1, 0.1)):
        done(tuning, f"{mu}/seed-0", 0.1, test, validation=[validation] * 3)
    assert left(tuning) == [("pfedlora_mu-0.7/seed-1", 1)]


def test_a_failed_candidate_is_passed_over(tuning: Work) -> None:
    done(tuning, "0.5/seed-0", 0.3, 0.3)
    done(tuning, "0.7/seed-0", 0.4, 0.3)
    tuning.failed[tuning.output / "pfedlora_mu-0.9/seed-0"] = "diverged"
    assert left(tuning) == [("pfedlora_mu-0.7/seed-1", 1)]


@pytest.mark.parametrize(
    "result",
    [
        {"status": "failed", "error": "no such luck"},
        {"status": "stopped", "error": "enough", "stopped_by": "observer"},
    ],
)
def test_a_failure_of_an_earlier_start_is_tried_again_and_is_out_for_a_report(
    result: dict[str, str], tuning: Work
) -> None:
    for mu, last in ((0.5, 0.3), (0.7, 0.4), (0.9, 0.5)):
        failing = done(tuning, f"{mu}/seed-0", last, 0.3)
    (failing / "result.json").write_text(json.dumps(result))
    assert left(tuning) == [("pfedlora_mu-0.9/seed-0", 2)]
    [seen] = reported(tuning.output, tuning.comparison.plan())
    assert seen.chosen is not None
    assert seen.chosen.tuned == {"mu": 0.7}
    assert [tried.validation for tried in seen.tried] == [0.3, 0.4, None]
    assert seen.missing == {1: Missing("not run", "not run")}
    # it failed again: now compare goes by the report's choice
    tuning.failed[failing] = "no such luck"
    assert left(tuning) == [("pfedlora_mu-0.7/seed-1", 1)]


def test_a_report_waits_for_candidates_that_have_yet_to_run(tuning: Work) -> None:
    done(tuning, "0.5/seed-0", 0.3, 0.3)
    [seen] = reported(tuning.output, tuning.comparison.plan())
    assert (seen.chosen, seen.runs) == (None, {})
    assert {run.reason for run in seen.missing.values()} == {
        "not tuned yet: 1 of 3 candidates have run"
    }


def test_a_report_takes_the_choice_that_was_made_among_fewer_candidates(
    tmp_path: Path, tuning: Work
) -> None:
    work = Work(tuning.comparison.select([], [], ["mu=0.5,0.9"]), tuning.output)
    longer = load(tmp_path, TUNED, "rounds=3").select(["pfedlora"], [], []).plan()

    def is_chosen(plan: Plan, *, validation: list[float | None] | None = None) -> bool:
        [seen] = reported(work.output, plan)
        if seen.chosen is None:
            return False
        assert (seen.chosen.tuned, [*seen.runs]) == ({"mu": 0.9}, [0, 1])
        return validation is None or [tried.validation for tried in seen.tried] == validation

    done(work, "0.5/seed-0", 0.3, 0.3)
    first = done(work, "0.9/seed-0", 0.5, 0.5)
    assert not is_chosen(tuning.comparison.plan())
    second = done(work, "0.9/seed-1", 0.5, 0.5)
    assert left(work) == []
    assert is_chosen(tuning.comparison.plan(), validation=[0.3, None, 0.5])

    # an extension of that candidate alone: the choice is taken when a further seed is there
    shutil.rmtree(first)
    done(work, "0.9/seed-0", 0.5, 0.5, 0.6)
    assert not is_chosen(longer)
    shutil.rmtree(second)
    done(work, "0.9/seed-1", 0.5, 0.5, 0.6)
    assert is_chosen(longer)

    # a candidate that is done again is waited for
    (first / "result.json").unlink()
    assert not is_chosen(longer)


def test_candidates_that_all_diverge_are_one_seed_that_did(tuning: Work) -> None:
    result = {"status": "diverged", "error": "a loss", "diverged_in": 1}
    for mu in (0.5, 0.7, 0.9):
        place = done(tuning, f"{mu}/seed-0", 0.3, 0.3)
        (place / "result.json").write_text(json.dumps(result))
    [seen] = reported(tuning.output, tuning.comparison.plan())
    assert seen.diverged == 1
    assert seen.missing[1].reason == "not run: diverged: all 3 candidates"
    (place / "result.json").write_text(json.dumps(result | {"status": "failed"}))
    [seen] = reported(tuning.output, tuning.comparison.plan())
    assert seen.missing[0].reason == "nothing to choose from: failed: a loss"


def test_the_models_of_rejected_candidates_are_dropped_and_those_of_failed_ones_kept(
    tuning: Work,
) -> None:
    places = []
    for mu, best in ((0.5, 0.3), (0.7, 0.4), (0.9, 0.5)):
        tuning.drop_rejected()
        places.append(done(tuning, f"{mu}/seed-0", best, 0.2))
        (places[-1] / "clients" / "0").mkdir(parents=True)
    (places[2] / "result.json").write_text('{"status": "failed", "error": "no such luck"}')
    tuning.failed[places[2]] = "no such luck"
    tuning.drop_rejected()
    assert [(place / "clients").exists() for place in places] == [False, True, True]


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    plan = load(tmp_path, TUNED).plan()
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    assert Plan.read(tmp_path / "elsewhere") is None
    for content in (
        "",
        "[]",
        '{"name": "a"}',
        '{"name": "a", "seeds": [0], "tuning_seed": 0, "cells": [1]}',
    ):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(UserError, match="cannot be read as the plan of a comparison"):
            Plan.read(tmp_path)


def test_keys_that_end_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    axes = "axes: {weight: [{fd.lambda: 0.5}, {fedproto.lambda: 0.5}], adapter-epochs: [auto, 5]}\n"
    found = load(tmp_path, BASIC + axes)
    assert (
        found.cells()[0].candidates[0].runs[0]
        == "fd.lambda-0.5_adapter-epochs-auto/standalone/seed-0"
    )
    assert len(found.select([], [], ["adapter-epochs=auto"]).cells()) == 4
    lists = load(tmp_path, BASIC + 'axes: {models: ["cnn1,cnn2", cnn3]}\n')
    assert lists.select([], [], ["models=cnn1,cnn2"]).cells()[0].scenario == {"models": "cnn1,cnn2"}


def test_another_experiment_in_a_directory_is_refused(tmp_path: Path) -> None:
    path = conf(tmp_path, BASIC)
    work = Work(Comparison.load(path), tmp_path / "runs")
    done(work, "standalone/seed-0", 0.2, 0.3)
    work.check()
    changed = Work(Comparison.load(path, ["lr=0.5"]), tmp_path / "runs")
    with pytest.raises(
        UserError,
        match=r"holds a different Experiment \(lr: 0.01 → 0.5\); give a new output folder",
    ):
        changed.check()


@pytest.mark.slow
def test_a_dry_run_says_what_would_run_and_changes_nothing(tmp_path: Path) -> None:
    whole = load(tmp_path, BASIC)
    work = Work(whole, tmp_path / "runs")
    out = console()
    assert compare(whole, work.output, out, out, dry_run=True) == 0
    assert not work.output.exists()
    text = out.export_text()
    assert "standalone, seeds 0, 1: not run; about" in text
    assert "0 of 4 runs are done, 4 are left: about" in text
    assert "a guess" in text
    done(work, "standalone/seed-0", 0.2, 0.3)
    compare(whole, work.output, out, out, dry_run=True)
    text = out.export_text()
    assert "1 of 4 runs are done, 3 are left" in text
    assert "from the runs that are done" in text
    assert "is not used" not in text
    names = ("lora.rank", "fml.alpha", "mu")
    compare(whole, work.output, out, out, dry_run=True, options=names)
    said = [line for line in out.export_text().splitlines() if "is not used" in line]
    assert said == [
        "warning: lora.rank is not used: train is all",
        "warning: fml.alpha is not used",
    ], "mu is pFedLoRA's"


@pytest.mark.slow
def test_what_is_standalone_by_construction_is_planned_and_not_run(tmp_path: Path) -> None:
    added = (
        BASIC.replace("pfedlora]", "fd, fedproto, pfedlora]")
        + "axes: {sharing: [mean, none, start]}\n"
    )
    whole = load(tmp_path, added)
    work = Work(whole, tmp_path / "runs")
    run = {run.rpartition("/")[0] for run, _ in left(work)}
    shared = [f"sharing-mean/{method}" for method in ("standalone", "fd", "fedproto", "pfedlora")]
    assert run == {
        *shared,
        "sharing-none/fedproto",
        "sharing-none/pfedlora",
        "sharing-start/pfedlora",
    }
    whole.plan().write(work.output)
    silent = [
        (o.scenario["sharing"], o.method)
        for o in reported(work.output, whole.plan())
        if o.standalone
    ]
    assert silent == [
        ("none", "standalone"),
        ("none", "fd"),
        *(("start", method) for method in ("standalone", "fd", "fedproto")),
    ]
    assert Plan.read(work.output) == whole.plan()
    out = console()
    assert compare(whole, work.output, out, out, dry_run=True) == 0
    said = out.export_text()
    assert "pfedlora, sharing=none, seeds 0, 1: not run; about" in said
    assert f"B of models, {4 * 4 * 30_670 / 1e3:.3g} kB of states" in said
    assert "0 of 14 runs are done, 14 are left" in said
    compare(whole, work.output, out, out, dry_run=True, drop_models=True)
    # three versions of CNN-1 to CNN-4, and of four adapters
    most = 3 * 4 * (2_621_558 + 1_815_142 + 1_320_558 + 1_060_358 + 4 * 30_670)
    assert f"{most / 1e6:.3g} MB of disk" in out.export_text()
    with pytest.raises(
        UserError, match="nothing to run: everything requested is Standalone by construction"
    ):
        compare(
            whole, work.output, out, out, dry_run=True, methods=["fd"], only=["sharing=none,start"]
        )


def test_a_control_that_is_standalone_must_be_tuned_as_standalone_is(tmp_path: Path) -> None:
    def axes(of_rate: str) -> Comparison:
        tuned = f"lr: {{tune: [0.01, 0.1]{of_rate}}}, fd.lambda: {{tune: [1, 2], methods: [fd]}}"
        text = BASIC.replace("pfedlora]", "fd]") + f"axes: {{sharing: [mean, none], {tuned}}}\n"
        return load(tmp_path, text)

    with pytest.raises(UserError) as refused:
        axes(", methods: [fd]").plan()
    assert str(refused.value) == (
        "fd, sharing=none is Standalone by construction, whose runs are its control, and standalone"
        " is tuned otherwise (lr): name both methods on that axis, or neither"
    )
    for alike in ("", ", methods: [fd, standalone]"):
        assert any(not cell.candidates for cell in axes(alike).plan().cells)
    text = BASIC.replace("pfedlora]", "fd]")
    text += "axes: {sharing: [mean, none], fd.lambda: {tune: [1, 2]}}\n"
    load(tmp_path, text).plan()  # which Standalone has, and does not use


def test_methods_may_have_axes_of_one_key_each(tmp_path: Path) -> None:
    def of(own: str, other: str) -> Comparison:
        tuned = (
            f"axes: {{a: {{tune: [{{lr: 0.1}}, {{lr: 0.2}}]{own}}}, lr: {{tune: [0.2]{other}}}}}\n"
        )
        return load(tmp_path, BASIC.replace("pfedlora]", "fd]") + tuned)

    both = of(", methods: [fd]", ", methods: [standalone]")
    rates = {c.method: [one.tuned["lr"] for one in c.candidates] for c in both.cells()}
    assert rates == {"standalone": [0.2], "fd": [0.1, 0.2]}
    narrowed = both.select([], [], ["lr=0.2"])
    assert [len(c.candidates) for c in narrowed.cells()] == [1, 1]
    with pytest.raises(UserError, match=r"lr=0\.1': standalone would have no value left"):
        both.select([], [], ["lr=0.1"])
    [alone] = both.select(["fd"], [], ["lr=0.1"]).cells()
    assert [one.tuned["lr"] for one in alone.candidates] == [0.1]
    for overlap in (("", ", methods: [fd]"), (", methods: [fd]", ", methods: [fd, standalone]")):
        with pytest.raises(UserError, match="lr is on two axes; allowed: tune axes of different"):
            of(*overlap)


PACED = (
    "methods: [standalone, pfedlora]\nbase: {clients: 2, rounds: 14, dataset: 'synthetic:60',"
    " models: cnn5, batch-size: 16, partition: {kind: iid},"
    " observers: 'tests.failing:Slow'}\n"
)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_stopped_killed_and_without_its_worker_it_goes_on_repeats_no_round_and_ends_the_same(
    cli: Cli, pfedlora: Call
) -> None:
    whole = load(cli.folder, PACED)
    output = cli.folder / "runs" / "conf"
    runs = [RunDirectory(output / name / "seed-0") for name in ("standalone", "pfedlora")]
    first, second = runs

    stopped = begun(cli, "--jobs", "2", runs=runs)
    assert len(cli.processes()) == 5  # two workers, and a run in each
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 130
    assert err.startswith("stopped; the same command ")
    assert not cli.processes()
    for run in runs:
        assert (run.result() or {})["stopped_by"] == "user"
        assert not is_locked(run.lock_file)

    killed = begun(cli, "--jobs", "1", runs=[first], after=first.last_round())
    killed.kill()
    killed.communicate(timeout=60)
    wait(lambda: not is_locked(first.lock_file))  # its worker ends with it
    assert (first.result() or {"status": ""})["status"] != "completed"

    (cli.folder / "dies").touch()
    code, out, err = pfedlora("compare", "conf.yaml", "--jobs", "1")
    died = "the worker that carried it out ended with exit code -9"
    assert code == 1
    assert f"1 of 2: standalone, seed 0: failed: {died}\n2 of 2: pfedlora, seed 0: accuracy" in out
    assert f"failed: standalone/seed-0: {died}\n" in err
    completed = second.result_file.stat().st_mtime_ns

    quiet = Console(quiet=True)
    assert compare(whole, output, quiet, quiet, here=True) == 0
    assert second.result_file.stat().st_mtime_ns == completed
    assert (output / "report" / "report.html").exists()
    for run in runs:
        assert [row["round"] for row in run.rounds()] == [*range(15)]
        assert [row["round"] for row in run.visits()] == [r for r in range(1, 15) for _ in range(2)]
        kept = {path.name for path in (run.clients / "0").iterdir()}
        assert kept == {"about.json", "round-000014.safetensors"}
        ours: Any = run.result()
        keys = {**whole.base, "method": ours["method"], "observers": ""}
        theirs = run_locally(cli.folder / f"whole-{ours['method']}", keys).result
        for name in (*SAME, "per_client", "partition"):
            assert ours.get(name) == theirs.get(name), name


@pytest.mark.slow
def test_without_a_gpu_or_a_cluster_runs_go_through_workers_one_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, int]] = []

    def run_all(
        work: Work, speed: object, engine: str, *, at_once: int, here: bool, **_: object
    ) -> dict[str, Any]:
        assert not here
        found.append((engine, at_once))
        return {"status": "stopped", "error": "", "stopped_by": "user"}

    monkeypatch.setattr(comparing, "run_all", run_all)
    monkeypatch.setattr(comparing, "cores", lambda: 3)
    out = Console(quiet=True)

    def chosen(*options: str, seeds: str = "[0, 1]", **asked: Any) -> tuple[str, int]:
        whole = load(tmp_path, BASIC.replace("[0, 1]", seeds), *options, "models=cnn5")
        compare(whole, tmp_path / "runs", out, out, **asked)
        return found[-1]

    assert chosen() == ("local", 3)
    assert chosen(seeds="[0]") == ("local", 2)  # there are no more
    assert chosen(jobs="8") == chosen(jobs=8) == ("local", 8)
    assert chosen(engine="flower") == ("flower", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen("device=cpu") == ("local", 3)
    assert chosen() == ("flower", 1)
    assert chosen(engine="local") == ("local", 2)  # one a GPU
    monkeypatch.setattr(resources, "address_of", lambda execution: "y:1")
    monkeypatch.setattr(resources, "find_nodes", lambda address: (Node("a", "10.0.0.1", 4, 0),))
    assert chosen("device=cpu") == ("flower", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_shards_divide_the_runs_and_the_last_one_reports(tmp_path: Path, made: Made) -> None:
    whole = load(
        tmp_path,
        BASIC.replace("seeds: [0, 1]", "seeds: [0, 1, 2]")
        + "axes: {mu: {tune: [0.5, 0.9], methods: [pfedlora]}}\n",
    )
    everything = {job.directory for job in Work(whole, tmp_path).everything()}
    shares = [
        {job.directory for job in Work(whole, tmp_path, Shard(i, 2)).everything()} for i in (1, 2)
    ]
    assert shares[0] | shares[1] == everything
    assert not shares[0] & shares[1]
    # tuned together
    assert {directory.parent.name for directory in shares[1]} == {
        "standalone",
        "pfedlora_mu-0.5",
        "pfedlora_mu-0.9",
    }
    said = []
    for i in (1, 2):
        out = console()
        assert compare(whole, tmp_path / "runs", out, out, shard=f"{i}/2", **HERE) == 0
        said.append(out.export_text().splitlines()[-1])
    assert said == [
        (
            "5 runs are left, to other shards or parts; when those are done: pfedlora report"
            f" {from_here(tmp_path / 'runs')}"
        ),
        f"the report is {tmp_path / 'runs' / 'report' / 'report.html'}",
    ]
    with FileLock(tmp_path / "runs" / ".lock-1-of-2"):  # of another division
        for shard in ("", "1/2", "3/3"):
            with pytest.raises(UserError, match="is in use by a running compare"):
                compare(whole, tmp_path / "runs", out, out, shard=shard)
        assert compare(whole, tmp_path / "runs", out, out, shard="2/2", **HERE) == 0
    # another host's failure is not waited for
    shutil.rmtree(tmp_path / "runs" / "report")
    [failed, *_] = sorted(directory.relative_to(tmp_path) for directory in shares[0])
    file = tmp_path / "runs" / failed / "result.json"
    work = Work(whole, tmp_path / "runs", Shard(1, 2), failed={file.parent: "no disk"})
    file.unlink()  # a failure of this host itself may leave no result
    assert not Compared(work).left(whole)
    file.write_text(json.dumps({"status": "failed", "error": "gone"}))
    assert compare(whole, tmp_path / "runs", out, out, shard="2/2", **HERE) == 0
    assert (tmp_path / "runs" / "report").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("status", "by", "ran", "code", "why"),
    [
        ("failed", None, 5, 1, "failed"),
        ("stopped", "dp", 4, 0, "no budget"),  # which is not tried again
        ("stopped", "observer", 5, 1, "stopped"),
    ],
)
def test_a_run_that_fails_or_ends_by_its_own_affairs_is_named_and_does_not_stop_the_others(
    status: str, by: str | None, ran: int, code: int, why: str, tmp_path: Path, made: Made
) -> None:
    made.instead["standalone", 0] = {"status": status, "error": "enough", "stopped_by": by}
    whole = load(tmp_path, BASIC)
    out, err = console(), console()
    for _ in range(2):
        assert compare(whole, tmp_path / "runs", out, err, **HERE) == code
    assert len(made.began) == ran
    printed = out.export_text().splitlines()
    assert printed[0] == f"1 of 4: standalone, seed 0: {status}: enough"
    assert printed[3] == "4 of 4: pfedlora, seed 1: accuracy 0.3000 at best validation"
    named = "failed: standalone/seed-0: enough\n1 runs failed; the same command retries them\n"
    assert err.export_text() == 2 * code * named
    report = (tmp_path / "runs" / "report" / "report.md").read_text()
    assert "| Standalone | 30.00 (1 of 2 seeds) |" in report
    assert f"| Standalone | 0 | {why}: enough |" in report


def test_a_long_scenario_has_a_name_that_fits() -> None:
    keys = {"models": ",".join(f"timm:mobilenetv3_small_{i:03}" for i in range(20)), "mu": 0.5}
    name = slug(keys)
    assert len(name.encode()) == 200
    assert name != slug(keys | {"mu": 0.9})
    assert slug({"clients": 50, "mu": 0.5}) == "clients-50_mu-0.5"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_runs_of_another_commit_are_named_before_anything_runs_and_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made
) -> None:
    def warned(commit: str, **part: Any) -> str:
        for module in (comparing, directory):
            monkeypatch.setattr(module, "git_commit", lambda: commit)
        out, err = console(), console()
        assert compare(whole, tmp_path / "runs", out, err, **part, **HERE) == 0
        return err.export_text()

    whole = load(tmp_path, BASIC)
    report = tmp_path / "runs" / "report" / "report.md"
    assert warned("0123456789abcdef", seeds=[0]) == ""
    assert "versions of the code" not in report.read_text()
    assert (
        warned("fedcba9876543210-dirty")
        == "warning: of these runs some were made by 0123456789, and this is fedcba9876-dirty: they"
        " may not compute the same\n"
    )
    assert "- Commit: 0123456789; fedcba9876-dirty" in report.read_text()
    assert (
        "**The runs were made by 2 versions of the code (Commit, above), which may not compute the"
        " same.**" in report.read_text()
    )


TINY = (
    "methods: [standalone, pfedlora]\nseeds: [0, 1]\nbase: {clients: 2, rounds: 2, dataset:"
    " 'synthetic:100', models: 'tests.methods.narrow:Narrow', batch-size: 16, partition: {kind:"
    " iid}}\n"
)


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
def test_a_candidate_that_diverges_is_done_and_never_chosen(pfedlora: Call, tmp_path: Path) -> None:
    """Its run is not repeated, the exit code is 0, tables say so, and all counts agree."""
    conf(tmp_path, TINY + "axes: {lr: {tune: [0.01, 1.0e+18]}}\n")
    code, out, err = pfedlora("compare", "conf.yaml", "--engine", "local")
    assert (code, err) == (0, "")
    numbers = re.findall(r"^(\d+) of (\d+): ", out, re.MULTILINE)
    assert numbers == [(str(number), "6") for number in range(1, 7)]
    assert "pfedlora, lr=1e+18, seed 0: diverged in round 1: client 0: " in out
    run = tmp_path / "runs" / "conf" / "standalone_lr-1e-18" / "seed-0"
    result = result_of(run)
    assert (result["status"], result["diverged_in"], result["resumable"]) == ("diverged", 1, False)
    report = (tmp_path / "runs" / "conf" / "report" / "report.md").read_text()
    assert "lr=1e+18 | – (diverged (round 1))" in report
    for words in (("--dry-run",), ("--dry-run", "--redo", run.parent.name)):
        code, out, err = pfedlora("compare", "conf.yaml", "--engine", "local", *words)
        assert code == 0
        again = len(words) == 3
        done, diverged = (5, 1) if again else (6, 2)
        assert f"{done} of 6 runs are done ({diverged} diverged), {6 - done} are left" in out
    code, out, err = pfedlora("compare", "conf.yaml", "--engine", "local")
    assert (code, err) == (0, "")
    assert "diverged in round" not in out
    code, out, _ = pfedlora("list", "runs")
    assert "diverged" in out
    # where all diverge
    only = ["compare", "conf.yaml", "--engine", "local", "--only", "lr=1e+18", "--output", "hot"]
    code, out, err = pfedlora(*only)
    assert (code, err) == (0, "")
    assert "diverged (round 1)" in (tmp_path / "hot" / "report" / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
def test_a_run_that_ended_after_its_launcher_was_killed_is_tidied_up(
    pfedlora: Call, tmp_path: Path
) -> None:
    conf(tmp_path, TINY)
    again = ["compare", "conf.yaml", "--engine", "local", "--output", "out"]
    assert pfedlora(*again)[0] == 0
    run = RunDirectory(tmp_path / "out" / "standalone" / "seed-0")
    last = run.clients / "0" / "round-000002.safetensors"
    shutil.copy(last, last.with_name("round-000001.safetensors"))
    home = tmp_path / "home"
    home.mkdir()
    run.launch_file.write_text(json.dumps({"marker": "1-1", "home": str(home)}))
    assert pfedlora(*again)[0] == 0
    assert not home.exists()
    assert not run.launch_file.exists()
    assert {path.name for path in last.parent.iterdir()} == {"about.json", last.name}


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
def test_a_comparison_is_extended_to_what_it_would_be_from_the_start(
    pfedlora: Call, tmp_path: Path
) -> None:
    conf(tmp_path, TINY)
    local = ["compare", "conf.yaml", "--engine", "local"]
    assert pfedlora(*local, "--output", "short")[0] == 0
    for path in (tmp_path / "short" / "standalone" / "seed-1" / "clients").rglob("*.safetensors"):
        path.unlink()  # as of a candidate that was not chosen: it begins anew
    longer = [*local, "-o", "rounds=4"]
    code, out, _ = pfedlora(*longer, "--output", "short", "--dry-run")
    assert code == 0
    assert "0 of 4 runs are done, 4 are left" in out
    assert "standalone, seeds 0, 1: unfinished after round 2 of 4" in out
    assert pfedlora(*longer, "--output", "short")[0] == 0
    assert pfedlora(*longer, "--output", "whole")[0] == 0
    for run in ("standalone/seed-0", "standalone/seed-1", "pfedlora/seed-0", "pfedlora/seed-1"):
        one, other = (result_of(tmp_path / name / run) for name in ("short", "whole"))
        for name in ("rounds", "accuracy", "per_client", "shared_sha256", "models_sha256"):
            assert one[name] == other[name], (run, name)
    code, _, err = pfedlora(*local, "--output", "short")
    assert code == 2
    assert "ends at 4: it can be extended, not shortened; rounds=4 is its length" in err


def test_a_full_disk_ends_one_run_and_not_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_result", full)
    job = SimpleNamespace(directory=tmp_path / "run", title="a run")
    line = SimpleNamespace(job=job)
    of: Any = SimpleNamespace(
        work=SimpleNamespace(failed={}, jobs=list, count=lambda: SimpleNamespace(of=1)),
        going=[line],
        _ended=0,
        ended=lambda _: None,
    )
    result: Any = {"status": "failed", "error": "No space left on device"}
    assert not run_queue.Runs.end(of, line, result)
    assert of.work.failed == {job.directory: "No space left on device"}


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"train": "head", "models": "cnn5"}, "trains clients of cnn5 (train=head) as standalone"),
        ({"dp.clip": "1", "dp.noise": "1", "adapter.down": "fixed"}, "dp: ε = "),
        ({"partition.kind": "dirichlet", "clip-norm-factor": "3"}, ""),
    ],
)
def test_a_comparison_says_what_a_run_says(
    keys: dict[str, str], line: str, pfedlora: Call, tmp_path: Path
) -> None:
    common = {"method": "pfedlora", "dataset": "synthetic:200", "clients": "2", "rounds": "1"}
    whole = common | {"partition.kind": "iid"} | keys
    words = key_words(whole)
    code, run, err = pfedlora("run", "--dry-run", *words)
    assert code == 0, err
    said = [text for text in run.splitlines() if text.startswith(("warning", "dp:", "privacy"))]
    assert not line or any(line in text for text in said)
    file = conf(tmp_path, "methods: [pfedlora]\nseeds: [0]\n")
    code, compared, err = pfedlora("compare", str(file), *words[2:], "--output", "c", "--dry-run")
    assert code == 0, err
    assert [text for text in compared.splitlines() if text in said] == said


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_comparison_has_what_was_said_before_its_runs(
    tmp_path: Path, here: None
) -> None:
    base = "dataset: synthetic:60, clients: 2, rounds: 1, partition: {kind: iid}, models: cnn5"
    file = conf(tmp_path, f"methods: [pfedlora]\nseeds: [0]\nbase: {{{base}, train: head}}\n")
    whole = Comparison.load(file)
    out = Console(quiet=True)
    assert compare(whole, tmp_path / "c", out, out, here=True) == 0
    line = "pfedlora trains clients of cnn5 (train=head) as standalone does"
    plan = Plan.read(tmp_path / "c")
    assert plan is not None
    assert plan.said[0].startswith(line)
    again = compare(whole, tmp_path / "c", out, out, here=True)
    text = (tmp_path / "c" / "report" / "report.md").read_text()
    assert (again, text.count(line)) == (0, 1)


def test_a_plan_has_the_rounds_of_the_runs_where_the_method_sets_them(tmp_path: Path) -> None:
    """Otherwise a completed run is short of rounds, and is done again without end."""
    axes = "axes: {sums.shrinkage: {tune: [0.5, validation], methods: [fedlda]}}\n"
    whole = load(
        tmp_path,
        "methods: [standalone, fedlda, fedncm]\nseeds: [0]\n"
        f"base: {{setting: homogeneous, models: cnn5}}\n{axes}",
    )
    for cell in whole.cells():
        for one in cell.candidates:
            config = whole.config(cell, one, 0, tmp_path)
            assert one.rounds == config.experiment.rounds
    assert [c.rounds for cell in whole.cells() for c in cell.candidates] == [20, 2, 3, 2]


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_is_completed_and_still_wanted_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[str] = []

    def execute(config: RunConfig, show: executing.Show, say: Say, *, engine: str) -> Any:
        times.append(config.execution.output)
        assert len(times) < 3, "it does not end"
        make_run(Path(config.execution.output), [0.1, 0.2], [0.5] * 4, method="standalone", seed=0)
        return RunDirectory(Path(config.execution.output)).result()  # one round, of two

    monkeypatch.setattr(executing, "execute", execute)
    whole = load(tmp_path, BASIC)
    done = comparing.compare(
        whole, tmp_path / "runs", methods=["standalone"], seeds=[0], engine="local", here=True
    )
    told = "completed, and its directory does not say so: it is not run again"
    assert list(done.work.failed.values()) == [told]
    assert len(times) == 1
