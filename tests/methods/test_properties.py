"""What holds for every method in every setting: an undisturbed run, one that is killed and resumed,
and one among malicious clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.federation import client
from pfedlora_flwr.federation.model_cache import ModelCache
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods import registry
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from scripts import methods as written
from tests.conftest import Done, made_once, result_of, run_locally
from tests.federation import malice
from tests.models.bases import base
from tests.plain import ANY_MODEL, CELLS, LORA, SUMS, Plain

pytestmark = pytest.mark.methods
SMALLEST = {"heterogeneous": "cnn5,cnn4", "homogeneous": "cnn5"}
KEYS = {
    "clients": 3,
    "participation": 0.67,  # 0 and 1 in round 1, then 0 and 2
    "seed": 11,
    "rounds": 3,
    "dataset": "synthetic:123",  # 33 training samples each: batches of 16, 16 and 1
    "batch-size": 16,
    "partition.kind": "iid",
    "fedtgp.server-epochs": 3,
    "device": "cpu",
}
GROUPS = [
    pytest.param(cell, marks=pytest.mark.xdist_group("-".join(cell)), id="-".join(cell))
    for cell in [*CELLS, *((name, "lora") for name in LORA)]
]
"""All tests of a cell on one worker, so that its runs are made once."""

OTHERWISE = {
    ("fedre", "1000 times"): "expected weights ≥ 0",
    ("standalone", "other names"): "its 0 arrays have the names",
} | {
    (name, sort): part
    for name in SUMS
    for sort, part in (
        ("1000 times", "the counts of its classes are then"),
        ("another shape", "expected float64"),
    )
}
"""Method, malice and a part of the reason, where it is not the one in `malice.py`."""


def keys_of(method: str, setting: str, bases: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of the method. setting: the key, or `lora`: LoRA in a pretrained model."""
    if setting != "lora":
        return KEYS | {"method": method, "setting": setting, "models": SMALLEST[setting]}
    model = base(made_once(bases, "base", lambda folder: None), "test_vit")
    return KEYS | {"method": method, "models": model, "train": "lora", "lora.rank": "4"}


class Killed(NamedTuple):
    """A run that was killed in round 2, after its clients' visits, and resumed; it evaluates in
    round 3 alone."""

    error: str
    file: Path
    """The model of client 1, which was in round 1 alone."""
    before: bytes
    """That file when the run was killed."""
    resumed: Done


@pytest.fixture(scope="module", params=GROUPS)
def keys(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    torch.set_num_threads(1)  # before the runs of this module, which the tests share
    method, setting = request.param
    return keys_of(method, setting, tmp_path_factory)


@pytest.fixture(scope="module")
def whole(keys: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The undisturbed run."""
    done = run_locally(tmp_path_factory.mktemp("whole") / "run", keys)
    assert done.code == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def killed(keys: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Killed:
    output, keys = tmp_path_factory.mktemp("killed") / "run", keys | {"evaluate-every": 3}
    method = registry.find(keys["method"])
    aggregate = method.aggregate

    def dies(self: Any, uploads: Any, state: Any, round: int) -> Any:
        if round == 2:
            raise RuntimeError("killed")
        return aggregate(self, uploads, state, round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "aggregate", dies)
        error = run_locally(output, keys).stderr
    file = RunDirectory(output).client_store(1).path(1)
    before = file.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "MODELS", ModelCache())  # as in a new process
        resumed = run_locally(output, keys | {"resume": True})
    return Killed(error, file, before, resumed)


def test_it_trains_with_a_last_batch_of_one(whole: Done) -> None:
    rows = whole.rows("clients.jsonl")
    assert [(row["round"], row["client"]) for row in rows] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 2),
        (3, 0),
        (3, 2),
    ]
    assert {row["samples"] % KEYS["batch-size"] for row in rows} == {1}
    assert all(np.isfinite(loss) for row in rows for loss in [row["loss"], *row["losses"].values()])
    for k in range(3):
        [*_, last] = RunDirectory(whole.output).client_store(k).versions()
        tensors = RunDirectory(whole.output).client_store(k).read(last)
        assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())


def test_neither_a_kill_nor_evaluation_changes_a_bit(whole: Done, killed: Killed) -> None:
    assert "killed" in killed.error
    assert killed.resumed.code == 0, killed.resumed.stderr
    assert {row["round"] for row in killed.resumed.rows("clients.jsonl") if "accuracy" in row} == {
        3
    }
    for name in ("models_sha256", "shared_sha256", "per_client", "flops"):
        assert killed.resumed.result[name] == whole.result[name], name
    assert killed.resumed.result["accuracy"]["final"] == whole.result["accuracy"]["final"]


def test_a_client_that_misses_rounds_keeps_its_predictor(whole: Done, killed: Killed) -> None:
    assert whole.result["per_client"]["1"]["last_round"] == 1
    assert killed.file.read_bytes() == killed.before
    assert RunDirectory(whole.output).client_store(1).versions() == [1]
    assert load_trained(whole.output, 1).sha256 == load_trained(killed.resumed.output, 1).sha256


@pytest.mark.filterwarnings("ignore")
def test_export_and_predict_give_the_model_that_was_evaluated(
    whole: Done, keys: dict[str, Any], tmp_path: Path
) -> None:
    setup = DataSetup(RunDirectory(whole.output).experiment())
    dataset, partition = setup.dataset, setup.partition
    state = RunDirectory(whole.output).checkpoints.load()
    assert state is not None
    for k, row in whole.result["per_client"].items():
        trained, own = load_trained(whole.output, int(k)), partition.clients[int(k)]
        assert trained.sha256 == state.models[int(k)]
        said, true = (
            trained.logits(dataset.inputs[own.test]).argmax(1).numpy(),
            dataset.labels[own.test],
        )
        assert (said == true).mean() == pytest.approx(row["accuracy"])
        said, true = (
            trained.logits(dataset.inputs[own.validation]).argmax(1).numpy(),
            dataset.labels[own.validation],
        )
        assert trained.counts is not None
        assert (said == true).sum() == trained.counts.validation_correct
    program = keys.get("setting") == "heterogeneous" or keys["method"] == "fedalt"
    form = "torch-export" if program else "safetensors"
    large = keys["method"] in SUMS  # their scores are in the hundreds
    assert export(trained, form, tmp_path / "model") < (1e-2 if large else 1e-4)


@pytest.mark.parametrize("name", [*ANY_MODEL, *LORA])
def test_malicious_uploads_are_refused_and_change_nothing(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setting = dict(reversed(CELLS)).get(name, "lora")
    own = keys_of(name, setting, tmp_path_factory)
    rounds = 2 if name in SUMS else 1  # their last round brings the sums alone
    keys = own | malice.KEYS | {"models": own["models"], "rounds": rounds, "participation": 1.0}
    alone = Plain(keys)
    alone.play([0, 1])
    sent = alone.uploads[0].tensors
    sorts = ["NaN", "1000 times", "another shape"] if sent else ["other names"]
    sorts += [*malice.OF_CLASSES] if "classes" in sent else []
    keys |= {
        "clients": 2 + len(sorts),
        "dataset": f"synthetic:{41 * (2 + len(sorts))}",
        "min-success": 0.1,
    }
    output = malice.simulate(tmp_path, dict(enumerate(sorts, start=2)), **keys)
    visits = RunDirectory(output).visits()
    reasons = {row["client"]: row.get("reason") for row in visits if row["round"] == 1}
    for k, sort in enumerate(sorts, start=2):
        part = OTHERWISE.get((name, sort)) or (malice.MALICE | malice.OF_CLASSES)[sort][1]
        assert str(reasons[k]).startswith("refused: "), sort
        assert part in str(reasons[k]), sort
    assert reasons[0] is reasons[1] is None
    result = result_of(output)
    honest = Plain(keys)
    for _ in range(rounds):
        honest.play([0, 1])
    assert result["status"] == "completed"
    assert result["shared_sha256"] == tensors_sha256(honest.state)


def test_the_page_of_methods_has_the_costs_that_are_counted() -> None:
    assert written.PAGE.read_text(encoding="utf-8") == written.page(written.costs()), (
        "run `make docs`"
    )
