"""Simulations on a Ray cluster that is already there: the bits of one machine, a node that dies,
and a cluster left as it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfedlora_flwr.launch.processes import MARKER
from tests.cluster.nodes import Cluster
from tests.conftest import Cli, key_words, run_locally
from tests.test_run import facts, wait_for_rounds

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
KEYS = {"clients": 5, "participation": 0.8, "rounds": 5, "batch-size": 16, "seed": 7}


def words(**more: object) -> list[str]:
    return key_words(KEYS | more)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _left_as_it_was(cluster: Cluster) -> Iterator[None]:
    yield
    assert not cluster.left(), "workers are left"
    assert len(cluster.nodes()) == 2, "a node of the cluster is gone"


@pytest.mark.parametrize("method", ["pfedlora", "fedkd"])
def test_two_nodes_give_the_bits_of_one_machine(
    cluster: Cluster, cli: Cli, tmp_path: Path, method: str
) -> None:
    done = cli.run(
        "cluster", *words(method=method, rounds=2), "--ray", cluster.address, timeout=600
    )
    assert done.code == 0, done.stderr
    assert facts(done.result) == facts(
        run_locally(tmp_path / "here", KEYS | {"method": method, "rounds": 2}).result
    )
    used = {row["node"] for row in done.rows("clients.jsonl")}
    assert used == set(done.result["machine"]["nodes"]) == cluster.nodes()


def test_a_node_that_dies_is_named_and_the_run_goes_on_to_the_same_bits(
    cluster: Cluster, cli: Cli, tmp_path: Path
) -> None:
    process = cli.start("killed", *words(), "--ray", cluster.address)
    wait_for_rounds(tmp_path / "killed", 1, timeout=300)
    cluster.kill_last()
    killed = time.monotonic()
    stdout, stderr = process.communicate(timeout=400)
    print(f"{time.monotonic() - killed:.0f} s from the kill to the end")
    cluster.add()
    assert process.returncode == 0, stderr
    assert "is gone; going on without" in stdout
    assert "1 actor on 1 Ray node\n" in stdout
    here = run_locally(tmp_path / "here", KEYS)
    done = cli.run("killed", "--resume")  # it is completed, and says so
    assert facts(done.result) == facts(here.result)


def test_a_worker_that_dies_alone_is_told_and_the_run_goes_on_to_the_same_bits(
    cluster: Cluster, cli: Cli, tmp_path: Path
) -> None:
    process = cli.start("alone", *words(rounds=60), "--ray", cluster.address)
    wait_for_rounds(tmp_path / "alone", 1, timeout=300)
    cluster.workers()[-1].kill()
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    assert "a process that trains clients is gone; going on without" in stdout
    done = cli.run("alone", "--resume")  # it is completed, and says so
    assert facts(done.result) == facts(run_locally(tmp_path / "here", KEYS | {"rounds": 60}).result)


def test_ctrl_c_leaves_nothing_and_our_processes_carry_our_marker(
    cluster: Cluster, cli: Cli, tmp_path: Path
) -> None:
    process = cli.start("stopped", *words(), "--ray", cluster.address)
    wait_for_rounds(tmp_path / "stopped", 1, timeout=300)
    actors = [worker.environ() for worker in cluster.workers()]
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(actors) == 2
    assert all(
        MARKER in actor and actor["OMP_NUM_THREADS"] == "1" and "SPT_NOENV" in actor
        for actor in actors
    )
    assert not cluster.left(10)


def test_what_a_killed_launcher_leaves_is_stopped_at_the_next_start(
    cluster: Cluster, cli: Cli, tmp_path: Path
) -> None:
    process = cli.start("left", *words(rounds=400), "--ray", cluster.address)
    wait_for_rounds(tmp_path / "left", 1, timeout=300)
    process.kill()
    process.communicate(timeout=10)
    # on the same cluster, as its configuration says
    done = cli.run("left", "--resume", "-o", "max-hours=0.0001", timeout=300)
    assert "that a killed launcher left running" in done.stdout
    assert f"joins the Ray cluster at {cluster.address}: 2 actors" in done.stdout
    assert done.code == 75
    assert done.result["stopped_by"] == "time"


def test_a_cluster_that_is_gone_is_one_line(cli: Cli, tmp_path: Path) -> None:
    with Cluster() as cluster:
        process = cli.start("headless", *words(rounds=400), "--ray", cluster.address)
        wait_for_rounds(tmp_path / "headless", 1, timeout=300)
        cluster.kill_head()
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert stderr.startswith("failed after round ")
    assert f": the Ray cluster at {cluster.address} no longer answers\n" in stderr


def test_ray_address_alone_is_obeyed_and_said(cluster: Cluster, cli: Cli) -> None:
    cli.environment["RAY_ADDRESS"] = cluster.address
    done = cli("run", *words(), "--dry-run", "-o", f"output={cli.folder / 'dry'}")
    assert done.code == 0, done.stderr
    assert "trained by: 2 actors on 2 Ray nodes" in done.stdout
