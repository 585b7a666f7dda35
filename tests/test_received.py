"""What a server learns under masks from what it sends: of a site that was sent something else
nothing, and of none a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitins_to_recorddict
from rich.console import Console
from scipy import stats

from pfedlora_flwr import client_app
from pfedlora_flwr.commands.display import client_table, summary
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.flower_compat import MASKERS, FitIns, ndarrays_to_parameters
from pfedlora_flwr.federation.secure import masks
from pfedlora_flwr.federation.secure.guard import MODULUS, Guard
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import write
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import run_locally
from tests.methods.own_forms import MIXED, TARGETS
from tests.plain import Plain, of_each
from tests.test_secagg import KEYS, Down, federate, reasons, record_of

pytestmark = pytest.mark.slow
Change = Callable[[FitIns], None]


def sending(change: Change, to: tuple[int, ...] = (0,)) -> Down:
    """A server that changes what these clients are to train by."""

    def act(stage: str, client: int, message: Message) -> None:
        if stage == Stage.COLLECT_MASKED_VECTORS and client in to:
            told, record = wire.fit_instruction(message), record_of(message)
            change(told)
            message.content = fitins_to_recorddict(told, True)
            message.content.config_records[RECORD_KEY_CONFIGS] = record  # type: ignore[assignment]

    return act


def arrays_of(told: FitIns) -> list[npt.NDArray[Any]]:
    return [wire.decode(blob, len(blob)) for blob in told.parameters.tensors]


def another_state(told: FitIns) -> None:
    changed = [
        a + np.random.default_rng(0).normal(0, 0.1, a.shape).astype(a.dtype)
        for a in arrays_of(told)
    ]
    told.parameters = ndarrays_to_parameters(changed)


def one_bit(told: FitIns) -> None:
    first, *others = arrays_of(told)
    first.flat[0] = np.nextafter(first.flat[0], np.float32(1))
    told.parameters = ndarrays_to_parameters([first, *others])


def no_evaluation(told: FitIns) -> None:
    told.config["evaluate"] = False


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[npt.NDArray[np.int64]]:
    """What the server has in its hands when all masks that it knows of are off."""
    module, found = import_module(MASKERS[1]), list[npt.NDArray[np.int64]]()
    extract = module.factor_extract

    def spy(parameters: list[npt.NDArray[Any]]) -> Any:
        found.append(np.concatenate([part.ravel() for part in parameters]).astype(np.int64))
        return extract(parameters)

    monkeypatch.setattr(module, "factor_extract", spy)
    return found


def uniform(residues: npt.NDArray[np.int64]) -> float:
    """How likely uniform residues modulo 2³² are as uneven as these: by the whole number, by its
    lowest byte and by its highest; the least of the three."""
    bytes_of = [np.bincount((residues >> at) % 256, minlength=256) for at in (0, 24)]
    tests = [stats.kstest(residues / MODULUS, "uniform"), *map(stats.chisquare, bytes_of)]
    return float(min(test.pvalue for test in tests))


def test_a_site_that_was_sent_something_else_turns_the_sum_into_uniform_noise(
    tmp_path: Path, sums: list[npt.NDArray[np.int64]]
) -> None:
    keys = {"adapter__hidden_dim": 128}
    federate(tmp_path / "honest", **keys)
    assert uniform(sums.pop()) < 1e-100
    for change in (another_state, one_bit, no_evaluation):
        result, grid = federate(tmp_path / change.__name__, down=sending(change), **keys)
        noise = sums.pop()
        assert noise.size > 3_000
        assert uniform(noise) > 1e-6
        spread = np.diff(np.sort(noise))
        assert spread.max() < MODULUS / 100, "and no number stands out"
        assert result["error"].startswith("round 1: the sum is beyond secagg.clip, 1: a client's")
        assert "accuracy" not in result
        assert not grid.errors
        assert not any(b"accuracy" in seen or b"sha256" in seen for seen in grid.seen)
        assert not sums


def test_a_server_that_knows_what_it_sent_cannot_take_the_noise_off(
    tmp_path: Path, sums: list[npt.NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the clients were sent the one, half the other. It may bind its own masks to either,
    the masks of a pair across stay."""
    honest, bound = masks.received, masks.bound_to
    sent: list[bytes] = []

    def received(*given: Any) -> bytes:
        sent.append(honest(*given))
        return sent[-1]

    monkeypatch.setattr(masks, "received", received)
    down = sending(another_state, to=(2, 3))
    for number, index in enumerate((0, -1)):
        sent.clear()
        with monkeypatch.context() as patch:

            def chosen(what: bytes, index: int = index) -> Any:
                return bound(sent[index] if len(sent) > 4 and what == sent[0] else what)

            patch.setattr(masks, "bound_to", chosen)
            federate(tmp_path / str(number), down=down, adapter__hidden_dim=64)
        assert len({*sent}) == 2
    assert all(uniform(found) > 1e-6 for found in sums)


# What is told in the clear


def told_by(
    folder: Path, change: Change, clients: int = 3, **more: Any
) -> tuple[list[str], list[dict[str, Any]]]:
    """The hashes of the models, which stay with the clients of a run in which all were sent this,
    and all that each client told in the clear, but for how long it took."""
    found: dict[int, dict[str, Any]] = {}

    def listen(stage: str, client: int, reply: Message) -> None:
        if stage == Stage.COLLECT_MASKED_VECTORS:
            answer, content = wire.fit_answer(reply), reply.content
            told = dict(answer.metrics) | {
                "masked": [*record_of(reply)],
                "num_examples": answer.num_examples,
                "status": answer.status,
                "tensors": answer.parameters.tensors,
                "records": sorted([*content.config_records, *content.metric_records]),
            }
            del told["seconds"]
            found[client] = told

    down = sending(change, to=tuple(range(clients)))
    keys = {"clients": clients, "dataset": "synthetic:90", "secagg__clip": 64.0, **more}
    result, grid = federate(folder, down=down, up=listen, **keys)
    assert found.keys() == {*range(clients)}, (result["error"], grid.errors)
    kept = [RunDirectory(folder).client_store(client).read(1) for client in range(clients)]
    return [*map(tensors_sha256, kept)], [found[client] for client in range(clients)]


AVERAGED = [name for name in registry.NAMES if registry.find(name).averages]
KINDS = "pfedlora pfedlora_plus fedavg fedrep apfl fedmrl fml pfedafm pfedes fedit feddpa rolora"
"""Methods that send and tell what the others do."""
LORA = [name for name in AVERAGED if registry.find(name).shares_lora]
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "pfedlora_plus": {"adapter__predict": "sum", "adapter__rows": "samples"},
    "fedmrl": {"fedmrl__representation_dim": 8},
}


@pytest.mark.parametrize("method", of_each(AVERAGED, KINDS))
def test_nothing_in_the_clear_changes_with_the_download(tmp_path: Path, method: str) -> None:
    more = {"method": method, **OPTIONS.get(method, {})}
    if method in LORA:
        pytest.importorskip("peft")
        more |= {"models": MIXED, "train": "lora", "lora__targets": TARGETS}
    changed, was = (
        told_by(tmp_path / name, change, **more)
        for name, change in (("b", another_state), ("a", lambda told: None))
    )
    assert changed[1] == was[1]
    beside = {"num_examples", "status", "tensors", "records", "masked"}
    assert was[1][0].keys() - beside == {"round", "client", "names", "model", "worker", "lost"}
    assert (was[1][0]["num_examples"], was[1][0]["tensors"]) == (0, [])
    assert changed[0] != was[0], "the download had no effect"


def test_downloads_that_answer_one_class_each_tell_no_label(tmp_path: Path) -> None:
    """A state of zeros but for the bias of class c: its accuracy is the share of c in the test
    part. Without masks the second figure of FedAvg tells it."""
    keys = {"method": "fedavg", "dataset": "synthetic:90", "clients": 3}
    plain, answers = Plain(KEYS, **keys), []
    labels = plain.data(0).test.labels
    for c in (0, 4, 9):
        state = {name: torch.zeros_like(tensor) for name, tensor in plain.state.items()}
        last = [*state.values()][-1]
        assert last.shape == (10,)
        last[c] = 1
        model = plain.method.initial_model(0)
        others = visits.other_accuracies(plain.method, model, state, plain.data(0).test)
        assert others == {"global": pytest.approx(float((labels == c).float().mean()))}

        def biased(told: FitIns, state: Any = state) -> None:
            told.parameters = ndarrays_to_parameters(wire.to_arrays(state))

        answers.append(told_by(tmp_path / str(c), biased, method="fedavg")[1])
    assert all(answer == answers[0] for answer in answers)


def test_a_site_is_not_evaluated_by_itself() -> None:
    LocalGrid(client_app.app, [{}], {})  # messages take a run
    message = wire.evaluate_message(2, 1, {"round": 1, "client": 0}, 60)
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config=KEYS)
    reply = Guard(client_app.config_of)(message, context, lambda *_: pytest.fail("it was asked"))
    assert "the server asks for the scores of one client" in reply.error.reason


def test_means_of_scores_come_out_of_the_sum_and_no_clients_own(tmp_path: Path) -> None:
    """Of those who are left, to a millionth; also in rounds that evaluate only some."""
    keys: dict[str, Any] = {"rounds": 3, "evaluate_every": 2, "participation": 0.75}
    masked, _ = federate(tmp_path / "masked", evaluate_initial=True, **keys)
    federate(tmp_path / "plain", secagg__enabled=False, **keys)
    rows = RunDirectory(tmp_path / "masked").rounds()
    visits_of: dict[int, list[Any]] = {}
    for visit in RunDirectory(tmp_path / "plain").visits():
        visits_of.setdefault(visit["round"], []).append(visit)
    assert [row["evaluated"] for row in rows] == [0, 3, 3]
    for row in rows[1:]:
        for name in ("accuracy", "validation_accuracy", "balanced_accuracy", "macro_f1"):
            expected = np.mean([visit[name] for visit in visits_of[row["round"]]])
            assert row[name] == pytest.approx(expected, abs=2**-20), (row["round"], name)
        assert row["other_accuracies"] == {}
    for visit in RunDirectory(tmp_path / "masked").visits():
        assert not visit.keys() & {"accuracy", "validation_accuracy", "balanced_accuracy"}
    told = masked["accuracy"]
    assert (told["worst"], told["std"], told["evaluated"], masked["per_client"]) == (
        None,
        None,
        3,
        {},
    )
    best = max(rows[1:], key=lambda row: row["validation_accuracy"])
    assert told["at_best_validation"] == best["accuracy"]


def test_by_site_where_its_node_config_says_so(tmp_path: Path) -> None:
    one = {"node_config": {"scores": "told", "state-path": str(tmp_path / "nodes")}}
    told, grid = federate(tmp_path / "told", **one)
    assert [*told["per_client"]] == ["0", "1", "2", "3"]
    mean = np.mean([row["accuracy"] for row in told["per_client"].values()])
    assert told["accuracy"]["final"] == pytest.approx(mean, abs=2**-20)
    assert not any(b"sha256" in seen for seen in grid.seen)
    wrong, _ = federate(tmp_path / "odd", node_config={"scores": "all"}, node_timeout=1)
    assert "the node-config: scores is 'all'; allowed: told | summed" in wrong["error"]


def test_scores_that_cannot_be_leave_a_round_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lie(stage: str, client: int, reply: Message) -> None:
        if stage == Stage.COLLECT_MASKED_VECTORS and client == 1:
            blobs = record_of(reply)[Key.MASKED_PARAMETERS]
            figures = wire.decode(blobs[2], len(blobs[2])).copy()
            figures[1] += np.uint32(2**23)
            blobs[2] = ndarrays_to_parameters([figures]).tensors[0]

    result, _ = federate(tmp_path / "run", up=lie)
    assert (result["status"], result["accuracy"]["evaluated"]) == ("completed", 0)
    assert "round 1: no scores: the scores in the sum cannot be" in caplog.text
    assert not reasons(tmp_path / "run")


def test_tables_and_reports_of_masked_runs_show_means_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        keys = {**KEYS, "clients": 3, "seed": seed}
        done = run_locally(tmp_path / "runs" / str(seed), keys)
        assert done.code == 0, done.stderr
    several = write.write_report([tmp_path / "runs"], tmp_path / "several").folder
    assert not [*several.rglob("clients_*.png")], "a box plot of no clients"
    monkeypatch.setattr(write, "_draw", lambda *_: ([], []))
    one = write.write_report([tmp_path / "runs" / "0"], tmp_path / "one").folder
    pages = [(folder / "report.md").read_text() for folder in (one, several)]
    assert "under masks no client's own is known." in pages[0]
    assert all("Under masks the server knows means alone" in page for page in pages)
    console = Console(record=True, width=140)
    console.print(client_table(done.result), summary(done.result))
    shown = console.export_text()
    assert "under masks only means of all are known" in shown
    assert "balanced accuracy" in shown
    assert "worst client" not in shown
    trained = load_trained(tmp_path / "runs" / "0", 1)
    assert trained.counts is not None, "what the client counted lies beside its model"
