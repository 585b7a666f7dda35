"""The app as Flower bundles it: format 1, and the rules of Flower Hub."""

from __future__ import annotations

import io
import subprocess
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.app_cmd.publish import _validate_description, _validate_files
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import filter_paths_for_publish, validate_project_name
from flwr.common.config import flatten_dict, fuse_dicts
from flwr.common.constant import FAB_MAX_SIZE
from flwr.supercore.constant import MAX_DIR_DEPTH

from pfedlora_flwr import client_app, server_app
from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
APP = flatten_dict(PROJECT["tool"]["flwr"]["app"]["config"])


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    """The files of the repository, as Flower's own function keeps them for Flower Hub."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    there = {name: ROOT / name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    return filter_paths_for_publish(there)  # type: ignore[return-value]


def test_the_app_meets_the_rules_of_flower_hub(files: dict[str, Path]) -> None:
    """Numbers and sizes of files, UTF-8, depth, names; as `flwr app publish` checks them."""
    _validate_files(list(files.values()))
    validate_project_name(PROJECT["project"]["name"], "the project")
    _validate_description(PROJECT["project"]["description"])
    assert len(PROJECT["project"]["description"]) <= 200
    assert max(len(PurePosixPath(name).parts) for name in files) <= MAX_DIR_DEPTH
    assert {"LICENSE", "README.md", "pyproject.toml"} <= files.keys()


def test_the_app_is_built_in_format_1(files: dict[str, Path]) -> None:
    built, about = build_fab_from_files(files)
    assert (about.fab_format_version, about.flwr_version_target) == (1, "1.41.0")
    assert len(built) < FAB_MAX_SIZE
    inside = zipfile.ZipFile(io.BytesIO(built)).namelist()
    assert {"LICENSE", "pyproject.toml", "pfedlora_flwr/server_app.py"} <= set(inside)
    assert not [name for name in inside if PurePosixPath(name).name.startswith("test_")]


def run(folder: Path, nodes: list[dict[str, int]], **keys: str | int | bool) -> RunDirectory:
    """The app with its own defaults and these keys, as `flwr run -c` hands them on."""
    wanted = fuse_dicts(APP, {"output": str(folder), "device": "cpu", **keys})
    context = Context(1, 0, {}, RecordDict(), wanted)
    server_app.serve(LocalGrid(client_app.app, nodes, wanted), context)
    return RunDirectory(folder)


@pytest.mark.slow
def test_a_first_run_takes_the_nodes_there_are(tmp_path: Path) -> None:
    nodes = [{"partition-id": k, "num-partitions": 2} for k in range(2)]
    small = {"models": "cnn5", "rounds": 1}
    directory = run(tmp_path / "run", nodes, **small)
    wanted = run_config({**small, "clients": 2, "partition.classes-per-client": 5, "device": "cpu"})
    assert directory.experiment() == wanted.experiment
    result = directory.result()
    assert result is not None
    assert result["fingerprint"] == wanted.experiment.fingerprint()
    assert result["status"] == "completed"
    again = run(tmp_path / "run", nodes, **small | {"rounds": 2}, resume=True).result()
    assert again is not None
    assert again["rounds"] == 2


def test_nodes_that_do_not_say_how_many_they_are_need_the_key(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"clients is auto, which is for simulations: .*; set clients"
    ):
        run(tmp_path / "run", [{"partition-id": 0}])
    with pytest.raises(UserError, match=r"clients is auto, and no node connected within 0\.1 s"):
        run(tmp_path / "run", [], **{"node-timeout": 0.1})
    with pytest.raises(UserError, match="clients is 'auto'; allowed: an integer"):
        run_config({"clients": "auto"})


@pytest.mark.parametrize(
    ("clients", "dataset", "expected"),
    [
        (10, "digits", 2),
        (2, "digits", 5),
        (3, "digits", 10),
        (4, "digits", 5),
        (10, "cifar100", 10),
    ],
)
def test_classes_per_client_divide_evenly(clients: int, dataset: str, expected: int) -> None:
    keys = {"clients": clients, "dataset": dataset}
    found = run_config({**keys, "partition.classes-per-client": "auto"}).experiment
    assert found == run_config({**keys, "partition.classes-per-client": expected}).experiment
    assert clients * expected % (100 if dataset == "cifar100" else 10) == 0
