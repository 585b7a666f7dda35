"""`split.folds` in a comparison: each seed's folds are one value, their mean."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from pfedlora_flwr.report.load import load
from pfedlora_flwr.report.measures import accuracy, paired
from pfedlora_flwr.report.shown import figure
from tests.conftest import Call, keys_in, result_of

BASE = keys_in(
    "clients=2 partition.kind=iid dataset=synthetic:80 models=tests.methods.narrow:Narrow rounds=1 "
    "split.folds=3"
)


def told(place: Path) -> float:
    return result_of(place)["accuracy"]["at_best_validation"]


@pytest.mark.slow
def test_means_are_within_a_seed_and_intervals_over_seeds(
    tmp_path: Path, pfedlora: Call, here: None, no_figures: None
) -> None:
    conf = {"base": BASE, "methods": ["standalone", "fedavg"], "seeds": [0, 4]}
    Path("c.yaml").write_text(yaml.safe_dump(conf))
    for seeds in ("0", "0,4"):
        code, _, err = pfedlora("compare", "c.yaml", "--output", "out", "--seeds", seeds)
        assert code == 0, err
    runs = [*Path("out").rglob("result.json")]
    assert len(runs) == 2 * 2 * 3
    tested = {
        fold: {
            (client, row)
            for client, rows in enumerate(_tests(Path(f"out/fedavg/seed-4/fold-{fold}")))
            for row in rows
        }
        for fold in range(3)
    }
    assert len(set.union(*tested.values())) == sum(map(len, tested.values()))

    study = load([Path("out")])
    for outcome in study.outcomes:
        assert [*outcome.runs] == [0, 4]
        for seed, run in outcome.runs.items():
            folds = [Path(f"out/{outcome.method}/seed-{seed}/fold-{f}") for f in range(3)]
            assert run.accuracy == pytest.approx(fmean(map(told, folds)))
        headline = accuracy(outcome.runs)
        assert headline is not None
        assert len(headline.values) == 2, "seeds, not seeds times folds"
    alone, shared = study.outcomes
    by = paired(shared.runs, alone.runs)
    assert by is not None
    assert len(by.values) == 2
    assert "each is the mean of 3 folds" in Path("out/report/report.html").read_text()
    for kind in ("curves", "clients", "t-sne", "gain", "sites"):
        assert figure(study, kind, {}).axes
    # a folder of runs without a plan is read in the same way
    bare = load([Path("out/fedavg")])
    assert [run.accuracy for run in bare.outcomes[0].runs.values()] == pytest.approx(
        [run.accuracy for run in shared.runs.values()]
    )
    shutil.rmtree("out/fedavg/seed-4/fold-1")
    [lacking] = [o for o in load([Path("out")]).outcomes if o.method == "fedavg"]
    assert [*lacking.runs] == [0]
    assert lacking.missing[4].reason == "fold 1 of 3: not run"


def _tests(place: Path) -> list[set[int]]:
    from pfedlora_flwr.data.setup import DataSetup
    from pfedlora_flwr.runs.directory import RunDirectory

    partition = DataSetup(RunDirectory(place).experiment()).partition
    return [set(split.test.tolist()) for split in partition.clients]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"axes": {"split.folds": [2, 3]}}, "split.folds is on an axis; allowed: in base alone"),
        ({"base": {"split.fold": 1}}, "split.fold is set by compare itself"),
    ],
    ids=["axis", "fold"],
)
def test_folds_belong_to_the_whole_comparison(
    change: dict[str, Any], wrong: str, tmp_path: Path, pfedlora: Call, here: None
) -> None:
    conf: dict[str, Any] = {"base": {"clients": 3}, "methods": ["fedavg"], "seeds": [0]} | change
    Path("c.yaml").write_text(yaml.safe_dump(conf))
    code, _, err = pfedlora("compare", "c.yaml", "--output", "out")
    assert code != 0
    assert wrong in err
