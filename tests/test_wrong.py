"""What users get wrong, through the front door: one line that says what is wrong and what is
allowed, and nothing is touched."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests import wrong_made as made
from tests.conftest import ROOT, Call, made_once, run_locally
from tests.wrong_inputs import RUN, TABLE, Wrong, faults, files_in


@pytest.fixture(scope="module", autouse=True)
def _cache_and_no_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of datasets of our own; and no process is left."""
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFEDLORA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The completed run that the rows of the table find in `run`."""
    words = shlex.split(RUN.replace("-o ", ""))
    keys = dict(word.split("=", 1) for word in words) | {"clients": 2, "rounds": 2}

    def train(folder: Path) -> None:
        assert run_locally(folder / "run", keys).code == 0

    return made_once(tmp_path_factory, "small", train) / "run"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pfedlora: Call) -> Iterator[Path]:
    """The command's folder, with own modules that another test has not left behind; temporary files
    go beside it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for name in made.OWN_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path / "here"
    for name in made.OWN_MODULES:
        sys.modules.pop(name, None)


def named(category: str, row: Wrong) -> str:
    """A test's name, the same in every process: a port that is taken is another in each."""
    return re.sub(r"--port \d{4,}", "--port TAKEN", f"{category}: {row.command[-70:]}")


SLOW, QUICK = [pytest.mark.slow, pytest.mark.timeout(180)], [pytest.mark.timeout(60)]
ROWS = [
    pytest.param(row, id=named(category, row), marks=SLOW if row.slow else QUICK)
    for category, rows in TABLE.items()
    for row in rows
]


@pytest.mark.parametrize("row", ROWS)
def test_a_wrong_input_is_one_line(
    row: Wrong, pfedlora: Call, place: Path, request: pytest.FixtureRequest
) -> None:
    if row.run:
        shutil.copytree(request.getfixturevalue("small_run"), place / "run")
    with ExitStack() as held:
        for make in row.needs:
            holds = make(place)
            if holds is not None:
                held.enter_context(holds)
        before = files_in(place)
        done = pfedlora(*shlex.split(row.command))
    assert not faults(row, *done, before, files_in(place)), done


def test_every_category_has_twenty_and_none_is_there_twice() -> None:
    assert all(len(rows) >= 20 for rows in TABLE.values())
    rows = [(row.command, row.expected, row.needs) for rows in TABLE.values() for row in rows]
    assert len({repr(row) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("models=own_models:ForwardRaises", False),
        ("models=own_models:Late", False),
        ("method=own_methods:AggregateRaises", True),
    ],
)
def test_the_traceback_of_own_code_is_in_the_file_that_the_line_names(
    setting: str, named: bool, pfedlora: Call, place: Path
) -> None:
    """Before the run a temporary one, in it the run's own; and no advice to go on, where the code
    is to be mended."""
    made.own_code(place)
    code, _, err = pfedlora(*made.run_of_own_code(setting))
    file = re.search(r"; traceback in (\S+\.txt)$", err.strip())
    assert file, err
    assert (Path(file[1]) == place / "run" / "logs" / "traceback.txt") == named == (code == 1)
    assert "Traceback (most recent call last)" in Path(file[1]).read_text()
    assert "--resume" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ["models=own_models:Good", "models=own_models:Equal", "method=own_methods:Grows"]
)
def test_own_code_that_is_right_passes(setting: str, pfedlora: Call, place: Path) -> None:
    made.own_code(place)
    code, _, err = pfedlora(*made.run_of_own_code(setting))
    assert code == 0, err


def test_numbers_are_as_people_read_them(pfedlora: Call, place: Path) -> None:
    (place / "conf.yaml").write_text("seed: 010\nlr: 1e-2\nclip-norm: 1_0.5\nmax-samples: 0x10\n")
    words = [
        "run",
        "conf.yaml",
        "--dry-run",
        "-o",
        "clients=08",
        "-o",
        "dataset=synthetic:100",
        "-o",
        "partition.kind=iid",
    ]
    code, out, err = pfedlora(*words, "-o", "rounds=007", "-o", "output=007", "-o", "augment=yes")
    assert code == 0, err
    assert "for 7 rounds" in out
    assert f"it would run in {place / '007'}" in out


@pytest.mark.slow
def test_classes_without_an_image_are_named_in_one_line(pfedlora: Call, place: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        place / "own.npz",
        images=rng.integers(0, 256, (40, 32, 32, 3), np.uint8),
        labels=np.arange(40) % 5 * 7,
    )
    for name in ("cats", "dogs", "empty"):
        (place / "own" / name).mkdir(parents=True)
    for i in range(20):
        Image.new("RGB", (32, 32), (i, 2 * i, 200)).save(
            place / "own" / ("cats", "dogs")[i % 2] / f"{i}.png"
        )
    keys = ("partition.kind=iid", "clients=1", "rounds=1", "models=tests.methods.narrow:Narrow")
    local = ["run", "--engine", "local", "--quiet", *(word for key in keys for word in ("-o", key))]
    for dataset, expected in (
        ("npz:own.npz", "24 classes of the dataset have no images: 1, 2, 3,"),
        ("folder:own", "1 class of the dataset has no images: empty"),
    ):
        code, out, err = pfedlora(
            *local, "-o", f"dataset={dataset}", "-o", f"output=runs/{dataset[:3]}"
        )
        assert code == 0, err
        assert any(line.startswith("warning: ") and expected in line for line in out.splitlines())


@pytest.mark.slow
def test_a_run_that_failed_before_its_first_round_is_not_in_the_way(
    pfedlora: Call, place: Path
) -> None:
    local = ["run", "--engine", "local", "--quiet", *shlex.split(RUN), "-o", "output=run"]
    code, _, err = pfedlora(
        *local,
        "-o",
        "evaluate-initial=false",
        "-o",
        "observers=tensorboard",
        "-o",
        "method=tests.failing:ServerRaises",
    )
    assert code == 1, err
    assert (place / "run" / "events").exists()
    assert "ZeroDivisionError: the server divides by nothing, at tests/failing.py" in err.replace(
        str(ROOT) + "/", ""
    )
    code, _, err = pfedlora(*local)
    assert code == 0, err


def test_a_result_that_was_removed_is_made_anew(
    small_run: Path, pfedlora: Call, place: Path
) -> None:
    """As the line for a damaged one advises."""
    shutil.copytree(small_run, place / "run")
    (place / "run" / "result.json").unlink()
    code, _, err = pfedlora("run", "--resume", "-o", "output=run", "--engine", "local", "--quiet")
    assert code == 0, err
    seconds = re.compile(rb'"seconds": \{[^}]*\}')
    before, after = (
        seconds.sub(b"", (folder / "result.json").read_bytes())
        for folder in (small_run, place / "run")
    )
    assert before == after
