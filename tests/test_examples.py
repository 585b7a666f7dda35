"""The stories in `examples/`: the commands of their pages, as they stand there, of a shorter
comparison."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, Call

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
    assert len(list(tmp_path.glob("*.onnx"))) == 1


@pytest.mark.parametrize(
    ("example", "clients", "models", "asked"),
    [
        ("sensors", 15, ["conv1d1", "conv1d3", "gru:GRU", "conv1d5"], 5),
        ("table", 8, ["mlp1", "mlp2", "mlp3", "mlp4", "mlp5"], 8 * 3),
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
    [conf] = tmp_path.glob("*.yaml")
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
    [report] = tmp_path.glob("runs/*/report/report.md")
    assert "The clients are those whom the data names as its owners." in report.read_text()
