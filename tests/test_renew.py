"""A run that begins from an earlier one's models (`start-from`)."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import Site, forget
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.renewal import grown
from pfedlora_flwr.runs.store import read_tensors
from pfedlora_flwr.runs.trained import node_stores
from tests.conftest import keys_in, named_keys, result_of, run_locally
from tests.test_joining import serve, sites

__all__ = ["sites"]
SMALL = keys_in("dataset=digits clients=5 participation=0.6 models=tests.methods.narrow:Narrow")


def simulate(output: Path, **keys: object) -> dict[str, Any]:
    named = named_keys(keys)
    done = run_locally(output, SMALL | named)
    assert done.code == 0, done.stderr
    return result_of(output)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [{"method": "pfedlora"}, {"method": "fedproto"}, {"method": "fedavg", "sharing": "none"}],
    ids=str,
)
def test_where_nothing_has_changed_it_has_the_bits_of_an_extension(
    tmp_path: Path, keys: dict[str, object]
) -> None:
    simulate(tmp_path / "one", rounds=2, **keys)
    shutil.copytree(tmp_path / "one", tmp_path / "more")
    extended = simulate(tmp_path / "more", rounds=4, resume=True, **keys)
    renewed = simulate(tmp_path / "two", rounds=4, start_from=str(tmp_path / "one"), **keys)
    for what in ("models_sha256", "shared_sha256", "rounds"):
        assert renewed[what] == extended[what], what
    assert renewed["accuracy"]["final"] == extended["accuracy"]["final"]
    first = result_of(tmp_path / "one")
    assert renewed["started_from"] == {
        "place": str(tmp_path / "one"),
        "method": keys["method"],
        "round": 2,
        "shared_sha256": renewed["started_from"]["shared_sha256"],
    }
    if "sharing" not in keys:
        assert renewed["started_from"]["shared_sha256"] == first["shared_sha256"]
    assert [row["round"] for row in RunDirectory(tmp_path / "two").rounds()] == [3, 4]


def own(node: dict[str, Any], rows: int, *, first: int = 0, extra: int = 0) -> None:
    """Gives a site so many digits; the last `extra` of them are of an eleventh class."""
    shared = datasets.load("digits")
    labels = shared.labels[first : first + rows].copy()
    labels[rows - extra :] = 10
    place = node["dataset"].removeprefix("npz:")
    np.savez(place, images=shared.inputs[first : first + rows], labels=labels)
    forget()


def rows_of(node: dict[str, Any], client: int) -> list[set[bytes]]:
    """A site's training and test rows."""
    site = Site.find(from_flat({"dataset": "digits", "clients": 3}), client, node)
    parts = site.split.train, site.split.test
    return [{site.dataset.inputs[i].tobytes() for i in part} for part in parts]


@pytest.mark.slow
def test_sites_are_renewed_twice_as_their_data_grow_and_one_moves(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    nodes, runs, seen = sites[:3], [RunDirectory(tmp_path / f"run{m}") for m in range(3)], []
    told: list[tuple[str, dict[int, str]]] = []
    for month, run in enumerate(runs):
        for place, node in enumerate(nodes):
            own(node, 60 + 20 * month, first=400 * place)
        more = {"start_from": str(runs[month - 1].path)} if month else {}
        result = serve(run.path, nodes, rounds=2 * month + 2, participation=1.0, **more)
        assert result["lost"] == 0
        state = run.checkpoints.load()
        assert state is not None
        if month:
            start = result["started_from"]
            assert (start["round"], start["shared_sha256"]) == (2 * month, told[-1][0])
            assert [o["token"] for o in run.origins()] == [r.token for r in runs[:month]]
            first = [r["client"] for r in run.visits() if r["round"] == 2 * month + 1]
            assert sorted(first) == [0, 1, 2]
            for node in nodes:  # each begins with the model with which it has ended
                for store in node_stores(Path(node["state-path"]) / runs[month - 1].token, 0):
                    _, about = read_tensors(store.path(2 * month))
                    assert about["sha256"] == told[-1][1][0]
        told.append((result["shared_sha256"], state.models))
        numbers = json.loads(run.numbers_file.read_text())
        clients = [numbers[(Path(n["state-path"]) / "name").read_text()] for n in nodes]
        seen.append([rows_of(node, k) for node, k in zip(nodes, clients, strict=True)])
        # its state moves to another machine
        moved = tmp_path / f"moved{month}"
        shutil.move(nodes[1]["state-path"], moved)
        nodes[1] = nodes[1] | {"state-path": str(moved)}
    for earlier, later in pairwise(seen):
        for (train, test), (new_train, new_test) in zip(earlier, later, strict=True):
            assert not train & new_test
            assert not test & new_train
            assert len(new_train) > len(train)


@pytest.mark.slow
def test_a_site_without_its_earlier_model_begins_anew_and_is_told(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    serve(tmp_path / "one", sites[:2], participation=1.0)
    shutil.rmtree(Path(sites[1]["state-path"]) / RunDirectory(tmp_path / "one").token)
    more = {"start_from": str(tmp_path / "one"), "rounds": 3, "participation": 1.0}
    assert serve(tmp_path / "two", sites[:2], **more)["lost"] == 1


@pytest.mark.slow
def test_what_a_site_kept_at_home_stays_there_unless_it_says_so(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    """A second run that uploads last month's private model."""
    one, keys = tmp_path / "one", {"participation": 1.0, "rounds": 3}
    serve(one, sites[:2], method="fedper", participation=1.0)
    more = keys | {"start_from": str(one)}
    refused = (
        r"clients 0, 1: start-from: fedavg sends module\.head\.bias, module\.head\.weight, which"
    )
    with pytest.raises(RunFailed, match=refused):
        serve(tmp_path / "two", sites[:2], method="fedavg", **more)
    serve(tmp_path / "less", sites[:2], method="standalone", **more)
    allowed = [site | {"start-from": "any"} for site in sites[:2]]
    serve(tmp_path / "three", allowed, method="fedavg", **more)
    # a server that says that its run is that one
    for client in range(2):
        MODELS.take(RunDirectory(one).token, client, 2)  # another process has none
    forged = {"method": "fedavg", "resume": True} | keys
    text = (one / "config.yaml").read_text()
    (one / "config.yaml").write_text(text.replace("method: fedper", "method: fedavg"))
    with pytest.raises(RunFailed, match=r"clients 0, 1: start-from: fedavg sends"):
        serve(one, sites[:2], **forged)


@pytest.mark.slow
def test_new_classes_get_new_rows_and_known_ones_keep_theirs(
    tmp_path: Path, sites: list[dict[str, Any]]
) -> None:
    one, keys = tmp_path / "one", {"participation": 1.0, "method": "fedavg", "lr": 1e-9}
    serve(one, sites[:2], **keys, **{"loss.class-weights": ",".join("1" * 10)})
    for place, node in enumerate(sites[:2]):
        own(node, 120, first=60 * place, extra=20)
    more = keys | {"classes": 11, "rounds": 3, "start_from": str(one)}
    serve(tmp_path / "two", sites[:2], **more)
    states = [RunDirectory(tmp_path / run).checkpoints.load() for run in ("one", "two")]
    before, after = [state.tensors["module.head.weight"] for state in states if state]
    assert (len(before), len(after)) == (10, 11)
    assert torch.allclose(after[:10], before, atol=1e-5)
    for node in sites[:2]:  # other names: the numbers would mean other classes
        place = node["dataset"].removeprefix("npz:")
        with np.load(place) as held:
            images, labels = held["images"], held["labels"]
        np.savez(place, images=images, labels=labels, class_names=[f"n{i}" for i in range(11)])
    forget()
    with pytest.raises(RunFailed, match=r"its classes.* are .* its earlier model's"):
        serve(tmp_path / "three", sites[:2], **more, node_timeout=20)


def table(file: Path, rows: int, owners: str) -> None:
    values = np.random.default_rng(0).normal(size=(rows, 2))
    lines = [
        f"{a!r},{b!r},{'pq'[a > 0]},{owners[i % len(owners)]}"
        for i, (a, b) in enumerate(values.tolist())
    ]
    file.write_text("\n".join(["a,b,label,who", *lines]) + "\n")
    forget()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iid", "natural"])
def test_a_simulations_rows_keep_their_parts_as_its_table_grows(tmp_path: Path, kind: str) -> None:
    """Each month has a file of its own; the former one is gone."""
    seen = []
    keys: dict[str, Any] = {
        "data.label-column": "label",
        "data.client-column": "who",
        "partition.kind": kind,
        "models": "auto",
        "participation": 1.0,
    }
    for month, owners in enumerate(("ABC", "ABCD", "ABCDE")):
        file = tmp_path / f"{month}.csv"
        table(file, 150 + 90 * month, owners)
        (tmp_path / f"{month - 1}.csv").unlink(missing_ok=True)
        clients = len(owners) if kind == "natural" else 3
        more = {"start_from": str(tmp_path / str(month - 1))} if month else {}
        keys |= {"clients": clients, "rounds": month + 1, "dataset": f"csv:{file}"}
        simulate(tmp_path / str(month), **keys, **more)
        setup = DataSetup(RunDirectory(tmp_path / str(month)).experiment())
        rows = setup.dataset.inputs
        parts = [
            [s.train for s in setup.partition.clients],
            [s.test for s in setup.partition.clients],
        ]
        seen.append([{rows[i].tobytes() for own in part for i in own} for part in parts])
    for (train, test), (later_train, later_test) in pairwise(seen):
        assert train <= later_train
        assert test <= later_test
        assert len(later_test) > len(test)


@pytest.mark.slow
def test_what_cannot_be_begun_from_is_one_line(tmp_path: Path) -> None:
    one = tmp_path / "one"
    simulate(one, rounds=2)
    (tmp_path / "empty").mkdir()
    for keys, told in (
        ({"start_from": str(tmp_path / "no")}, "no'; allowed: a run's directory, or a file of"),
        ({"start_from": str(tmp_path / "empty")}, "holds no run"),
        ({"start_from": str(tmp_path / "one" / "config.yaml")}, "is neither a run nor a file of"),
        ({"rounds": 2}, "rounds is 2, and .* last round is 2: .*; rounds=4 adds 2"),
        ({"seed": 1}, "seed is 1, and .* set seed=0"),
        (
            {"clients": 3, "partition.kind": "iid"},
            "clients is 3, and .* which has 5: .*its number",
        ),
        ({"models": "auto"}, "its models are .*another architecture cannot go on"),
        ({"models": "auto", "setting": "homogeneous"}, "its models are .*another architecture"),
        ({"method": "fedlda", "initial-models": "architecture"}, "needs no start"),
        ({"output": "one"}, "the run's own output"),
    ):
        output = tmp_path / str(keys.pop("output", "two"))
        with pytest.raises(UserError, match=told):
            simulate(output, **({"rounds": 4, "start_from": str(one)} | keys))


@pytest.mark.slow
def test_what_was_spent_is_counted_on(tmp_path: Path) -> None:
    keys = keys_in("method=fedavg dp.noise=1.0 dp.clip=1.0 dp.delta=0.1 participation=1.0")
    first = simulate(tmp_path / "one", rounds=2, **keys)["privacy"]["dp"]
    more = {"rounds": 4, "start_from": str(tmp_path / "one")}
    same = simulate(tmp_path / "two", **keys, **more)["privacy"]["dp"]
    assert same["participations_max"] == 4
    other = simulate(tmp_path / "three", **keys | {"dp.noise": 2.0}, **more)["privacy"]["dp"]
    assert other["participations_max"] == 2
    [earlier] = other["earlier"]
    assert earlier["epsilon"] == first["epsilon"]


def test_rows_are_added_and_nothing_else_is_changed() -> None:
    old, fresh = (
        {"w": torch.ones(2, 3), "b": torch.ones(2)},
        {"w": torch.zeros(4, 3), "b": torch.zeros(4)},
    )
    both = grown("it", old, fresh, 4)
    assert both["w"].sum(1).tolist() == [3, 3, 0, 0]
    for classes, wrong in (
        (5, fresh),
        (4, {"w": torch.zeros(4, 2), "b": old["b"]}),
        (4, {"w": old["w"]}),
    ):
        with pytest.raises(UserError, match=r"^it.*another architecture"):
            grown("it", old, wrong, classes)
