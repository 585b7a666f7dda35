"""Each thing that we use of Flower's inside, as we use it: `make flower-test`. What fails here is
what a port to that version of Flower is."""

from __future__ import annotations

import ast
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import ray.exceptions
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import EvaluateRes, GetPropertiesRes, Status
from flwr.common.secure_aggregation.quantization import quantize
from flwr.compat.common.recorddict_compat import (
    evaluateres_to_recorddict,
    getpropertiesres_to_recorddict,
    recorddict_to_evaluateins,
    recorddict_to_getpropertiesins,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.fleet.vce.vce_api import worker
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.grid import HttpGrid, InMemoryGrid

import pfedlora_flwr
from pfedlora_flwr.federation import flower_compat as flower
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.flower_compat import Code, FitIns, FitRes, Key, MaskedSum, Stage
from pfedlora_flwr.federation.secure import masks
from pfedlora_flwr.launch.local import LocalGrid

PACKAGE = Path(pfedlora_flwr.__file__).parent
PROMISED = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
OK = Status(Code.OK, "")


def test_nothing_else_of_the_package_knows_flowers_inside() -> None:
    used: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for name in names:
                if name.split(".")[0] == "flwr" and name not in PROMISED:
                    used.setdefault(path.name, set()).add(name)
    assert used.keys() == {"flower_compat.py"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The server's node id, in a process that is its task of run 7; masks, if others have put ours
    in Flower's place, are drawn for some download."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(flower.TaskIdentity, name, None)
    flower.be_task(7, 1)
    with masks.bound_to(b"what was sent"):
        yield flower.SUPERLINK_NODE_ID


def message(node: int, content: RecordDict | None = None) -> Message:
    return Message(content or RecordDict(), dst_node_id=node, message_type="train", group_id="1")


# Messages


def test_a_message_is_of_the_run_and_the_task_that_the_process_is(server: int) -> None:
    assert message(5).metadata.run_id == 7
    assert message(5).metadata.src_node_id == server


def test_a_message_travels_with_its_id_and_its_content(server: int) -> None:
    sent = message(5, flower.fitins_to_recorddict(ins(), True))
    flower.give_id(sent, "12")
    came = flower.decoded(flower.encoded(sent))
    assert came.metadata.message_id == "12"
    assert came.metadata.dst_node_id == 5
    assert came.content == sent.content
    reply = Message(Error(flower.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "so"), reply_to=came)
    back = flower.decoded(flower.encoded(reply))
    assert back.metadata.reply_to_message_id == "12"
    assert back.error.reason == "so"


def test_a_context_and_a_task_travel_to_another_process(server: int) -> None:
    config: dict[str, bool | float | int | str] = {"a": 1, "b": "2", "c": 0.5, "d": True}
    sent = Context(7, 5, config, flower.fitins_to_recorddict(ins(), True), config)
    came = flower.decoded_context(flower.encoded_context(sent))
    assert came == sent
    flower.be_node_task(8, 9, 5)
    assert flower.this_task() == (8, 9, 5)
    assert message(6).metadata.src_node_id == 5


def ins() -> FitIns:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(4)]
    return FitIns(flower.ndarrays_to_parameters(arrays), {"a": 1, "b": b"2", "c": "", "d": 0.5})


def same(a: flower.Parameters, b: flower.Parameters) -> bool:
    found, wanted = flower.parameters_to_ndarrays(a), flower.parameters_to_ndarrays(b)
    pairs = zip(found, wanted, strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def test_what_a_client_is_told_and_answers_survives_the_records() -> None:
    told = flower.recorddict_to_fitins(flower.fitins_to_recorddict(ins(), True), keep_input=True)
    assert told.config == ins().config
    assert same(told.parameters, ins().parameters)
    answer = FitRes(OK, ins().parameters, 9, {"loss": 0.5})
    record = flower.fitres_to_recorddict(answer, keep_input=True)
    back = flower.recorddict_to_fitres(record, keep_input=True)
    assert (back.status, back.num_examples, back.metrics) == (OK, 9, {"loss": 0.5})
    assert same(back.parameters, answer.parameters)
    asked = flower.EvaluateIns(flower.ndarrays_to_parameters([]), {"round": 3})
    record = flower.evaluateins_to_recorddict(asked, True)
    assert recorddict_to_evaluateins(record, keep_input=True).config == {"round": 3}
    said = flower.recorddict_to_evaluateres(
        evaluateres_to_recorddict(EvaluateRes(OK, 0.25, 4, {"accuracy": 0.5}))
    )
    assert (said.loss, said.num_examples, said.metrics) == (0.25, 4, {"accuracy": 0.5})
    record = flower.getpropertiesins_to_recorddict(flower.GetPropertiesIns({}))
    assert recorddict_to_getpropertiesins(record).config == {}
    record = getpropertiesres_to_recorddict(GetPropertiesRes(OK, {"client": 3}))
    assert flower.recorddict_to_getpropertiesres(record).properties == {"client": 3}


def test_the_number_of_samples_is_hidden_where_flower_says_it() -> None:
    record = flower.fitres_to_recorddict(FitRes(OK, ins().parameters, 9, {}), keep_input=True)
    flower.hide_samples(record)
    assert flower.recorddict_to_fitres(record, keep_input=True).num_examples == 0


class Told(flower.NumPyClient):
    def get_properties(self, config: Any) -> dict[str, Any]:
        return {"node": 5}

    def fit(self, parameters: Any, config: Mapping[str, Any]) -> Any:
        return [parameters[0] + 1], 9, {"a": config["a"]}


def test_a_numpy_client_answers_through_the_mods_of_its_app(server: int) -> None:
    seen = []

    def mod(message: Message, context: Context, call_next: flower.ClientAppCallable) -> Message:
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    app = ClientApp(client_fn=lambda context: Told().to_client(), mods=[mod])
    asked = flower.getpropertiesins_to_recorddict(flower.GetPropertiesIns({}))
    kind = flower.MessageTypeLegacy.GET_PROPERTIES
    reply = app(Message(asked, dst_node_id=5, message_type=kind, group_id="0"), context())
    said = flower.recorddict_to_getpropertiesres(reply.content)
    assert said.properties == {"node": 5}
    reply = app(message(5, flower.fitins_to_recorddict(ins(), True)), context())
    fit = flower.recorddict_to_fitres(reply.content, keep_input=True)
    assert (fit.num_examples, fit.metrics) == (9, {"a": 1})
    assert flower.parameters_to_ndarrays(fit.parameters)[0][1, 2] == 6
    assert seen == [kind, "train"]


def context(node: int = 5) -> Context:
    return Context(run_id=7, node_id=node, node_config={}, state=RecordDict(), run_config={})


# Grids and runs


def test_a_run_can_be_named_and_one_that_is_stopped_is_no_common_error() -> None:
    assert flower.Run.create_empty(7).run_id == 7
    assert issubclass(flower.RunNotRunningException, BaseException)
    assert not issubclass(flower.RunNotRunningException, Exception)


class FailingRay:
    """What Flower's simulation asks to train a client, on a Ray that fails."""

    def __init__(self, error: Exception, stop: Event) -> None:
        self._error, self._stop = error, stop

    def process_message(self, message: Message, context: Context) -> Any:
        self._stop.set()
        raise self._error


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (ray.exceptions.ActorDiedError(), True),
        (ray.exceptions.NodeDiedError("gone"), True),
        (
            ray.exceptions.RayTaskError(
                "run", "Traceback: ray.exceptions.ActorDiedError", ValueError("no images")
            ).as_instanceof_cause(),
            False,
        ),
        (ValueError("ray.exceptions."), False),
    ],
)
def test_a_client_whose_process_is_gone_is_known_by_the_simulations_reply(
    error: Exception, lost: bool, server: int
) -> None:
    asked, told, stop = Queue[Message](), Queue[Message](), Event()
    asked.put(message(5))
    nodes: Any = {5: SimpleNamespace(retrieve_context=lambda run_id: context())}
    metrics: Any = SimpleNamespace(add_clientapp_runtime=lambda seconds: None)
    worker(asked, told, nodes, cast(Any, FailingRay(error, stop)), stop, metrics)
    reply = told.get(timeout=5)
    assert reply.has_error()
    assert flower.is_lost(reply) == lost


def test_an_answer_that_the_superlink_gives_for_a_node_is_told_in_our_words(server: int) -> None:
    told = []
    for sort in ("node_unavail", "msg_unavail"):
        error = create_message_error_unavailable_res_message(message(5).metadata, sort)
        with pytest.raises(wire.Failed) as failed:
            wire.answered(error)
        told.append(str(failed.value))
    assert told == ["its node is gone (no sign of life)", "no answer in time"]


def test_a_simulation_is_known_by_its_grid() -> None:
    assert flower.is_simulation(InMemoryGrid.__new__(InMemoryGrid))
    assert not flower.is_simulation(HttpGrid(token="any"))
    assert not flower.is_simulation(LocalGrid(ClientApp(), [], {}))


def test_the_grids_retries_are_where_they_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    grid = HttpGrid(token="any")
    assert grid._retry_invoker.max_time is None, "Flower's own: for ever"
    with caplog.at_level(logging.WARNING):
        flower.bound_retries(grid, 12.0)
        flower.bound_retries(InMemoryGrid.__new__(InMemoryGrid), 12.0)
    assert grid._retry_invoker.max_time == 12.0
    assert not caplog.records


@pytest.mark.parametrize("parts", [{}, {"_retry_invoker": object()}])
def test_a_flower_that_hides_its_retries_is_told_of(
    parts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    grid = HttpGrid.__new__(HttpGrid)
    grid.__dict__.update(parts)
    with caplog.at_level(logging.WARNING):
        flower.bound_retries(grid, 12.0)
    assert "hides its retries" in caplog.text


def test_a_superlinks_nodes_are_asked_for_by_its_connection_and_have_these_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real SuperLink: `make deployment-test`."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    with pytest.raises(Exception, match="onnect"):
        flower.nodes_known_to("here")
    fields = {"node_id", "status", "registered_at", "last_activated_at", "public_key"}
    assert fields | {"last_deactivated_at"} <= {*NodeInfo.DESCRIPTOR.fields_by_name}


# SecAgg+


SAMPLES = {5: 1, 6: 3, 7: 4, 8: 8}
DELTAS: dict[int, npt.NDArray[np.float64]] = {
    node: np.random.default_rng(node).uniform(-1, 1, 200) for node in SAMPLES
}
AGREED: dict[str, int | float] = {
    Key.SAMPLE_NUMBER: 4,
    Key.SHARE_NUMBER: 4,
    Key.THRESHOLD: 3,
    Key.CLIPPING_RANGE: 1.0,
    Key.TARGET_RANGE: 2**22,
    Key.MOD_RANGE: 2**32,
    Key.MAX_WEIGHT: 16.0,
}


class Nodes:
    """Clients behind Flower's mod. gone: by node, the stage in which it answers no more."""

    def __init__(self, gone: Mapping[int, str]) -> None:
        self.contexts = {node: context(node) for node in SAMPLES}
        self.masked: dict[int, npt.NDArray[Any]] = {}
        self._gone, self._out = gone, set[int]()

    def send_and_receive(self, messages: Iterable[Message], **_: object) -> list[Message]:
        came = [flower.decoded(flower.encoded(sent)) for sent in messages]
        return [reply for sent in came if (reply := self._answer(sent)) is not None]

    def _answer(self, sent: Message) -> Message | None:
        node, record = sent.metadata.dst_node_id, flower.secagg_record(sent.content)
        assert record is not None
        stage = str(record[Key.STAGE])
        if self._gone.get(node) == stage:
            self._out.add(node)
        if node in self._out:
            return None
        reply = flower.secaggplus_mod(sent, self.contexts[node], self._visit)
        if stage == Stage.COLLECT_MASKED_VECTORS:
            said = flower.secagg_record(reply.content)
            assert said is not None
            parts = flower.Parameters(said[Key.MASKED_PARAMETERS], "numpy.ndarray")
            self.masked[node] = flower.parameters_to_ndarrays(parts)[-1]
        return reply

    def _visit(self, sent: Message, context: Context) -> Message:
        node = sent.metadata.dst_node_id
        assert flower.recorddict_to_fitins(sent.content, keep_input=True).config == {"node": node}
        parameters = flower.ndarrays_to_parameters([DELTAS[node]])
        answer = FitRes(OK, parameters, SAMPLES[node], {})
        return Message(flower.fitres_to_recorddict(answer, keep_input=False), reply_to=sent)


def instructions(nodes: Iterable[int]) -> dict[int, RecordDict]:
    empty = flower.ndarrays_to_parameters([])
    return {
        node: flower.fitins_to_recorddict(FitIns(empty, {"node": node}), True) for node in nodes
    }


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ({}, {5, 6, 7, 8}),
        ({6: Stage.SHARE_KEYS}, {5, 7, 8}),
        ({6: Stage.COLLECT_MASKED_VECTORS}, {5, 7, 8}),
    ],
)
def test_a_masked_sum_is_the_mean_of_who_is_left(
    gone: dict[int, str], left: set[int], server: int
) -> None:
    nodes = Nodes(gone)
    total = MaskedSum(nodes, list(SAMPLES), 1, AGREED, ring=3)
    assert total.share_keys()
    assert flower.kept_for(nodes.contexts[5], "public_keys_dict") == set(SAMPLES)
    assert flower.kept_threshold(nodes.contexts[5]) == 3
    assert total.collect(instructions(total.left))
    assert total.left == left
    assert flower.kept_for(nodes.contexts[5], "rd_seed_share_dict") is not None
    means = total.unmask()
    assert means is not None
    weights = [SAMPLES[node] for node in sorted(left)]
    wanted = np.average([DELTAS[node] for node in sorted(left)], axis=0, weights=weights)
    assert np.allclose(means[0], wanted, atol=1e-4)
    assert all(len(np.unique(masked)) > 190 for masked in nodes.masked.values())
    flower.forget_keys(nodes.contexts[5])
    assert flower.kept_for(nodes.contexts[5], "public_keys_dict") is None


def test_too_few_stop_before_anything_is_unmasked(server: int) -> None:
    total = MaskedSum(Nodes({5: Stage.SETUP, 6: Stage.SETUP}), list(SAMPLES), 1, AGREED, ring=3)
    assert not total.share_keys()
    assert total.left == {7, 8}


@pytest.mark.slow
def test_neighbours_depend_on_the_ring_alone(server: int) -> None:
    agreed = AGREED | {Key.SHARE_NUMBER: 3, Key.THRESHOLD: 3}

    def neighbours(ring: int) -> Any:
        nodes = Nodes({})
        assert MaskedSum(nodes, list(SAMPLES), 1, agreed, ring).share_keys()
        return [flower.kept_for(nodes.contexts[node], "public_keys_dict") for node in SAMPLES]

    assert neighbours(3) == neighbours(3)
    assert len({str(neighbours(ring)) for ring in range(8)}) > 1


def test_rounding_under_masks_is_drawn_from_numpys_generator() -> None:
    def rounded(seed: int) -> npt.NDArray[Any]:
        drawn = np.random.get_state()
        np.random.seed(seed)
        try:
            return quantize([DELTAS[5]], 1.0, 2**10)[0]
        finally:
            np.random.set_state(drawn)

    assert np.array_equal(rounded(1), rounded(1))
    assert not np.array_equal(rounded(1), rounded(2))


@pytest.fixture
def as_it_was() -> Iterable[None]:
    drawn = {name: vars(import_module(name))[flower._GENERATOR] for name in flower.MASKERS}
    yield
    for name, draw in drawn.items():
        setattr(import_module(name), flower._GENERATOR, draw)


def no_masks(seed: bytes, num_range: int, shapes: Any) -> list[npt.NDArray[Any]]:
    return [np.zeros(shape, dtype=np.int64) for shape in shapes]


@pytest.mark.usefixtures("as_it_was")
def test_both_sides_draw_the_masks_that_they_are_given(server: int) -> None:
    flower.draw_masks_by(no_masks)
    nodes = Nodes({})
    total = MaskedSum(nodes, list(SAMPLES), 1, AGREED, ring=3)
    assert total.share_keys()
    assert total.collect(instructions(total.left))
    level = 2**21 * (1 + DELTAS[5] * SAMPLES[5] / 16)
    assert np.abs(nodes.masked[5] - level).max() < 2, "nothing hides it: the masks are ours, zeros"
    means = total.unmask()
    assert means is not None, "and the server takes off the same"


def test_a_flower_without_the_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_GENERATOR", "renamed")
    with pytest.raises(RuntimeError, match="cannot be made secret"):
        flower.draw_masks_by(no_masks)


def test_public_keys_are_read_with_their_curve() -> None:
    key = flower.bytes_to_public_key(public_key_to_bytes(generate_key_pairs()[1]))
    assert isinstance(key.curve, SECP384R1)


def test_the_workflow_says_nothing(server: int, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    flower.silence_workflow()
    try:
        MaskedSum(Nodes({}), list(SAMPLES), 1, AGREED, ring=3).share_keys()
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
        logging.getLogger("flwr").removeFilter(flower._is_not_workflows)
    assert "secaggplus_mod" in {record.module for record in caplog.records}, "it does log"
    assert "secaggplus_workflow" not in {record.module for record in caplog.records}
