"""What users get wrong, through the front door: one line that says what is wrong and what is allowed, and nothing is touched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pfedlora_flwr import cli
from tests.conftest import ROOT


@pytest.fixture
def pfedlora(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`pfedlora WORDS…` in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pfedlora", *words])
        with pytest.raises(SystemExit) as raised:
            cli.main()
        return int(raised.value.code or 0), *capsys.readouterr()

    return call


def keys(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("-o", setting)]


def refused(done: tuple[int, str, str], expected: str) -> None:
    code, out, err = done
    assert (code, out, err.count("\n"), err[:7]) == (2, "", 1, "error: "), (out, err)
    assert expected in err


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["adapter.hidden-dim=100000000"], "adapter.hidden-dim is 100000000; allowed: an integer ≥ 1 and ≤ 10000"),
        (["dataset=synthetic:99999999999"], "allowed: synthetic:COUNT with 10 to 5000000 images"),
        (["seed=99999999999999999999"], "allowed: an integer ≥ 0, finite and below 2^63"),
        (["lr=inf"], "lr is inf; allowed: a number > 0, finite and below 2^63"),
        (["classes=3"], "classes is 3; allowed: auto, or 10, which dataset 'digits' has"),
        (["classes=20"], "classes is 20; allowed: auto, or 10"),
        (
            ["models=tests.methods.narrow:Narrow,cnn5"],
            "choose models whose last layers have inputs of one width, or a method",
        ),
        (["adapter.kind=reduced"], "set adapter.kind=decomposed"),
        (
            ["method-options=a=b"],
            "which is for a package.module:Class method; the options of pfedlora are keys: adapter.kind",
        ),
        (["method=tests.failing:ServerRaises", "method-options=at"], "method-options is 'at'; allowed: key=value key=value"),
        (["adapter=3"], "adapter is no key but a section of keys: adapter.kind, "),
    ],
)
def test_a_wrong_key(pfedlora: Any, tmp_path: Path, settings: list[str], expected: str) -> None:
    refused(pfedlora("run", *keys(*settings, "output=run")), expected)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"rounds: 1\nlr: 0.1\nrounds: 0\n", "not valid YAML at line 3, column 1: 'rounds' is there twice"),
        (b"partition: {kind: iid, kind: dirichlet}\n", "line 1, column 24: 'kind' is there twice"),
        (b"partition: {kind: iid}\npartition.kind: dirichlet\n", "partition.kind is there twice, under its section and with a dot"),
        (b"a: [1\nb: 2\n", "not valid YAML at line 2, column 2: expected ',' or ']'"),
        (b"rounds: 1\nname: gr\xfc\xdf\n", "not valid YAML at line 2: it is not in UTF-8 (byte 0xfc)"),
        (b"methods: [pfedlora]\nbase: {rounds: 2}\n", "is a comparison (it has methods): use pfedlora compare"),
    ],
)
def test_a_wrong_file(pfedlora: Any, tmp_path: Path, text: bytes, expected: str) -> None:
    (tmp_path / "conf.yaml").write_bytes(text)
    refused(pfedlora("run", "conf.yaml"), expected)


def test_what_compare_refuses_its_dry_run_refuses_by_name_and_nothing_is_left(pfedlora: Any, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("methods: [pfedlora]\nbase: {rounds: 2}\naxes: {clients: [5, 4]}\n")
    for more in (["--dry-run"], []):
        refused(pfedlora("compare", "conf.yaml", *more), "pfedlora, clients=4, seed 0: 4 clients × 2 classes a client is not a multiple")
        assert not (tmp_path / "runs").exists()


def test_an_output_that_is_a_file(pfedlora: Any, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("irreplaceable")
    refused(pfedlora("run", *keys("output=run")), "is a file; choose a directory")


@pytest.mark.parametrize(
    ("images", "labels", "names", "expected"),
    [
        ((100, 32, 32, 3), np.arange(50), None, "images is uint8 [100, 32, 32, 3], labels int64 [50]; expected"),
        ((100, 32, 32, 3), np.zeros((100, 1), int), None, "labels int64 [100, 1]"),
        ((0, 32, 32, 3), np.zeros(0, int), None, "it has no images"),
        ((30, 32, 32, 3), np.zeros(30, int), None, "all labels are 0; expected at least two classes"),
        ((30, 32, 32, 3), np.arange(30) - 1, None, "labels go from -1 to 28; allowed: 0 to 99999"),
        ((30, 32, 32, 3), np.arange(30) % 3, ["a", "b"], "labels go up to 2, and class_names names 0 to 1"),
        ((5, 32, 32, 3), np.arange(5), None, "has 5 images; a client needs 10"),
    ],
)
def test_a_wrong_npz(
    pfedlora: Any, tmp_path: Path, images: tuple[int, ...], labels: np.ndarray, names: list[str] | None, expected: str
) -> None:
    more = {} if names is None else {"class_names": np.array(names)}
    np.savez(tmp_path / "own.npz", images=np.zeros(images, np.uint8), labels=labels, **more)
    refused(pfedlora("run", *keys("dataset=npz:own.npz", "partition.kind=iid", "clients=1", "output=run")), expected)


def test_classes_without_an_image_are_named_in_one_line(pfedlora: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", images=rng.integers(0, 256, (40, 32, 32, 3), np.uint8), labels=np.arange(40) % 5 * 7)
    for name in ("cats", "dogs", "empty"):
        (tmp_path / "own" / name).mkdir(parents=True)
    for i in range(20):
        Image.new("RGB", (32, 32), (i, 2 * i, 200)).save(tmp_path / "own" / ("cats", "dogs")[i % 2] / f"{i}.png")
    local = ["--engine", "local", "--quiet", *keys("partition.kind=iid", "clients=1", "rounds=1", "models=cnn5")]
    for dataset, expected in (("npz:own.npz", "24 classes of the dataset have no image: 1, 2, 3,"), ("folder:own", "have no image: empty")):
        code, out, err = pfedlora("run", *local, *keys(f"dataset={dataset}", f"output=runs/{dataset[:3]}"))
        assert code == 0, err
        assert any(line.startswith("warning: ") and expected in line for line in out.splitlines())


def test_a_run_that_failed_before_its_first_round_is_not_in_the_way(pfedlora: Any, tmp_path: Path) -> None:
    small = keys("partition.kind=iid", "clients=2", "rounds=1", "dataset=synthetic:100", "output=run")
    local = ["run", "--engine", "local", "--quiet", *small]
    code, _, err = pfedlora(*local, *keys("evaluate-initial=false", "method=tests.failing:ServerRaises"))
    assert code == 1, err
    assert "ZeroDivisionError: the server divides by nothing, at tests/failing.py" in err.replace(str(ROOT) + "/", "")
    code, _, err = pfedlora(*local)
    assert code == 0, err
