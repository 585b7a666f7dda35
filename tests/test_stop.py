"""A run ends when its validation gets no better (`stop.patience`)."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.ops.evaluate import evaluate
from pfedlora_flwr.report.load import load
from pfedlora_flwr.report.shown import figure
from pfedlora_flwr.runs.completed import Missing, read_run
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import clients_of, load_trained
from tests.conftest import Call, keys_in, named_keys, result_of, run_locally
from tests.test_joining import serve, sites

__all__ = ["sites"]
KEYS = keys_in(
    "clients=5 participation=0.6 models=tests.methods.narrow:Narrow method=fedavg rounds=30 "
    "lr=0.05 stop.patience=2"
)


def run(output: Path, **keys: Any) -> dict[str, Any]:
    done = run_locally(output, KEYS | named_keys(keys))
    assert done.code == 0, done.stderr
    return result_of(output)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
def test_a_run_ends_after_rounds_without_a_better_validation(tmp_path: Path, every: int) -> None:
    result = run(tmp_path / "run", evaluate_every=every)
    last, best = result["rounds"], result["accuracy"]["best_validation_round"]
    assert (result["status"], result["ended_early"]) == ("completed", True)
    assert last < 30
    assert last == best - best % every + 2 * every
    rows = RunDirectory(tmp_path / "run").rounds()
    values = [r["validation_accuracy"] for r in rows if r["round"] % every == 0]
    assert max(values[:-2]) >= max(values[-2:]), "as a reader of the lines computes it"
    assert all(max(values[:i]) < max(values[i : i + 2]) for i in range(1, len(values) - 2)), (
        "and no earlier"
    )
    # the same bits as a run of as many rounds
    plain = run(tmp_path / "plain", rounds=last, evaluate_every=every, **{"stop.patience": "auto"})
    assert plain["models_sha256"] == result["models_sha256"]
    assert "ended_early" not in plain


@pytest.mark.slow
def test_it_is_completed_for_comparisons_reports_and_resumed_runs(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        run(tmp_path / "both" / f"seed-{seed}", seed=seed)
    place = tmp_path / "both" / "seed-0"
    assert not isinstance(read_run(place, 30), Missing)
    study = load([tmp_path / "both"])
    assert len({RunDirectory(run.path).last_round() for run in study.runs}) > 1
    assert figure(study, "curves", {}).axes, "curves of two lengths are drawn"
    before = (place / "rounds.jsonl").read_bytes()
    again = run(place, resume=True)
    assert again["ended_early"]
    assert (place / "rounds.jsonl").read_bytes() == before
    # killed before its last round
    shutil.copytree(place, tmp_path / "cut")
    cut = RunDirectory(tmp_path / "cut")
    cut.checkpoints.paths()[-1].unlink()
    cut.result_file.unlink()
    assert run(cut.path, resume=True)["models_sha256"] == again["models_sha256"]


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
def test_a_comparison_counts_it_as_completed(tmp_path: Path, pfedlora: Call) -> None:
    base = {key: value for key, value in KEYS.items() if key != "method"}
    conf = {"base": base, "methods": ["fedavg"], "seeds": [0]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(conf))
    for _ in range(2):
        code, out, err = pfedlora("compare", "c.yaml", "--output", "out")
        assert code == 0, err
        assert "missing" not in out + err
    [run] = load([tmp_path / "out"]).runs
    assert run.result["ended_early"]


@pytest.mark.slow
def test_the_models_of_the_best_round_are_those_that_are_taken(tmp_path: Path) -> None:
    keys = {"stop.patience": "auto", "rounds": 14, "lr": 0.02, "models.keep": "best"}
    whole, cut = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "cut")
    result = run(whole.path, **keys)
    best = result["accuracy"]["best_validation_round"]
    assert best < 14
    run(cut.path, **keys | {"rounds": best + 2})  # and killed before its last round
    cut.checkpoints.paths()[-1].unlink()
    cut.result_file.unlink()
    assert run(cut.path, resume=True, **keys)["models_sha256"] == result["models_sha256"]
    for place in (whole, cut):
        taken = {k: load_trained(place.path, k) for k in range(5)}
        assert max(t.round for t in taken.values()) == best, "and not the last round's"
        lines = {r["client"]: r for r in place.visits() if r["round"] <= best}
        assert {k: t.round for k, t in taken.items()} == {k: r["round"] for k, r in lines.items()}
        rights = [t.counts.test_correct / t.counts.test for t in taken.values() if t.counts]
        assert fmean(rights) == pytest.approx(result["accuracy"]["at_best_validation"])
        anew = [one["accuracy"] for one in evaluate(taken.values(), None)]
        assert fmean(anew) == pytest.approx(fmean(rights)), "computed anew from the data"
    plain = run(tmp_path / "plain", **keys | {"models.keep": "last"})
    assert plain["models_sha256"] == result["models_sha256"]
    assert load_trained(tmp_path / "plain", 0).sha256 != taken[0].sha256


@pytest.mark.slow
def test_a_node_is_told_which_of_its_versions_is_the_best(
    tmp_path: Path, sites: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_in("rounds=8 participation=1.0 lr=0.05 method=fedavg models.keep=best")
    result = serve(tmp_path / "run", sites, **keys)
    best = result["accuracy"]["best_validation_round"]
    assert 0 < best < 8
    where = [Path(site["state-path"]) for site in sites]
    assert {load_trained(place, clients_of(place)[0][0]).round for place in where} == {best}
    serve(tmp_path / "run", sites, resume=True, **keys | {"rounds": 9})
    assert "was not told" not in caplog.text


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"stop.score": "log-loss", "secagg.enabled": True},
            "stop.score is 'log-loss'; allowed: with",
        ),
        ({"clients-held-out": 1, "clients": 5}, "stop.patience is set and clients-held-out, too"),
        ({"stop.patience": 0}, "stop.patience is 0; allowed: auto, or an integer ≥ 1"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_one_line(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        run_locally(tmp_path / "run", KEYS | keys)
