"""A user's own models and methods that go wrong: one line with the user's file and line, and the traceback in a file that it names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr import cli
from pfedlora_flwr.runs.source import collect

MODELS = """
import sys
import torch
from torch import nn

class Good(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.lin = nn.Linear(3072, 20)
        self.head = nn.Linear(20, classes)
    def encoder(self, images):
        return self.lin(images.flatten(1))

class Equal(Good):
    def forward(self, images):
        return self.head(torch.dropout(self.encoder(images), 0.5, self.training))

class Differs(Good):
    def forward(self, images):
        return self.head(self.encoder(images - 0.5))

class ForwardRaises(Good):
    def forward(self, images):
        raise RuntimeError("in forward")

class ConstructorRaises(Good):
    def __init__(self, classes):
        raise RuntimeError("in the constructor")

class EncoderRaises(Good):
    def encoder(self, images):
        return nn.functional.conv2d(images, torch.zeros(4, 1, 5, 5))

class EncoderNone(Good):
    def encoder(self, images):
        return None

class Late(Good):
    def encoder(self, images):
        if self.training:
            raise ValueError("in training alone")
        return super().encoder(images)
"""
METHODS = """
import sys
import torch
from pfedlora_flwr.methods.pfedlora import PFedLoRA

class InitRaises(PFedLoRA):
    def __init__(self, experiment, classes):
        raise RuntimeError("in the constructor")

class StateNone(PFedLoRA):
    def state_init(self, seed):
        return None

class AggregateNone(PFedLoRA):
    def aggregate(self, uploads, state, round):
        return None

class AggregateRaises(PFedLoRA):
    def aggregate(self, uploads, state, round):
        raise RuntimeError("in aggregate")

class AggregateNan(PFedLoRA):
    def aggregate(self, uploads, state, round):
        return {name: tensor * float("nan") if round == 2 else tensor for name, tensor in state.items()}

class AggregateOther(PFedLoRA):
    def aggregate(self, uploads, state, round):
        return {"foo": torch.zeros(3)}

class Grows(PFedLoRA):
    averages = False
    def aggregate(self, uploads, state, round):
        return state | {f"table {round}": torch.zeros(round, 3)}
    def download(self, state, client, round):
        return {name: tensor for name, tensor in state.items() if "table" not in name}

class LocalExits(PFedLoRA):
    def local_update(self, model, received, data, visit):
        sys.exit(5)

class LocalNone(PFedLoRA):
    def local_update(self, model, received, data, visit):
        return None
"""
BROKEN = {"broken_exits": "import sys\nsys.exit(3)\n", "broken_syntax": "x = 1\ndef f(:\n", "broken_import": "\nraise KeyError('gone')\n"}


@pytest.fixture
def pfedlora(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`pfedlora run … --engine local` in this process, in a folder with these modules: exit code and stderr."""
    for name, text in (BROKEN | {"own_models": MODELS, "own_methods": METHODS}).items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*settings: str) -> tuple[int, str]:
        keys = ("clients=2", "partition.kind=iid", "rounds=2", "dataset=synthetic:100", "output=run", *settings)
        words = ["run", "--engine", "local", "--quiet", *(word for key in keys for word in ("-o", key))]
        monkeypatch.setattr(sys, "argv", ["pfedlora", *words])
        with pytest.raises(SystemExit) as raised:
            cli.main()
        return int(raised.value.code or 0), capsys.readouterr().err

    yield call
    for name in (*BROKEN, "own_models", "own_methods"):
        sys.modules.pop(name, None)


def traceback_in(line: str) -> str:
    named = re.search(r"; traceback in (\S+\.txt)$", line.strip())
    assert named, line
    return Path(named[1]).read_text()


@pytest.mark.parametrize(
    ("setting", "expected", "place"),
    [
        ("models=own_models:ForwardRaises", "model 'own_models:ForwardRaises': RuntimeError: in forward", "own_models.py:24"),
        ("models=own_models:ConstructorRaises", "RuntimeError: in the constructor", "own_models.py:28"),
        ("models=own_models:EncoderRaises", "RuntimeError: Given groups=1", "own_models.py:32"),
        ("models=broken_syntax:X", "model 'broken_syntax:X': SyntaxError: ", "broken_syntax.py:2"),
        ("models=broken_import:X", "KeyError: 'gone'", "broken_import.py:2"),
        ("models=broken_exits:X", "SystemExit: 3", "broken_exits.py:2"),
        ("models=os:path", "model 'os:path': TypeError: 'module' object is not callable", ""),
        ("models=torch.nn:Linear", "missing 1 required positional argument", ""),
        ("method=broken_exits:X", "method 'broken_exits:X': SystemExit: 3", "broken_exits.py:2"),
        ("method=own_methods:InitRaises", "method 'own_methods:InitRaises': RuntimeError: in the constructor", "own_methods.py:8"),
    ],
)
def test_code_that_raises_is_one_line_before_anything_starts(
    pfedlora: Any, tmp_path: Path, setting: str, expected: str, place: str
) -> None:
    code, line = pfedlora(setting)
    assert (code, line.count("\n"), line[:7]) == (2, 1, "error: ")
    assert expected in line
    assert (f", at {place};" in line) if place else (", at " not in line)
    assert "Traceback (most recent call last)" in traceback_in(line)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("models=own_models:Differs", "its forward gives something else than head(encoder(images))"),
        ("models=own_models:EncoderNone", "the encoder gives None, expected a tensor"),
        ("models=nowhere:X", "module 'nowhere' cannot be imported from "),
        ("method=own_methods:StateNone", "method 'own_methods:StateNone': state_init returned None, expected a dict of tensors"),
    ],
)
def test_code_that_is_none_of_ours_is_refused(pfedlora: Any, setting: str, expected: str) -> None:
    code, line = pfedlora(setting)
    assert (code, line.count("\n")) == (2, 1)
    assert expected in line
    assert "traceback" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "expected", "traced"),
    [
        ("models=own_models:Late", "client 0: ValueError: in training alone, at own_models.py:41", True),
        ("method=own_methods:LocalExits", "client 0: method 'own_methods:LocalExits': SystemExit: 5, at own_methods.py:39", True),
        ("method=own_methods:LocalNone", "TypeError: local_update returned NoneType, expected an Upload", True),
        (
            "method=own_methods:AggregateNone",
            "aggregate returned None, expected a dict of tensors",
            False,
        ),
        (
            "method=own_methods:AggregateRaises",
            "AggregateRaises': RuntimeError: in aggregate, at own_methods.py:20",
            True,
        ),
        ("method=own_methods:AggregateNan", "aggregate returned down.weight with values that are not finite", False),
        ("method=own_methods:AggregateOther", "aggregate returned a state of another layout: its tensors are ['foo']", False),
    ],
)
def test_code_that_fails_in_the_run_is_one_line_without_the_advice_to_resume(
    pfedlora: Any, tmp_path: Path, setting: str, expected: str, traced: bool
) -> None:
    code, line = pfedlora(setting)
    assert (code, line.count("\n")) == (1, 1)
    assert line.startswith(("failed: ", "failed after round "))
    assert expected in line
    assert "--resume" not in line
    assert (str(tmp_path / "run" / "logs" / "traceback.txt") in line) == traced
    assert not traced or "Traceback" in traceback_in(line)


@pytest.mark.parametrize("setting", ["models=own_models:Good", "models=own_models:Equal", "method=own_methods:Grows"])
def test_what_is_right_passes(pfedlora: Any, setting: str) -> None:
    code, said = pfedlora(setting)
    assert code == 0, said


def test_a_runs_copy_of_the_code_is_used_where_the_module_cannot_be_imported(
    pfedlora: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "blocks.py").write_text("import torch\nfrom own_models import Good\ndef f():\n    import broken_syntax\n")
    (tmp_path / "with_parts.py").write_text("from parts.blocks import Good as Net\n")
    (tmp_path / "unrelated.py").write_text("")
    assert pfedlora("models=with_parts:Net")[0] == 0
    source = tmp_path / "run" / "source"
    files = ["broken_syntax.py", "own_models.py", "parts/blocks.py", "with_parts.py"]
    assert [str(file.relative_to(source)) for file in sorted(source.rglob("*.*"))] == files

    def ask(folder: Path) -> tuple[int, str]:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("with_parts", "own_models", "parts")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.startswith(str(tmp_path))])
        monkeypatch.setattr(sys, "argv", ["pfedlora", "evaluate", str(tmp_path / "run"), "--client", "1"])
        with pytest.raises(SystemExit) as raised:
            cli.main()
        return int(raised.value.code or 0), capsys.readouterr().err

    assert ask(tmp_path) == (0, "")
    (tmp_path / "elsewhere" / "with_parts").mkdir(parents=True)  # in Python's eyes a package, with nothing in it
    elsewhere = tmp_path / "elsewhere"
    assert ask(elsewhere) == (0, f"note: module with_parts cannot be imported from {elsewhere}: the run's copy in {source} is used\n")
    assert {file.suffix for file in source.rglob("*.*")} == {".py"}, "reading leaves no compiled files"
    (tmp_path / "own_models.py").write_text(MODELS.replace("20", "30"))
    code, said = ask(tmp_path)
    assert code == 2
    changed, refused = said.splitlines()
    assert changed == f"note: own_models.py has changed: the run's copy in {source} is another, and not used"
    assert refused.startswith("error: the code here makes another model than client 1 has: size mismatch for ")


def test_a_run_that_goes_on_with_changed_code_keeps_both(pfedlora: Any, tmp_path: Path) -> None:
    assert pfedlora("models=own_models:Good")[0] == 0
    (tmp_path / "own_models.py").write_text(MODELS + "# later\n")
    assert pfedlora("models=own_models:Good", "rounds=3", "resume=true")[0] == 0
    source = tmp_path / "run" / "source"
    assert (source / "own_models.py").read_text() == MODELS + "# later\n"
    assert (source / "until-round-000002" / "own_models.py").read_text() == MODELS
    assert pfedlora("models=cnn5", "overwrite=true")[0] == 0
    assert not source.exists()


def test_no_more_code_is_copied_than_a_bound_and_what_is_left_out_is_told(pfedlora: Any, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("#" + 2**20 * "x")
    (tmp_path / "with_large.py").write_text("import large, own_methods\nfrom own_models import Good\n")
    assert pfedlora("models=with_large:Good")[0] == 0
    source = tmp_path / "run" / "source"
    assert (source / "left-out.txt").read_text() == "large.py\n"
    assert {file.name for file in source.glob("*.py")} == {"with_large.py", "own_methods.py", "own_models.py"}
    line = "at most 100 files and 1 MiB of one's own code are copied to the run's `source`; left out: large.py"
    assert line in (tmp_path / "run" / "logs" / "run.log").read_text()
    (tmp_path / "many").mkdir()
    for i in range(110):
        (tmp_path / "many" / f"part{i}.py").write_text("")
    (tmp_path / "many" / "__init__.py").write_text(
        "from own_models import Good\nfrom . import " + ", ".join(f"part{i}" for i in range(110))
    )
    found = collect({"models": "cnn1, many:Good,os:path", "method": "pfedlora_flwr.methods.fd:FD"})
    assert list(found.files)[:3] == ["many/__init__.py", "own_models.py", "many/part0.py"]
    assert (len(found.files), len(found.left_out)) == (100, 12)
    assert found.warning.endswith("many/part107.py and 2 more")
