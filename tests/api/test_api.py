"""The Python API: the bits of the command, nothing left behind, and results as Python has them."""

from __future__ import annotations

import inspect
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pfedlora_flwr
from pfedlora_flwr import cli, config
from pfedlora_flwr.api.objects import Given
from pfedlora_flwr.api.running import keys_of
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.ops import adapt, align, compare, decide, evaluate, export, report
from tests.conftest import Call, Done
from tests.test_run import facts

KEYS: dict[str, Any] = {
    "clients": 3,
    "rounds": 3,
    "dataset": "synthetic:150",
    "models": "cnn5",
    "batch-size": 16,
    "partition.kind": "iid",
    "device": "cpu",
}


def done(run: pfedlora_flwr.Run | pfedlora_flwr.Comparison) -> dict[str, Any]:
    return facts(Done(0, "", "", run.path).result)


@pytest.mark.slow
def test_the_package_names_the_api_and_imports_it_when_it_is_asked() -> None:
    told = (
        "import sys, pfedlora_flwr as p; assert {'run', 'compare', 'load', 'Run', 'Comparison'} <="
        " set(dir(p)); import pfedlora_flwr.cli; assert 'torch' not in sys.modules; p.run; assert"
        " 'torch' in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", told], check=True, env=environment)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        pfedlora_flwr.walk  # noqa: B018


def test_every_key_is_an_argument() -> None:
    names = [re.sub(r"[.-]", "_", name) for name in config.all_keys()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_keys_are_those_of_the_documents() -> None:
    given = Given()
    path = Path("runs") / "a"
    named = {"adapter_hidden_dim": np.int64(30), "partition.kind": "iid", "output": path}
    assert keys_of(named, given) == {
        "adapter.hidden-dim": 30,
        "partition.kind": "iid",
        "output": "runs/a",
    }
    assert keys_of({"models": ["cnn1", "cnn5"], "train": ("all", "head")}, given) == {
        "models": "cnn1,cnn5",
        "train": "all,head",
    }
    with pytest.raises(UserError, match=r"adapter.hidden-dim is there twice"):
        keys_of({"adapter_hidden_dim": 1, "adapter.hidden-dim": 2}, given)
    with pytest.raises(UserError, match="unknown key 'round'; did you mean 'rounds'"):
        pfedlora_flwr.run(round=3)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="seed is -1; allowed: an integer ≥ 0"):
        pfedlora_flwr.run({"seed": -1, "partition": {"kind": "iid"}})


@pytest.mark.slow
def test_runs_one_after_the_other_give_the_bits_of_the_command(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run is among them."""
    (tmp_path / "conf.yaml").write_text(
        "partition: {kind: iid}\nclients: 3\nmodels: cnn5\ndataset: 'synthetic:150'\n"
    )
    words = ["-o", "rounds=3", "-o", "batch-size=16", "-o", "device=cpu", "-o", "output=command"]
    assert pfedlora("run", "conf.yaml", "--engine", "local", *words)[0] == 0
    torch.set_num_threads(2)
    first = pfedlora_flwr.run("conf.yaml", rounds=3, batch_size=16, device="cpu", progress=False)
    assert first.path == tmp_path / "runs" / "conf"
    second = pfedlora_flwr.run("conf.yaml", rounds=1, batch_size=16, device="cpu", progress=False)
    assert second.path == tmp_path / "runs" / "conf-2"
    other = pfedlora_flwr.run(KEYS, seed=1, method="fedproto", output="other", progress=False)
    with pytest.raises(KeyboardInterrupt, match=r"stopped by the user.*load\('.*broken'\).resume"):
        interrupted(tmp_path / "broken")
    broken = pfedlora_flwr.load("broken")
    assert isinstance(broken, pfedlora_flwr.Run)
    assert broken.status == "stopped"
    assert len(broken.rounds()) < 4
    assert broken.resume(progress=False).status == "completed"
    again = pfedlora_flwr.run(KEYS, output="again", progress=False)
    expected = facts(Done(0, "", "", tmp_path / "command").result)
    assert done(first) == done(broken) == done(again) == expected
    assert done(other)["shared_sha256"] != expected["shared_sha256"]
    longer = pfedlora_flwr.run(KEYS, rounds=4, output="longer", progress=False)
    assert done(again.resume(4, progress=False)) == done(longer)
    with pytest.raises(
        UserError, match="exists; continue it with resume=true, replace it with over"
    ):
        pfedlora_flwr.run(KEYS, output="again", progress=False)


def interrupted(output: Path) -> None:
    """A run that gets SIGINT once round 1 is done, as Ctrl-C and a notebook's button send it."""
    lines = output / "rounds.jsonl"

    def interrupt() -> None:
        while not (lines.exists() and len(lines.read_text().splitlines()) > 1):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        slow = "tests.failing:Slow"
        pfedlora_flwr.run(KEYS, output=output, observers=slow, progress=False)
    finally:
        thread.join()


def state() -> list[Any]:
    """What a run could leave changed in its process."""
    import matplotlib as mpl

    log = logging.getLogger("pfedlora_flwr")
    return [
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        (log.level, [*log.handlers]),
        mpl.get_backend(auto_select=False),
        sorted(os.environ.items()),
        [*sys.path],
        Path.cwd(),
        threading.active_count(),
    ]


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path: Path, no_figures: None) -> None:
    import sklearn.manifold  # noqa: F401 - its import sets variables of the environment

    torch.set_num_threads(2)
    torch.manual_seed(5)
    before = state()
    run = pfedlora_flwr.run(KEYS, output=tmp_path / "run", progress=False)
    run.evaluate(0)
    run.predict(1, np.zeros((1, 32, 32, 3), np.uint8))
    run.report()
    for kind in ("curves", "t-sne"):
        run.plot(kind)
    with pytest.raises(UserError, match=r"the run failed.*the disk of client 2 is on fire"):
        pfedlora_flwr.run(
            KEYS, method="tests.failing:ClientRaises", output=tmp_path / "fails", progress=False
        )
    assert state() == before


@pytest.mark.slow
def test_a_run_in_a_thread_is_a_run(tmp_path: Path) -> None:
    found: list[pfedlora_flwr.Run] = []
    thread = threading.Thread(
        target=lambda: found.append(
            pfedlora_flwr.run(KEYS, rounds=1, output=tmp_path / "run", progress=False)
        )
    )
    thread.start()
    thread.join()
    assert found[0].status == "completed"


@pytest.mark.slow
def test_what_a_run_has_left(
    trained_run: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None
) -> None:
    run = pfedlora_flwr.load(trained_run.output)
    assert isinstance(run, pfedlora_flwr.Run)
    assert run.result == trained_run.result
    assert run.config["clients"] == 3
    rounds, visits = run.rounds(), run.clients()
    assert rounds["accuracy"].tolist() == [
        row["accuracy"] for row in trained_run.rows("rounds.jsonl")
    ]
    assert len(visits) == 9
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    shares = run.predict(1, images)
    assert shares.shape == (4, 10)
    model = run.model(1)
    assert not model.training
    with torch.no_grad():
        logits = model(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)
    np.testing.assert_allclose(logits.softmax(1).numpy(), shares, atol=1e-5)
    for shape in ((1, 1, 1, 1), (3, 32, 32), (1, 3, 32, 1)):
        with pytest.raises(UserError, match=r"the model takes \['n', 3, 32, 32\]"):
            model(torch.ones(shape))
    found = run.evaluate(1)
    assert isinstance(found, dict)
    assert found["accuracy"] == run.result["per_client"]["1"]["accuracy"]
    confusion = np.array(found["confusion"])
    assert confusion.sum() == found["samples"]
    assert np.trace(confusion) == round(found["accuracy"] * found["samples"])
    everyone, one = run.evaluate(), run.evaluate(0, (images, np.array([0, 1, 2, 3])))
    assert isinstance(everyone, list)
    assert isinstance(one, dict)
    assert [evaluation["client"] for evaluation in everyone] == [0, 1, 2]
    assert everyone[1] == found
    assert one["samples"] == 4
    file = run.export(1, tmp_path / "client.safetensors")
    assert file.exists()
    assert file.with_name("client.safetensors.md").exists()
    with pytest.raises(
        UserError, match=r"inputs is uint8 .4, 8, 8, 3.; the model of client 1 takes"
    ):
        run.predict(1, images[:, :8, :8])
    with pytest.raises(UserError, match="client is 7; allowed: 0 to 2"):
        run.model(7)
    with pytest.raises(UserError, match="neither a run nor a comparison"):
        pfedlora_flwr.load(tmp_path)
    assert (run.report(tmp_path / "report") / "report.html").exists()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run.rounds()[0]["round"] == 0


def test_every_output_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run, written = pfedlora_flwr.Run(tmp_path), list[Path]()

    def write(*given: Any, **_: Any) -> Any:
        written.extend(one for one in given if isinstance(one, Path))
        return SimpleNamespace(write=write, folder=None)

    for function in ("api.results.exporting.export", "ops.report.write_report"):
        monkeypatch.setattr(f"pfedlora_flwr.{function}", write)
    monkeypatch.setattr("pfedlora_flwr.ops.export.shared_state.of_run", write)
    monkeypatch.setattr(pfedlora_flwr.Run, "_trained", lambda *_: None)
    assert run.export(0, "~/a/model") == tmp_path / "a" / "model"
    assert run.export_shared("~/a/shared") == tmp_path / "a" / "shared"
    run.report("~/a/report")
    assert written == [tmp_path / "a" / name for name in ("model", "shared", "report")]
    for asked in (run.export_shared, run.report, pfedlora_flwr.load):
        with pytest.raises(UserError, match="'~nosuchuser/x' cannot be used as a path"):
            asked("~nosuchuser/x")


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
def test_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key: value for key, value in KEYS.items() if key != "rounds"} | {"rounds": 1}
    where = tmp_path / "comparison"
    found = pfedlora_flwr.compare(
        {"methods": ["standalone", "pfedlora"], "seeds": [0], "axes": {"mu": [0.3, 0.7]}},
        output=where,
        engine="local",
        progress=False,
        **keys,
    )
    assert {run.status for run in found.runs()} == {"completed"}
    assert len(found.runs()) == 4
    table = found.table()
    assert table["mu"].tolist() == [0.3, 0.3, 0.7, 0.7]
    alone, ours = (run.result["accuracy"]["at_best_validation"] for run in found.runs()[:2])
    assert table["accuracy"].tolist()[:2] == [alone, ours]
    assert table["minus_standalone"].tolist()[1] == pytest.approx(ours - alone)
    loaded = pfedlora_flwr.load(where)
    assert isinstance(loaded, pfedlora_flwr.Comparison)
    assert "4 runs completed" in repr(loaded)
    assert (loaded.report() / "accuracy.tex").exists()
    nested = {"partition": {"kind": "iid"}, "models": ["cnn5", "cnn4"], "batch_size": 16}
    conf = {"base": nested, "methods": ["standalone"], "seeds": [0]}
    other = pfedlora_flwr.compare(
        conf, output=tmp_path / "nested", engine="local", progress=False, **keys
    )
    assert [run.status for run in other.runs()] == ["completed"]
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    calls = (["fedproto"], [0]), (["fd"], [0]), (["fedproto"], np.arange(2)), (["fedproto"], [0])
    places = [
        pfedlora_flwr.compare(
            methods=methods, seeds=seeds, engine="local", progress=False, **keys
        ).path.name
        for methods, seeds in calls
    ]
    assert places == ["comparison", "comparison-2", "comparison", "comparison-3"]
    with pytest.raises(UserError, match=r"2 runs failed; .*the disk of client 2 is on fire"):
        pfedlora_flwr.compare(
            methods=["tests.failing:ClientRaises"],
            seeds=[0, 1],
            output=tmp_path / "failing",
            engine="local",
            progress=False,
            **keys,
        )


def test_errors_name_arguments_and_not_flags() -> None:
    with pytest.raises(UserError, match=r"^conf is 3; expected a file, a configuration's name"):
        pfedlora_flwr.run(3)
    with pytest.raises(UserError, match=r"^engine is 'x'; allowed: auto, flower, local"):
        pfedlora_flwr.compare(methods=["standalone"], engine="x", progress=False)


@pytest.mark.parametrize(
    ("name", "operation", "call"),
    [
        ("compare", compare.compare, pfedlora_flwr.compare),
        ("adapt", adapt.adapt, pfedlora_flwr.adapt),
        ("export", export.export, pfedlora_flwr.Run.export),
        ("evaluate", evaluate.evaluate, pfedlora_flwr.Run.evaluate),
        ("report", report.report, pfedlora_flwr.Run.report),
        ("decide", decide.decide, pfedlora_flwr.decide),
        ("align", align.align, None),
    ],
)
def test_an_operation_has_the_same_keywords_everywhere(
    name: str, operation: Callable[..., object], call: Callable[..., object] | None
) -> None:
    """What the command and the API ask for, the operation takes by that name."""
    its = {*inspect.signature(operation).parameters}
    read_before = {"conf", "config", "place", "client", "whole", "trained", "models", "ray"}
    of_output = {"as_json", "all_clients", "shared", "progress", "yaml"}
    command = {*inspect.signature(getattr(cli, name)).parameters}
    assert command - read_before - of_output - {"option"} <= its
    said = {"say", "warn", "ended", "watch", "here", "confusions"}
    assert its - read_before - said - {"options"} <= command
    if call is not None:
        theirs = {*inspect.signature(call).parameters}
        assert theirs - {"self", "keys"} - read_before - of_output <= its & command
