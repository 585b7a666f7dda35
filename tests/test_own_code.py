"""The copy of a user's own code that a run keeps."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pfedlora_flwr.runs.code_copy import codes_of, collect
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import Call
from tests.wrong_made import MODELS, OWN_MODULES, own_code, run_of_own_code

pytestmark = pytest.mark.slow


@pytest.fixture
def train(
    pfedlora: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., int]]:
    """`pfedlora run … --engine local` with these settings, in a folder with these modules: its exit
    code."""
    own_code(tmp_path)
    for name in OWN_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def call(*settings: str) -> int:
        return pfedlora(*run_of_own_code(*settings))[0]

    yield call
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def test_where_the_module_cannot_be_imported_the_command_that_uses_the_copy_is_told(
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
    assert [str(file.relative_to(source)) for file in sorted(source.rglob("*.py"))] == files

    def ask(folder: Path, *path: Path) -> tuple[int, str]:
        for name in [
            name
            for name in sys.modules
            if name.partition(".")[0] in ("with_parts", "own_models", "parts")
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(
            sys,
            "path",
            [*map(str, path), *(p for p in sys.path if not p.startswith(str(tmp_path)))],
        )
        code, _, err = pfedlora("evaluate", str(tmp_path / "run"), "--client", "1")
        return code, err

    assert ask(tmp_path) == (0, "")
    # in Python's eyes a package, with nothing in it
    (tmp_path / "elsewhere" / "with_parts").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    code, said = ask(elsewhere)
    assert code == 2
    assert said == (
        f"error: module with_parts cannot be imported from {elsewhere}; the run has a copy of it:"
        f" PYTHONPATH={source} pfedlora evaluate {tmp_path / 'run'} --client 1\n"
    )
    assert ask(elsewhere, source) == (0, "")
    module = tmp_path / "own_models.py"
    module.write_text(MODELS.replace("20", "30"))
    os.utime(module, (later := time.time() + 10, later))  # else its bytecode may pass for new
    code, said = ask(tmp_path)
    assert code == 2
    changed, refused = said.splitlines()
    assert (
        changed == f"note: own_models.py differs from the run's copy in {source}, which is not used"
    )
    assert ": the code here builds another model than client 1 has: " in refused


def test_a_run_goes_on_with_changed_code_only_where_that_is_accepted_and_keeps_both(
    train: Callable[..., int], pfedlora: Call, tmp_path: Path
) -> None:
    on = ("run", "--engine", "local", "--resume", "-o", "output=run", "-o")
    assert train("models=own_models:Good") == 0
    (tmp_path / "own_models.py").write_text(MODELS + "# later\n")
    before = (tmp_path / "run" / "result.json").read_bytes()
    for last in ((), ("--dry-run",)):
        code, _, err = pfedlora(*on, "rounds=3", *last)
        assert code == 2
        assert err == (
            f"error: own_models.py has changed since round 2 of {tmp_path / 'run'} (its copy is in"
            f" {tmp_path / 'run' / 'source'}); undo that, go on with the code as it is by"
            " --accept-changed-code, or start again with --overwrite (a comparison's with"
            " --redo …)\n"
        )
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    assert pfedlora(*on, "rounds=3", "--accept-changed-code")[0] == 0
    source, run = tmp_path / "run" / "source", RunDirectory(tmp_path / "run")
    assert (source / "own_models.py").read_text() == MODELS + "# later\n"
    assert (source / "until-round-000002" / "own_models.py").read_text() == MODELS
    told = json.loads((source / "code.json").read_text())
    assert [start["after-round"] for start in told] == [0, 2]
    digests = [hashlib.sha256(t.encode()).hexdigest() for t in (MODELS, MODELS + "# later\n")]
    assert [start["files"]["own_models.py"] for start in told] == digests
    assert codes_of(run) == [start["sha256"] for start in told]
    assert pfedlora(*on, "rounds=4")[0] == 0
    (tmp_path / "own_models.py").write_text(MODELS)
    assert pfedlora(*on, "rounds=5")[0] == 2, "what was accepted was that change alone"
    assert pfedlora("run", "--accept-changed-code", "-o", "output=other")[0] == 2
    assert train("models=cnn5", "overwrite=true") == 0
    assert not source.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
@pytest.mark.usefixtures("no_figures")
def test_a_comparison_names_what_other_code_did_and_does_not_average_it_with_new_runs(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds, an edit, a third seed: the first two stay and do not count, until they are done
    again."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from pfedlora_flwr.methods.standalone import Standalone\n\n"
        "class Mine(Standalone):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    base = "{clients: 2, rounds: 1, dataset: 'synthetic:100', models: cnn5, partition: {kind: iid}}"
    conf = tmp_path / "conf.yaml"

    def compare(seeds: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        conf.write_text(f"methods: ['mine:Mine']\nseeds: {seeds}\nbase: {base}\n")
        return pfedlora(
            *("compare", str(conf), "--engine", "local", "--output", str(tmp_path / "cmp")), *words
        )

    def report() -> str:
        return (tmp_path / "cmp" / "report" / "report.md").read_text()

    assert compare("[0, 1]")[0] == 0
    assert "other code" not in report()
    mine.write_text(mine.read_text() + "\n    lies = True\n")
    warning = "warning: your code has changed (mine.py) since 2 runs that stay as they are: "
    for words in ((), ("--dry-run",)):
        code, _, err = compare("[0, 1]", *words)
        assert code == 0
        assert warning in err
        assert "--redo stale" in err
    assert "done before the code here was changed: mine:Mine seed 0, mine:Mine seed 1" in report()
    code, out, err = compare("[0, 1, 2]")
    assert code == 0
    assert warning in err
    assert "seed 2: accuracy" in out
    assert "seed 0: accuracy" not in out
    text = report()
    assert "(1 of 3 seeds)" in text
    assert "other code: mine.py has changed since" in text
    assert "other code did runs that are left out: " in text
    rows = (tmp_path / "cmp" / "report" / "runs.csv").read_text().splitlines()
    assert len(rows) == 2, "a head and seed 2"
    code, out, _ = compare("[0, 1, 2]", "--redo", "stale", "--dry-run")
    assert "1 of 3 runs are done, 2 are left" in out
    code, out, err = compare("[0, 1, 2]", "--redo", "stale")
    assert code == 0
    assert "your code has changed" not in err
    assert "seed 0: accuracy" in out
    assert "seed 2: accuracy" not in out
    assert "other code" not in report()
    [name] = [p.name for p in (tmp_path / "cmp").iterdir() if p.is_dir() and "mine" in p.name]
    code, out, _ = compare("[0, 1, 2]", "--redo", f"{name}/seed-2")
    assert code == 0
    assert "seed 2: accuracy" in out
    assert "seed 0: accuracy" not in out
    code, _, err = compare("[0, 1, 2]", "--redo", "nothing")
    assert code == 2
    assert "--redo is 'nothing'; allowed: stale, or the folder of runs that are there: " in err


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
    line = (
        "at most 100 files and 1 MiB of your own code are copied to the run's `source`; left out:"
        " large.py"
    )
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
