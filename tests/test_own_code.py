"""The copy of a user's own code that a run keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pfedlora_flwr.runs.source import collect
from tests.conftest import Call
from tests.wrong_made import MODELS, OWN_MODULES, own_code

pytestmark = pytest.mark.slow


@pytest.fixture
def train(
    pfedlora: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., int]]:
    """`pfedlora run … --engine local` with these settings, in a folder with these modules: its exit code."""
    own_code(tmp_path)
    for name in OWN_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def call(*settings: str) -> int:
        keys = (
            "clients=2",
            "partition.kind=iid",
            "rounds=2",
            "dataset=synthetic:100",
            "output=run",
            *settings,
        )
        return pfedlora(
            "run", "--engine", "local", "--quiet", *(word for key in keys for word in ("-o", key))
        )[0]

    yield call
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def test_a_runs_copy_of_the_code_is_used_where_the_module_cannot_be_imported(
    train: Callable[..., int], pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "blocks.py").write_text(
        "import torch\nfrom own_models import Good\ndef f():\n    import broken_syntax\n"
    )
    (tmp_path / "with_parts.py").write_text("from parts.blocks import Good as Net\n")
    (tmp_path / "unrelated.py").write_text("")
    assert train("models=with_parts:Net") == 0
    source = tmp_path / "run" / "source"
    files = ["broken_syntax.py", "own_models.py", "parts/blocks.py", "with_parts.py"]
    assert [str(file.relative_to(source)) for file in sorted(source.rglob("*.*"))] == files

    def ask(folder: Path) -> tuple[int, str]:
        for name in [
            name
            for name in sys.modules
            if name.partition(".")[0] in ("with_parts", "own_models", "parts")
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(
            sys, "path", [place for place in sys.path if not place.startswith(str(tmp_path))]
        )
        code, _, err = pfedlora("evaluate", str(tmp_path / "run"), "--client", "1")
        return code, err

    assert ask(tmp_path) == (0, "")
    (tmp_path / "elsewhere" / "with_parts").mkdir(
        parents=True
    )  # in Python's eyes a package, with nothing in it
    elsewhere = tmp_path / "elsewhere"
    assert ask(elsewhere) == (
        0,
        f"note: module with_parts cannot be imported from {elsewhere}: the run's copy in {source} is used\n",
    )
    assert {file.suffix for file in source.rglob("*.*")} == {".py"}, (
        "reading leaves no compiled files"
    )
    (tmp_path / "own_models.py").write_text(MODELS.replace("20", "30"))
    code, said = ask(tmp_path)
    assert code == 2
    changed, refused = said.splitlines()
    assert (
        changed
        == f"note: own_models.py has changed: the run's copy in {source} is another, and not used"
    )
    assert ": the code here makes another model than client 1 has: " in refused


def test_a_run_that_goes_on_with_changed_code_keeps_both(
    train: Callable[..., int], tmp_path: Path
) -> None:
    assert train("models=own_models:Good") == 0
    (tmp_path / "own_models.py").write_text(MODELS + "# later\n")
    assert train("models=own_models:Good", "rounds=3", "resume=true") == 0
    source = tmp_path / "run" / "source"
    assert (source / "own_models.py").read_text() == MODELS + "# later\n"
    assert (source / "until-round-000002" / "own_models.py").read_text() == MODELS
    assert train("models=cnn5", "overwrite=true") == 0
    assert not source.exists()


def test_no_more_code_is_copied_than_a_bound_and_what_is_left_out_is_told(
    train: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "large.py").write_text("#" + 2**20 * "x")
    (tmp_path / "with_large.py").write_text(
        "import large, own_methods\nfrom own_models import Good\n"
    )
    assert train("models=with_large:Good") == 0
    source = tmp_path / "run" / "source"
    assert (source / "left-out.txt").read_text() == "large.py\n"
    assert {file.name for file in source.glob("*.py")} == {
        "with_large.py",
        "own_methods.py",
        "own_models.py",
    }
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
