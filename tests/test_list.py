"""`pfedlora list` and `run --dry-run`: what there is, and what a run would take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from pfedlora_flwr.commands.listing import list_runs
from pfedlora_flwr.data.datasets import load
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.result import write_result
from tests.conftest import Call
from tests.report.made import make_run


def test_runs_are_listed_with_the_keys_in_which_they_differ(tmp_path: Path, pfedlora: Call) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "a", [0.1, 0.5, 0.7], [0.6, 0.8], mu=0.3)
    make_run(runs / "sub" / "b", [0.1, 0.9], [0.6, 0.8], validation=[0.5, 0.4], method="fml")
    stopped = RunDirectory(runs / "sub" / "b")
    write_result(stopped, stopped.run_config(), "stopped", "stopped by the user", "user")
    make_run(runs / "c", [0.1, 0.5], [0.6, 0.8], mu=0.3)
    (runs / "c" / "result.json").unlink()
    (runs / "d").mkdir()
    (runs / "d" / "config.yaml").write_text("what: is this\n")
    found = {run["run"]: run for run in list_runs(runs)}
    assert [
        (name, run["state"], run["rounds"], run["of"], run["accuracy"])
        for name, run in found.items()
    ] == [
        ("a", "completed", 2, 2, 0.7),
        ("c", "unfinished", 1, 1, 0.5),
        ("d", "unreadable", 0, None, None),
        ("sub/b", "stopped", 1, 1, 0.1),
    ]
    assert found["a"]["keys"]["mu"] == 0.3
    assert found["sub/b"]["keys"]["mu"] is None
    assert {"method", "rounds", "mu"} <= found["a"]["keys"].keys()
    assert not {"clients", "lr", "output", "actors"} & found["a"]["keys"].keys()
    (runs / "c" / "server").mkdir(exist_ok=True)
    with FileLock(runs / "c" / "server" / "lock"):
        assert {run["run"]: run["state"] for run in list_runs(runs)}["c"] == "running"
    code, out, _ = pfedlora("list", "runs", "--json")
    assert (code, json.loads(out)) == (0, list_runs(runs))
    assert found["d"]["reason"].startswith("config.yaml cannot be read as a run's configuration;")
    assert found["sub/b"]["reason"] == "stopped by the user"
    assert found["a"]["reason"] is None
    code, out, _ = pfedlora("list", "runs/a")
    assert code == 0
    assert out.splitlines()[3].split() == ["runs/a", "completed", "2/2", "70.00"]
    make_run(tmp_path / "left", [0.1, 0.9, 0.5], [0.6, 0.8], clients_left="1:0")
    (found_left,) = list_runs(tmp_path / "left")
    assert found_left["accuracy"] == 0.5, "the rounds before were over another client, too"
    with pytest.raises(UserError, match="nowhere is not a directory"):
        list_runs(tmp_path / "nowhere")


def test_what_an_observer_leaves_in_a_runs_folder_is_no_run(tmp_path: Path) -> None:
    """Weights & Biases writes a config.yaml of its own."""
    make_run(tmp_path / "run", 0.5)
    make_run(tmp_path / "wandb", 0.5)  # a run that is called so
    for place in ("run", "wandb"):
        files = tmp_path / place / "wandb" / "run-1" / "files"
        files.mkdir(parents=True)
        (files / "config.yaml").write_text("wandb_version: 1\n")
    assert [run["run"] for run in list_runs(tmp_path)] == ["run", "wandb"]


def test_runs_of_ones_own_method_are_listed_from_every_folder(
    tmp_path: Path, pfedlora: Call
) -> None:
    """Their module is not at hand, and not needed."""
    make_run(tmp_path / "own", 0.5, method="fd")
    config = tmp_path / "own" / "config.yaml"
    config.write_text(config.read_text().replace("method: fd", "method: nowhere_module:Mine"))
    [run] = list_runs(tmp_path)
    assert (run["state"], run["rounds"], run["accuracy"]) == ("completed", 1, 0.5)


@pytest.mark.slow
def test_twenty_runs_that_differ_in_sixteen_keys_are_read_at_80_columns(
    tmp_path: Path, pfedlora: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes a few lines, and no word is cut into letters."""
    methods = ("pfedlora", "fml", "fedproto", "standalone")
    for i in range(20):
        make_run(
            tmp_path / "runs" / f"alpha-0.3/{methods[i % 4]}_lr-0.1/seed-{i}",
            0.5,
            method=methods[i % 4],
            seed=i,
            lr=0.1 if i % 2 else 0.01,
            momentum=0.9 if i % 3 else 0.8,
            batch_size=16 if i % 5 else 32,
        )
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = pfedlora("list", "runs")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert len(lines) < 6 * 20
    words = out.split()
    for word in ("method=pfedlora", "seed=19", "lr=0.01", "momentum=0.8", "batch-size=32"):
        assert word in words


@pytest.mark.slow
def test_a_dry_run_says_what_a_run_would_take_and_starts_nothing(
    tmp_path: Path, pfedlora: Call
) -> None:
    words = [
        "run",
        "--dry-run",
        "-o",
        "clients=30",
        "-o",
        "dataset=synthetic:600",
        "-o",
        "models=cnn5,cnn1",
        "-o",
        "participation=0.5",
    ]
    code, out, _ = pfedlora(*words)
    assert code == 0
    assert not list(tmp_path.iterdir())
    assert "synthetic:600: samples" in out
    assert "\ninputs: images of 3x32x32\n" in out
    assert "│ cnn5  │      15 │" in out
    assert "10 more" in out
    assert "a round: 15 of 30 clients, at most 1.84 MB up and 1.84 MB down" in out
    for word in ("time: about ", "memory: about ", "disk: at most ", "for 20 rounds (a guess"):
        assert word in out
    _, out, _ = pfedlora(*words, "-o", "models=tests.methods.narrow:Narrow,cnn5")
    assert "16 → 500" in out
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    (tmp_path / "runs" / "taken" / "file").touch()
    for more, expected in (
        (["-o", "clients=7"], "not a multiple of the 10 classes"),
        (["-o", "output=runs/taken"], "is not a run's directory; choose another"),
        (["--superlink", "x"], "--dry-run is for simulations"),
    ):
        code, out, err = pfedlora(*words, *more)
        assert (code, err.count("\n")) == (2, 1)
        assert expected in err


def test_a_dry_run_names_features_and_counts_images_of_other_sizes(
    tmp_path: Path, pfedlora: Call
) -> None:
    rows = "".join(f"{i},{i % 7},word,{'xy'[i % 2]}\n" for i in range(30))
    (tmp_path / "t.csv").write_text(f"age,dose,note,label\n{rows}")
    load(f"csv:{tmp_path}/t.csv")
    load.cache_clear()
    words = ("run", "--dry-run", "-o", "clients=2", "-o", "partition.kind=iid", "-o")
    code, out, err = pfedlora(*words, "models=mlp5", "-o", "dataset=csv:t.csv")
    assert (code, err) == (0, "")
    assert "\ninputs: vectors of 2\nfeatures: age, dose\n" in out
    assert f"\n{out}".count("\nwarning: left out: 1 column of no numbers: note (string); data") == 1
    named = rows.replace(",x\n", ",[/b]\n").replace(",y\n", ",:100:\n")
    (tmp_path / "m.csv").write_text(f"age,dose,note,label\n{named}")
    code, out, _ = pfedlora(*words, "models=mlp5", "-o", "dataset=csv:m.csv")
    assert (code, ":100:" in out, "[/b]" in out) == (0, True, True), (
        "as markup an emoji and an error"
    )
    _, out, _ = pfedlora(*words, "models=cnn5", "-o", "dataset=synthetic:60", "-o", "image-size=40")
    assert "\n60 of 60 images are resized to 40 × 40, bilinear\n" in out
