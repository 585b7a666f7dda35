"""Every process of a run has the same data: what differs is refused before round 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site, forget
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.federation.messages import Instruction, written
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import Cli

NAMES = ["a", "b"]
KEYS = {"dataset": "tests.federation.test_same_data:made", "clients": 3, "partition.kind": "iid"}
LINE = (
    "dataset 'tests.federation.test_same_data:made' is not the same in this process as in the run's"
    " others (samples, labels, their division or the order of classes): give all the same files; a"
    " function of yours must return the same at every call: draw from a fixed seed, and sort what"
    " comes from a set or a folder"
)
changed: dict[str, Any] = {}
"""What another process would find."""


def made() -> dict[str, Any]:
    labels = np.arange(60) % 2
    inputs = np.arange(240.0).reshape(60, 4)
    return {"inputs": inputs, "labels": labels, "class_names": NAMES} | changed


def other(name: str) -> Any:
    found = made()
    if name == "class_names":
        return NAMES[::-1]
    found[name][:2] = found[name][:2][::-1]
    return found[name]


def instruction(data: str) -> dict[str, Any]:
    return written(Instruction(1, 0, 0, "token", "", False, [], data=data))


@pytest.fixture(params=["inputs", "labels", "class_names"])
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the server's data is known by, where this process has another."""
    forget()
    found = DataSetup(from_flat(KEYS)).data
    monkeypatch.setitem(changed, request.param, other(request.param))
    forget()
    return found


def test_a_client_with_other_data_says_so_when_it_is_asked_who_it_is(there: str) -> None:
    client = PersonalisedClient(from_flat(KEYS), {"partition-id": 0, "num-partitions": 3})
    assert client.get_properties({"data": there})["error"] == LINE
    own = client.get_properties({})["data"]
    assert own != there
    assert client.get_properties({"data": own})["data"] == own


def test_a_client_with_other_data_refuses_every_instruction(there: str) -> None:
    """A simulation asks one of its processes who it is, and all of them train."""
    client = PersonalisedClient(from_flat(KEYS), {"partition-id": 0, "num-partitions": 3})
    assert client.fit([], instruction(there))[2]["error"] == LINE
    assert client.evaluate([], instruction(there))[2]["error"] == LINE


def test_data_of_a_nodes_own_is_not_compared(there: str) -> None:
    node = {"partition-id": 0, "num-partitions": 3, "dataset": KEYS["dataset"]}
    client = PersonalisedClient(from_flat(KEYS | {"classes": 2, "input-shape": "4"}), node)
    answer = client.get_properties({"data": there})
    assert (answer["partition"], answer["data"]) == ("own", "")


def test_all_processes_of_one_dataset_know_it_alike() -> None:
    forget()
    e = from_flat(KEYS)
    said = {Site.find(e, k, {}).data for k in range(3)}
    forget()
    assert said == {DataSetup(e).data}
    assert said != {DataSetup(from_flat(KEYS | {"seed": 1})).data}


@pytest.mark.slow
def test_a_function_without_a_seed_ends_a_simulation_before_round_1(
    tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "drawn.py").write_text(
        "import numpy as np\n"
        "def data():\n"
        "    r = np.random.default_rng(); y = r.integers(0, 2, 200)\n"
        "    return r.normal(size=(200, 4)) + y[:, None], y, ['a', 'b']\n"
    )
    cli.environment["PYTHONPATH"] += f":{tmp_path}"
    keys = ("dataset=drawn:data", "clients=3", "partition.kind=iid", "rounds=1", "actors=2")
    words = [word for key in keys for word in ("-o", key)]
    done = cli.run("drawn", *words, "--engine", "flower")
    assert done.code == 1
    assert "dataset 'drawn:data' is not the same in this process" in done.stderr
    assert not RunDirectory(tmp_path / "drawn").rounds()
