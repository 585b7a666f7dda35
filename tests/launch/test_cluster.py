"""A Ray cluster's nodes, looked at before a run: what differs from this host is one line that names
the node and says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch import cluster
from pfedlora_flwr.launch.cluster import Node, check_nodes, look_around

NODES = [Node("f00dcafe" * 7, "10.0.0.1", 4, 0), Node("deadbeef" * 7, "10.0.0.2", 4, 0)]


def looked(monkeypatch: pytest.MonkeyPatch, folder: Path, changes: dict[str, Any]) -> None:
    """The nodes as their tasks find them in this process, the second one with these changes."""

    def ask(address: str, request: Any, patience: float) -> Any:
        look = request["look"]
        found = [look_around(look["files"], look["token"], look["keys"]) for _ in NODES]
        return {
            "looks": {
                node.id: answer
                for node, answer in zip(NODES, [found[0], found[1] | changes], strict=True)
            }
        }

    monkeypatch.setattr(cluster, "_ask", ask)
    check_nodes("10.0.0.1:6379", NODES, run_config({}), {}, [folder / "run", folder / "cache"])


@pytest.mark.slow
def test_equal_nodes_pass_and_nothing_is_left_in_the_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked(monkeypatch, tmp_path, {})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_only_where_all_libraries_are_told_which_kernels_to_take_others_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MKL takes its own by the processor, whatever oneDNN was told."""
    monkeypatch.delenv("MKL_CBWR", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    one = cluster._kind_of_cpu("AVX2")
    assert one != "AVX2, AVX2"
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in one, "a node where it is set is another kind"
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert cluster._kind_of_cpu("AVX2") == f"AVX2 {cluster.maker_of_cpu()}".strip() + ", AVX2 AVX2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"silent": "no worker could be started"},
            "does not answer (no worker could be started): look at it, or take it out",
        ),
        (
            {"lacks": "ModuleNotFoundError: no torch", "python": "/usr/bin/python3"},
            "install this version of pfedlora-flwr for /usr/bin/py",
        ),
        ({"version": "0.1.0"}, "has pfedlora-flwr 0.1.0, this host "),
        ({"torch": "2.6.0"}, "has PyTorch 2.6.0, this host "),
        ({"source": "0" * 64}, "has other code in "),
        ({"cpu": "AVX2 avx avx2 fma"}, "has another kind of CPU (AVX2 avx avx2 fma; this host: "),
        (
            {"unprepared": "dataset 'folder:/x': no such folder"},
            "cannot train a client (dataset 'folder:/x': no such folder): data, ",
        ),
        ({"partition": "0" * 64}, "finds other data than this host: "),
        (
            {"unseen": ["/home/me/runs"]},
            "does not see /home/me/runs: it must lie on a file system that all nodes share",
        ),
        (
            {"unwritable": ["/home/me/runs"]},
            "cannot write to /home/me/runs: let this user write there",
        ),
    ],
)
def test_a_node_that_differs_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as raised:
        looked(monkeypatch, tmp_path, changes)
    assert str(raised.value).startswith("the Ray node 10.0.0.2 (deadbeef) ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_gpus_without_a_pytorch_for_them_are_named() -> None:
    here = look_around([], "", {}) | {"partition": "p"}
    assert "has a PyTorch without CUDA" in cluster._fault(here, here | {"cuda": None}, on_gpu=True)
    assert not cluster._fault(here, here | {"cuda": None}, on_gpu=False)
    assert not cluster._fault(here, here | {"cuda": "12.8"}, on_gpu=True)


def test_a_look_finds_what_is_not_there(tmp_path: Path) -> None:
    assert look_around([str(tmp_path / "none" / "token")], "token", {})["unseen"] == [
        str(tmp_path / "none")
    ]
    assert "no.such.module" in look_around([], "", {"models": "no.such.module:Net"})["unprepared"]
    assert "/no/such" in look_around([], "", {"dataset": "folder:/no/such"})["unprepared"]


def test_what_ray_job_submit_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        cluster.JOB_CONFIG,
        '{"runtime_env": {"pip": ["x"], "env_vars": {"A": "1", "B": "1"}}, "metadata": {"job":'
        ' "7"}}',
    )
    given = json.loads(cluster.job_config({"B": "2", "C": "3"}))
    assert given == {
        "runtime_env": {"pip": ["x"], "env_vars": {"A": "1", "B": "2", "C": "3"}},
        "metadata": {"job": "7"},
    }
