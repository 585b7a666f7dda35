"""Secure aggregation in this process, over the local engine's grid: what is summed, who may be
lost, and what nobody gets to see."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Status,
    ndarrays_to_parameters,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitins_to_recorddict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from pfedlora_flwr import client_app
from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.federation.flower_compat import MASKERS, secagg_record
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.federation.secure import figures, masks, unmasked
from pfedlora_flwr.federation.secure.guard import MODULUS, Guard, terms
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.runs.begin import find
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.site.gate import gate
from pfedlora_flwr.training.loop import Samples, Visit
from tests.conftest import keys_in, named_keys, result_of
from tests.masked import levels, pieces, secrets_of
from tests.plain import Plain
from tests.served import run_over, state_of

pytestmark = pytest.mark.slow
STAGES = Stage.all()
ALIVE, DEAD = Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST
SOURCES, SHARES, VECTORS = Key.SOURCE_LIST, Key.CIPHERTEXT_LIST, Key.MASKED_PARAMETERS
UPLOAD = Stage.COLLECT_MASKED_VECTORS
KEYS = keys_in(  # masks do not see width
    "clients=4 rounds=1 dataset=synthetic:300 partition.kind=iid batch-size=16 device=cpu"
    " evaluate-initial=false models=tests.methods.narrow:Narrow adapter.hidden-dim=16"
    " secagg.enabled=true secagg.max-samples=128"
)
Record = MutableMapping[str, Any]
Down = Callable[[str, int, Message], None]
"""What a hostile server does to a message of a stage to a client."""
Up = Callable[[str, int, Message], None]
"""What a hostile client does to its reply."""


class Hostile(LocalGrid):
    """lost: by client, the first stage of a round in which it answers no more. The replies that the
    server got are kept.

    mute: by client, the stage whose reply comes when nobody waits for it any more.
    seen: what they say, but for errors, which are in `errors`. samples: the n_k that masked uploads
    name."""

    lost: Mapping[int, str] = {}
    mute: Mapping[int, str] = {}

    def __init__(
        self,
        app: ClientApp,
        keys: Mapping[str, Any],
        down: Down,
        up: Up,
        node_config: Mapping[str, Any],
    ) -> None:
        nodes = [
            {"partition-id": k, "num-partitions": keys["clients"], **node_config}
            for k in range(keys["clients"])
        ]
        super().__init__(app, nodes, keys)
        self._down, self._up = down, up
        self.seen: list[bytes] = []
        self.errors: list[str] = []
        self.samples = set[int]()
        self._late: dict[str, Message | None] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waited = set(message_ids)
        came = {
            reply.metadata.reply_to_message_id: reply for reply in super().pull_messages(waited)
        }
        self._late |= {name: came.pop(name) for name in [*came] if name in self._late}
        late = [
            reply for name, reply in self._late.items() if reply is not None and name not in waited
        ]
        return [*came.values(), *late]

    def _answer(self, message: Message) -> Message:
        record = secagg_record(message.content)
        stage, client = (
            "" if record is None else str(record[Key.STAGE]),
            message.metadata.dst_node_id - 2,
        )
        if client in self.lost and stage and STAGES.index(stage) >= STAGES.index(self.lost[client]):
            return Message(Error(0, "gone"), reply_to=message)
        if stage and self.mute.get(client) == stage:
            self._late[message.metadata.message_id] = None
        if stage:
            self._down(stage, client, message)
        reply = super()._answer(message)
        if reply.has_error():
            self.errors.append(reply.error.reason)
        elif stage == UPLOAD:
            self.samples.add(wire.fit_answer(reply).num_examples)
        if stage and not reply.has_error():
            self._up(stage, client, reply)
            self.seen.append(repr(secagg_record(reply.content)).encode())
            told = {
                name: dict(r)
                for name, r in reply.content.config_records.items()
                if name != RECORD_KEY_CONFIGS
            }
            self.seen.append(repr((told, reply.content.metric_records)).encode())
            self.seen += [
                b"".join(array.data for array in r.values())
                for r in reply.content.array_records.values()
            ]
            self.seen += [
                b
                for r in reply.content.config_records.values()
                for v in r.values()
                for b in _blobs(v)
            ]
        return reply


def _blobs(value: Any) -> list[bytes]:
    return [b for b in (value if isinstance(value, list) else [value]) if isinstance(b, bytes)]


def federate(
    output: Path,
    *,
    app: ClientApp = client_app.app,
    lost: Mapping[int, str] = {},
    mute: Mapping[int, str] = {},
    down: Down = lambda stage, client, message: None,
    up: Up = lambda stage, client, reply: None,
    node_config: Mapping[str, Any] = {},
    **more: Any,
) -> tuple[dict[str, Any], Hostile]:
    """A run to its result, with the grid that it went over. In the names of `more` an underscore
    stands for a hyphen, two for a dot."""
    keys = KEYS | {"output": str(output)} | named_keys(more)
    grid = Hostile(app, keys, down, up, node_config)
    grid.lost, grid.mute = lost, mute
    with suppress(RunFailed, UserError):
        run_over(grid, keys)
    assert grid.samples <= {0}, "n_k goes up in the clear"
    return result_of(output), grid


class Trained(Client):
    """An honest client, told of what it has trained before it is masked."""

    def __init__(self, honest: Client, client: int, change: Callable[[int, FitRes], None]) -> None:
        self.honest, self.client, self.change = honest, client, change

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        return self.honest.get_properties(ins)

    def fit(self, ins: FitIns) -> FitRes:
        result = self.honest.fit(ins)
        self.change(self.client, result)
        return result


def app_of(change: Callable[[int, FitRes], None]) -> ClientApp:
    """The app with a change to what clients have trained."""

    def client_fn(context: Context) -> Client:
        return Trained(
            client_app.client_fn(context), int(context.node_config["partition-id"]), change
        )

    return ClientApp(
        client_fn=client_fn, mods=[gate(client_app.config_of), Guard(client_app.config_of)]
    )


def reasons(output: Path) -> dict[int, str]:
    return {
        row["client"]: row["reason"]
        for row in RunDirectory(output).visits()
        if row["status"] == "failed"
    }


def plain_round(of: Sequence[int], **more: Any) -> Plain:
    """Round 1 of these clients without Flower and without masks."""
    plain = Plain(KEYS, **more)
    plain.play(of)
    return plain


def is_their_mean(output: Path, of: Sequence[int], **more: Any) -> bool:
    """Whether the state is the plain mean of these clients within what the rounding may do."""
    plain = plain_round(of, **more)
    first = Plain(KEYS, **more).state
    largest = max(
        float((u.tensors[n] - first[n]).abs().max()) for u in plain.uploads.values() for n in first
    )
    weight = (
        sum(upload.samples for upload in plain.uploads.values())
        / plain.experiment.secagg.max_samples
    )
    bound = (2 * plain.experiment.secagg.clip + largest) / LEVELS * len(of) / weight
    found = state_of(output)
    assert list(found) == list(first)
    worst = max(float((found[n] - plain.state[n]).abs().max()) for n in found)
    moved = max(float((plain.state[n] - first[n]).abs().max()) for n in found)
    assert bound < moved / 10, "this test would pass with any state"
    return worst <= bound + 1e-7


@cache
def digest(folder: Path, *clients: int) -> str:
    """Of the state after a round in which only these of four clients are asked."""
    output = folder / ("only-" + "-".join(map(str, clients)))
    absent = {k: Stage.SETUP for k in range(4) if k not in clients}
    return str(federate(output, lost=absent, min_success=0.7)[0]["shared_sha256"])


# The sum


@pytest.mark.parametrize(("clients", "shares"), [(3, "auto"), (10, 5)])
def test_the_sum_is_the_plain_mean_and_two_runs_are_equal(
    tmp_path: Path, clients: int, shares: object
) -> None:
    keys = {"clients": clients, "secagg__shares": shares}
    first, _ = federate(tmp_path / "a", **keys)
    assert is_their_mean(tmp_path / "a", range(clients), clients=clients)
    assert first["privacy"]["secagg"] == {"enabled": True, "threshold": 0.67, "clip": 1.0}
    assert "a simulation protects nobody" in first["privacy"]["not_covered"][0]
    row: Any
    for row in RunDirectory(tmp_path / "a").visits():
        assert row["status"] == "ok"
        told = ("samples", "loss", "losses", "flops_by_phase", "flops")
        assert [row[name] for name in told] == [None, None, None, None, 0]
    assert [row["loss"] for row in RunDirectory(tmp_path / "a").rounds()] == [None]
    parameters = sum(tensor.numel() for tensor in state_of(tmp_path / "a").values())
    assert first["communication"]["parameters_up"] == clients * parameters
    assert first["communication"]["bytes_up"] == clients * 4 * (1 + parameters + figures.SIZE)
    if clients == 3:
        second, _ = federate(tmp_path / "b", **keys)
        assert first["shared_sha256"] == second["shared_sha256"]
        assert first["models_sha256"] == second["models_sha256"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_lost_in_any_stage_leaves_the_others_sum(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, stage: str
) -> None:
    """Lost in the last stage it is in the sum: its upload was there, and the others hold its
    shares."""
    result, _ = federate(tmp_path / "run", lost={1: stage}, min_success=0.7)
    left = [0, 1, 2, 3] if stage == Stage.UNMASK else [0, 2, 3]
    assert result["status"] == "completed"
    assert is_their_mean(tmp_path / "run", left)
    assert result["shared_sha256"] == digest(tmp_path_factory.getbasetemp(), *left)
    (row,) = RunDirectory(tmp_path / "run").rounds()
    assert (row["admitted"], row["refused"]) == (left, [k for k in range(4) if k not in left])


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, UPLOAD])
def test_all_clients_lost_in_one_stage_fail_the_round_and_no_more(
    tmp_path: Path, stage: str
) -> None:
    lost = dict.fromkeys(range(4), stage)
    result, _ = federate(tmp_path / "run", lost=lost, max_failed_rounds=5)
    assert result["status"] == "completed"
    assert [row["admitted"] for row in RunDirectory(tmp_path / "run").rounds()] == [[]]


@pytest.mark.parametrize(
    ("stage", "awaited"),
    [
        (Stage.SHARE_KEYS, "0.3 s for the shares of its keys (30 %"),
        (UPLOAD, "0.85 s for its update (85 %"),
    ],
)
def test_a_client_that_never_answers_is_waited_for_no_longer_than_its_stage(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
    stage: str,
    awaited: str,
) -> None:
    """Its reply comes in a later stage and counts no more."""
    result, _ = federate(tmp_path / "run", mute={1: stage}, min_success=0.7, round_timeout=1)
    assert result["shared_sha256"] == digest(tmp_path_factory.getbasetemp(), 0, 2, 3)
    assert reasons(tmp_path / "run") == {
        1: f"no answer in the round's first {awaited} of round-timeout); raise round-timeout"
    }
    assert (
        "a reply of node 3 is refused: it answers a message that was not sent in this round"
        in caplog.text
    )


def test_two_clients_lost_in_other_stages_leave_the_others_sum(tmp_path: Path) -> None:
    keys = {"clients": 10, "min_success": 0.5}
    lost = {1: Stage.SHARE_KEYS, 2: UPLOAD, 5: UPLOAD}
    assert federate(tmp_path / "run", lost=lost, **keys)[0]["status"] == "completed"
    assert is_their_mean(tmp_path / "run", [0, 3, 4, 6, 7, 8, 9], **keys)


def test_a_client_that_fails_once_in_training_is_asked_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    failed: list[int] = []

    def once(client: int, result: FitRes) -> None:
        if client == 2 and not failed:
            failed.append(client)
            raise RuntimeError("out of memory")
        result.metrics["field"] = "which this version does not list"

    result, grid = federate(tmp_path / "run", app=app_of(once))
    assert failed == [2]
    assert any(b"seconds" in seen for seen in grid.seen)
    assert not any(b"which this version does not list" in seen for seen in grid.seen)
    assert result["shared_sha256"] == digest(tmp_path_factory.getbasetemp(), 0, 1, 2, 3)


def test_with_too_few_left_nothing_is_unmasked(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    result, _ = federate(tmp_path / "run", lost={1: UPLOAD})
    assert (result["status"], result["resumable"]) == ("failed", True)
    assert (
        result["error"]
        == "round 1: 3 of 4 clients are left, 4 are needed to unmask; client 1: gone"
    )
    assert not RunDirectory(tmp_path / "run").unmasking_file.exists()
    result, _ = federate(tmp_path / "run", resume=True)
    assert result["shared_sha256"] == digest(tmp_path_factory.getbasetemp(), 0, 1, 2, 3)
    result, _ = federate(tmp_path / "two", lost={1: Stage.SETUP, 2: Stage.SETUP}, min_success=0.1)
    assert "2 of 4 clients are left, 3 are needed to unmask" in result["error"]


# A hostile server


def setting(name: str, value: object) -> Down:
    def change(stage: str, client: int, message: Message) -> None:
        if stage == Stage.SETUP:
            record_of(message)[name] = value

    return change


def record_of(message: Message) -> Record:
    record = secagg_record(message.content)
    assert record is not None
    return record


SETTINGS = [
    *(
        (name, told, f"the server sets {name} to {told}, this node expects {own}")
        for name, told, own in (
            (Key.THRESHOLD, 2, 7),
            (Key.SHARE_NUMBER, 3, 9),
            (Key.CLIPPING_RANGE, 8.0, 1.0),
            (Key.TARGET_RANGE, 2**20, 2**22),
            (Key.MOD_RANGE, 2**40, 2**32),
            (Key.MAX_WEIGHT, 1.0, 128.0),
        )
    ),
    (Key.SAMPLE_NUMBER, 2, "the server sums 2 clients; a sum of fewer than 3 hides nobody"),
    (Key.SAMPLE_NUMBER, 8, "the server sums 8 clients; this run samples 9 and needs 9 of them"),
    (Key.SAMPLE_NUMBER, 10, "the server sums 10 clients; this run samples 9 and needs 9 of them"),
]
"""A hostile server's, one to each client, and what that says."""


def test_a_server_with_settings_of_its_own_is_refused_by_all(tmp_path: Path) -> None:
    def change(stage: str, client: int, message: Message) -> None:
        if stage == Stage.SETUP:
            name, told, _ = SETTINGS[client]
            record_of(message)[name] = told

    result, grid = federate(tmp_path / "run", down=change, clients=len(SETTINGS))
    assert reasons(tmp_path / "run") == {k: line for k, (_, _, line) in enumerate(SETTINGS)}
    assert "0 of 9 clients are left, 9 are needed to unmask" in result["error"]
    assert not grid.seen
    assert not RunDirectory(tmp_path / "run").unmasking_file.exists()


def test_a_server_that_asks_one_client_for_a_plain_upload_gets_none(tmp_path: Path) -> None:
    def ask(stage: str, client: int, message: Message) -> None:
        if stage == UPLOAD and client == 2:
            message.content.config_records.pop("secaggplus_configs")

    result, _ = federate(tmp_path / "run", down=ask, min_success=0.7)
    assert result["status"] == "completed"
    assert reasons(tmp_path / "run") == {
        2: "the server asks for a plain upload; secagg.enabled is set here"
    }
    assert is_their_mean(tmp_path / "run", [0, 1, 3])


Lie = Callable[[Record], dict[str, Any]]
"""What a server says otherwise in a record."""


FEW_MASKS: list[tuple[Lie, str]] = [
    (  # node 2 itself
        lambda r: {SOURCES: [*r[SOURCES][1:], 2]},
        "the server names a source of shares that is not a neighbour of this node",
    ),
    (
        lambda r: {SOURCES: r[SOURCES][:1] * 2, SHARES: r[SHARES][:1] * 2},
        "the server names a source of shares twice: so few masks would hide nothing",
    ),
    (
        lambda r: {SOURCES: r[SOURCES][:1], SHARES: r[SHARES][:1]},
        "the server names 1 sources of shares; 7 with this node's own are needed",
    ),
]


def test_a_server_that_leaves_a_client_few_masks_gets_no_upload(tmp_path: Path) -> None:
    def ask(stage: str, client: int, message: Message) -> None:
        if stage == UPLOAD and client < len(FEW_MASKS):
            record_of(message).update(FEW_MASKS[client][0](record_of(message)))

    federate(tmp_path / "run", down=ask, clients=10, min_success=0.7)
    assert reasons(tmp_path / "run") == {k: line for k, (_, line) in enumerate(FEW_MASKS)}


def test_more_than_two_thirds_of_the_shares_unmask() -> None:
    """With two thirds or fewer, two lists of who is lost could both reach the threshold
    somewhere."""
    for clients in range(3, 60):
        agreed = terms(
            from_flat({**KEYS, "clients": clients, "dataset": "synthetic:3000"}),
            Execution(secagg_threshold=0.6667),
            clients,
        )
        assert 3 * agreed[Key.THRESHOLD] > 2 * agreed[Key.SHARE_NUMBER]


WHO_IS_LOST: list[tuple[Lie, str]] = [
    (
        lambda r: {ALIVE: r[ALIVE][:2], DEAD: r[ALIVE][2:]},
        "the server unmasks a sum of 2 clients; one of fewer than 3 hides nobody",
    ),
    (
        lambda r: {DEAD: [*r[DEAD], r[ALIVE][0]]},
        "calls a node both active and dead, or names it twice",
    ),
    (
        lambda r: {ALIVE: r[ALIVE][:3] + r[ALIVE][:1]},
        "or names it twice: that would unmask it",
    ),
    (lambda r: {ALIVE: [], DEAD: r[ALIVE]}, "whose upload it calls lost"),
    (lambda r: {DEAD: [99]}, "shares of other nodes than those whose masks this node added"),
]


def test_a_server_that_lies_about_who_is_lost_gets_no_share(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(stage: str, client: int, message: Message) -> None:
        if stage == Stage.UNMASK:
            record_of(message).update(WHO_IS_LOST[client][0](record_of(message)))

    result, grid = federate(tmp_path / "run", down=ask, clients=len(WHO_IS_LOST))
    assert result["error"].startswith(
        "round 1: too few shares came to unmask: 0 clients answered; client"
    )
    for client, (_, line) in enumerate(WHO_IS_LOST):
        assert line in reasons(tmp_path / "run")[client]
        assert line in caplog.text
    assert "no shares: the server skips the stage" not in caplog.text, (
        "what it says when asked once more, without its keys"
    )
    assert not any(b"shares" in seen for seen in grid.seen)
    run = RunDirectory(tmp_path / "run")
    run.clear_void()
    with pytest.raises(UserError, match="exists; continue it with resume=true"):
        find(run, run_config({**KEYS, "output": str(run.path)})).check()
    assert run.unmasking_file.exists(), "another start would unmask the round for others"
    assert all("secaggplus_state" not in c.state.config_records for c in grid._contexts.values()), (
        "keys serve once"
    )


def test_two_views_of_who_is_lost_reach_the_threshold_for_neither_kind_of_share(
    tmp_path: Path,
) -> None:
    """Some are told that client 4 is there, and give shares of its mask; others that it is lost,
    and give shares of its key. No node can see this. Client 0 colludes and gives both."""
    gave: dict[str, set[int]] = {"mask": {0}, "key": {0}}

    def ask(stage: str, client: int, message: Message) -> None:
        if stage == Stage.UNMASK and client in (2, 3):
            record = record_of(message)
            record[ALIVE] = [node for node in record[ALIVE] if node != 6]
            record[DEAD] = [6]

    def act(stage: str, client: int, reply: Message) -> None:
        if stage == Stage.UNMASK:
            gave["key" if client in (2, 3) else "mask"].add(client)

    result, _ = federate(tmp_path / "run", down=ask, up=act, clients=5)
    assert gave == {"mask": {0, 1, 4}, "key": {0, 2, 3}}
    needed = terms(from_flat({**KEYS, "clients": 5}), Execution(), 5)[Key.THRESHOLD]
    assert all(len(clients) < needed for clients in gave.values())
    assert "nobody can tell whose" in result["error"]


def upload_before_the_shares(at: str, message: Message, earlier: RecordDict | None) -> None:
    if at == Stage.SHARE_KEYS:
        record_of(message).clear()
        record_of(message).update({Key.STAGE: UPLOAD, SOURCES: [], SHARES: []})


def shares_before_the_upload(at: str, message: Message, earlier: RecordDict | None) -> None:
    if at == UPLOAD:
        record_of(message).clear()
        record_of(message).update(
            {
                Key.STAGE: Stage.UNMASK,
                ALIVE: [2, 3, 4, 5],
                DEAD: [],
            }
        )


def a_second_upload(at: str, message: Message, earlier: RecordDict | None) -> None:
    """Under the masks of the first: their difference would be in the clear."""
    if at == Stage.UNMASK and earlier is not None:
        message.content = earlier


def keys_of_another(at: str, message: Message, earlier: RecordDict | None) -> None:
    if at == Stage.SHARE_KEYS:
        record = record_of(message)
        record["2"], record["3"] = record["3"], record["2"]


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (upload_before_the_shares, "the server skips the stage share_keys"),
        (
            shares_before_the_upload,
            "the server asks for shares of other nodes than those whose masks this node added",
        ),
        (a_second_upload, "ValueError (see the node's log)"),
        (keys_of_another, "ValueError (see the node's log)"),
    ],
)
def test_a_server_that_goes_its_own_way_through_the_stages_gets_an_error(
    tmp_path: Path, lie: Callable[[str, Message, RecordDict | None], None], line: str
) -> None:
    earlier: list[RecordDict] = []

    def ask(stage: str, client: int, message: Message) -> None:
        if client == 0:
            if stage == UPLOAD:
                earlier.append(deepcopy(message.content))
            lie(stage, message, earlier[0] if earlier else None)

    result, grid = federate(tmp_path / "run", down=ask, min_success=0.7)
    assert grid.errors[0] == line
    assert result["status"] == "completed"


def test_a_node_that_requires_it_takes_part_in_no_run_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"secagg__enabled": False, "node_timeout": 1}
    result, _ = federate(tmp_path / "run", node_config={"secagg": "required"}, **keys)
    assert "secagg is required here, and secagg.enabled is false in this run" in result["error"]
    result, _ = federate(tmp_path / "odd", node_config={"secagg": "yes"}, **keys)
    assert "the node-config: secagg is 'yes'; allowed: any | required" in result["error"]
    result, _ = federate(tmp_path / "misspelt", node_config={"Sec-Agg": "required"}, **keys)
    assert "unknown key 'Sec-Agg' in the node-config; did you mean 'secagg'?" in result["error"]
    result, _ = federate(
        tmp_path / "on", node_config={"secagg": "required", "state-path": str(tmp_path / "state")}
    )
    assert result["status"] == "completed"


# Hostile clients


def said(stage: str, change: Lie) -> Callable[[str, Message], None]:
    """What one client says otherwise in its record of a stage."""

    def act(at: str, reply: Message) -> None:
        if at == stage:
            record_of(reply).update(change(record_of(reply)))

    return act


def uploads_too(at: str, reply: Message) -> None:
    if at == UPLOAD:
        honest = wire.fit_answer(reply)
        honest.parameters = ndarrays_to_parameters([np.ones(3, np.float32)])
        masked = record_of(reply)
        reply.content = wire.fit_content(honest)
        reply.content.config_records["secaggplus_configs"] = masked  # type: ignore[assignment]


def silent(at: str, reply: Message) -> None:
    if at == UPLOAD:
        reply.content.config_records.pop("secaggplus_configs")


def other_round(at: str, reply: Message) -> None:
    if at == UPLOAD:
        reply.content.config_records["fitres.metrics"]["round"] = 7


def arrays(*found: np.ndarray) -> list[bytes]:
    return ndarrays_to_parameters(list(found)).tensors


SIZE = 16 * 16 + 16 * 10 + 16 + 10
"""Numbers of an adapter."""
KEY = public_key_to_bytes(generate_key_pairs()[1])
HOSTILE: dict[str, tuple[Callable[[str, Message], None], str]] = {
    "a key that is none": (
        said(Stage.SETUP, lambda r: {Key.PUBLIC_KEY_1: b"key"}),
        "a malformed reply",
    ),
    "one key twice": (
        said(Stage.SETUP, lambda r: {Key.PUBLIC_KEY_1: KEY, Key.PUBLIC_KEY_2: KEY}),
        "are there twice",
    ),
    "no key": (said(Stage.SETUP, lambda r: r.pop(Key.PUBLIC_KEY_2) and {}), "a malformed reply"),
    "shares for others": (
        said(Stage.SHARE_KEYS, lambda r: {Key.DESTINATION_LIST: [1, 2, 3]}),
        "its shares are for the nodes",
    ),
    "a share too few": (
        said(Stage.SHARE_KEYS, lambda r: {SHARES: r[SHARES][:-1]}),
        "its encrypted shares are",
    ),
    "another shape": (
        said(UPLOAD, lambda r: {VECTORS: arrays(*np.zeros((2, 1), np.uint32))}),
        "its masked arrays are",
    ),
    "another dtype": (
        said(UPLOAD, lambda r: {VECTORS: arrays(np.zeros(1), np.zeros(SIZE, np.float32))}),
        "its masked arrays are",
    ),
    "a plain upload, too": (uploads_too, "its upload is not masked"),
    "nothing masked": (silent, "it says nothing of secure aggregation"),
    "another round": (other_round, "it answers round 7"),
}


@pytest.mark.parametrize("half", [0, 1])
def test_hostile_stage_replies_are_refused_in_a_line_and_the_honest_go_on(
    tmp_path: Path, half: int
) -> None:
    some = list(HOSTILE)[half::2]
    honest = 2 * len(some) + 1
    sorts = dict(enumerate(some, start=honest))
    keys = {"clients": honest + len(some), "min_success": 0.1}

    def act(stage: str, client: int, reply: Message) -> None:
        if client in sorts:
            HOSTILE[sorts[client]][0](stage, reply)

    result, _ = federate(tmp_path / "run", up=act, **keys)
    found = reasons(tmp_path / "run")
    for client, sort in sorts.items():
        assert found[client].startswith("refused: "), sort
        assert HOSTILE[sort][1] in found[client], sort
    assert set(found) == set(sorts)
    assert (result["status"], result["refused"]) == ("completed", len(some))
    assert is_their_mean(tmp_path / "run", range(honest), **keys)


def spoil(sort: str, result: FitRes) -> None:
    """What a client whose own software is honest may have trained."""
    if sort == "samples":
        result.num_examples = 129
    elif sort == "failed":
        result.metrics["error"] = "it could not"
    elif sort == "fewer":
        del result.parameters.tensors[-1]
    else:
        first, *others = (wire.decode(blob, len(blob)) for blob in result.parameters.tensors)
        first.flat[5] += float(sort)
        result.parameters = ndarrays_to_parameters([first, *others])


def test_an_update_that_cannot_be_summed_is_refused_by_its_own_client(tmp_path: Path) -> None:
    sorts = {11: "nan", 12: "1.5", 13: "samples", 14: "fewer", 15: "failed"}
    lines = {
        11: "its update is beyond secagg.clip, 1",
        12: "its update is beyond secagg.clip, 1",
        13: "it has more than secagg.max-samples training samples, 128",
        14: "its upload has another layout than its download, so it cannot be summed under masks",
        15: "it could not",
    }
    keys = {"clients": 16, "min_success": 0.1}
    app = app_of(lambda client, result: spoil(sorts[client], result) if client in sorts else None)
    result, _ = federate(tmp_path / "run", app=app, **keys)
    found = reasons(tmp_path / "run")
    assert found == lines
    assert result["status"] == "completed"


class Telling(PFedLoRA):
    """A user's own method, which client 2 cannot use; it says why."""

    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        if visit.client == 2:
            raise LookupError("label 7 in row 12")
        return super().local_update(model, received, data, visit)


def test_what_a_client_raises_goes_up_as_its_type_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(client: int, result: FitRes) -> None:
        if client == 1:
            raise RuntimeError("label 7 in row 12")

    federate(
        tmp_path / "run",
        app=app_of(raises),
        method="tests.test_secagg:Telling",
        clients=5,
        min_success=0.1,
    )
    found = reasons(tmp_path / "run")
    assert found[1] == "RuntimeError (see the node's log)"
    assert found[2].startswith("LookupError; traceback in ")
    told = [row for row in caplog.records if "label 7" in row.getMessage() or row.exc_info]
    assert {row.name for row in told} == {
        "pfedlora_flwr.federation.secure.guard",
        "pfedlora_flwr.federation.client",
    }


@pytest.mark.parametrize("write", ["begin", "hand_out"])
def test_a_full_disk_goes_up_as_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Whichever of the two writes of a round finds no room."""
    honest, full = getattr(unmasked, write), os.strerror(errno.ENOSPC)

    def wrapped(*given: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(unmasked, "write_atomically", fail)
            honest(*given)

    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, full)

    monkeypatch.setattr(unmasked, write, wrapped)
    keys = {"clients": 3, "node_config": {"state-path": str(tmp_path / "nodes")}}
    _, grid = federate(tmp_path / "run", **keys)
    line = f"{full}: nothing that was written before is lost; make room and continue with"
    line += " resume=true"
    assert grid.errors[:3] == [line] * 3
    assert f"client 0: {line}" in caplog.text or f"hands out no shares: {line}" in caplog.text
    assert not [row for row in caplog.records if row.exc_info and row.name.endswith("guard")]


def by_one(act: Callable[[str, Message], None]) -> Up:
    """What client 1 alone does."""
    return lambda stage, client, reply: act(stage, reply) if client == 1 else None


NOISE = np.random.default_rng(0).integers(0, MODULUS, SIZE, dtype=np.uint32)
SPOILING: list[tuple[str, Lie, str]] = [
    (
        UPLOAD,
        lambda r: {VECTORS: arrays(np.ones(1, np.uint32), NOISE, np.zeros(figures.SIZE, "u4"))},
        "round 1: the sum is beyond secagg.clip, 1: a client's upload or shares are wrong",
    ),
    (Stage.UNMASK, lambda r: {Key.SHARE_LIST: [b"share"] * 4}, "nobody can tell whose"),
    (Stage.UNMASK, lambda r: {Key.SHARE_LIST: [b"\x01" + bytes(51)] * 4}, "nobody can tell whose"),
]


@pytest.mark.parametrize(("stage", "change", "told"), SPOILING)
def test_a_wrong_masked_upload_or_share_spoils_its_round_and_nothing_is_merged(
    tmp_path: Path, stage: str, change: Lie, told: str
) -> None:
    result, _ = federate(tmp_path / "run", up=by_one(said(stage, change)))
    assert result["status"] == "failed"
    assert told in result["error"]
    assert len(result["error"].splitlines()) == 1


def test_shares_of_others_than_asked_are_not_used(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    act = said(Stage.UNMASK, lambda r: {Key.NODE_ID_LIST: [7, 7, 7, 7]})
    result, _ = federate(tmp_path / "run", up=by_one(act))
    assert result["shared_sha256"] == digest(tmp_path_factory.getbasetemp(), 0, 1, 2, 3)


# What is left behind


def test_masks_of_zeros_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the next test: its search finds an update whose masks hide nothing."""
    monkeypatch.setattr(
        masks, "masks", lambda seed, most, shapes: [np.zeros(shape, np.int64) for shape in shapes]
    )
    _, grid = federate(tmp_path / "run", clients=3)
    masks_of_zeros = levels(plain_round(range(3), clients=3), Plain(KEYS, clients=3).state)
    assert all(
        any(n in seen for seen in grid.seen) for whole in masks_of_zeros for n in pieces(whole)
    )


def test_a_superlinks_database_holds_an_upload_as_it_is_and_keeps_it_when_it_is_deleted(
    tmp_path: Path,
) -> None:
    """The control of the deployment test: its search would find a plain upload, and one in a
    record, where masked ones are."""
    LocalGrid(client_app.app, [{}], {})  # messages take a run
    plain, masked = np.random.default_rng(0).normal(size=(2, 60, 500)).astype(np.float32)
    content = wire.fit_content(FitRes(Status(Code.OK, ""), ndarrays_to_parameters([plain]), 5, {}))
    content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord({VECTORS: arrays(masked)})
    message, store = (
        Message(content, dst_node_id=2, message_type=wire.TRAIN),
        SqlObjectStore(str(tmp_path / "superlink.db")),
    )
    store.initialize()
    store.preregister(1, get_object_tree(message))
    for name, held in get_all_nested_objects(message).items():
        store.put(name, held.deflate())
    store.delete_objects_in_run(1)
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("superlink.db*"))
    assert all(piece in kept for array in (plain, masked) for piece in pieces(array.tobytes()))


@pytest.mark.parametrize("method", ["pfedlora", "lg_fedavg"])
def test_no_single_update_is_found_by_value(tmp_path: Path, method: str) -> None:
    result, grid = federate(tmp_path / "secure", method=method, clients=3)
    federate(tmp_path / "plain", method=method, clients=3, secagg__enabled=False)
    plain = plain_round(range(3), method=method, clients=3)
    first = Plain(KEYS, method=method, clients=3).state
    for user in MASKERS:
        assert import_module(user).pseudo_rand_gen is masks.masks
    needles = secrets_of(plain, first)
    losses = [
        repr(loss).encode() for k in plain.uploads for loss in plain.visits[k].losses.values()
    ]
    where = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    ours = {name: found for name, found in where.items() if name.startswith("secure/")}
    if method != "pfedlora":  # its head is a part of the model that a client keeps
        ours = {
            name: found for name, found in ours.items() if not name.startswith("secure/clients/")
        }
    assert any(name.startswith("secure/server/") for name in ours)
    assert not [
        (name, n.hex()) for name, found in ours.items() for n in needles + losses if n in found
    ]
    assert not [n.hex() for seen in grid.seen for n in needles + losses if n in seen]
    mean = next(iter(state_of(tmp_path / "secure").values())).numpy().tobytes()[:32]
    assert any(
        mean in found for name, found in ours.items() if name.startswith("secure/server/")
    ), "the search finds nothing at all"
    assert any(loss in where["plain/clients.jsonl"] for loss in losses), "nor losses"
    assert result["status"] == "completed"


# Resuming


def interrupted(output: Path, **more: Any) -> dict[str, Any]:
    """A run of two rounds that was killed between the second one's unmasking and its checkpoint."""
    result, _ = federate(output, rounds=2, **more)
    run = RunDirectory(output)
    run.checkpoints.paths()[-1].unlink()
    run.result_file.unlink()
    return result


def test_a_round_is_unmasked_again_for_the_same_clients_alone(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"min_success": 0.7, "rounds": 2}
    whole = interrupted(tmp_path / "run", min_success=0.7)
    result, _ = federate(
        tmp_path / "run",
        lost={1: Stage.SETUP, 2: Stage.SETUP},
        resume=True,
        max_failed_rounds=9,
        **keys,
    )
    assert "and 0, 3 are left now" in result["error"], "too few, but the round is not skipped"
    result, _ = federate(tmp_path / "run", lost={1: Stage.SETUP}, resume=True, **keys)
    assert (
        "round 2 was unmasked for the clients 0, 1, 2, 3 before the run was stopped, and 0, 2, 3"
        " are left now" in result["error"]
    )
    assert result["resumable"]
    assert RunDirectory(tmp_path / "run").checkpoints.rounds() == [1]
    result, _ = federate(tmp_path / "run", resume=True, **keys)
    assert result["status"] == "completed"
    assert (result["shared_sha256"], result["models_sha256"]) == (
        whole["shared_sha256"],
        whole["models_sha256"],
    )


def test_a_client_that_was_left_out_stays_out_when_its_round_is_done_again(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"min_success": 0.7, "rounds": 2}
    whole = interrupted(tmp_path / "run", lost={1: UPLOAD}, min_success=0.7)
    result, _ = federate(tmp_path / "run", resume=True, **keys)
    assert result["shared_sha256"] == whole["shared_sha256"]
    assert "left out" in reasons(tmp_path / "run")[1]


def test_a_client_that_lost_its_model_does_not_give_its_round_another_update(
    tmp_path: Path,
) -> None:
    interrupted(tmp_path / "run", min_success=0.7)
    for path in RunDirectory(tmp_path / "run").client_store(1).path(1).parent.glob("*.safetensors"):
        path.unlink()
    MODELS._held.clear()
    result, _ = federate(tmp_path / "run", resume=True, rounds=2, min_success=0.7)
    assert "it has lost its model" in reasons(tmp_path / "run")[1]
    assert "and 0, 2, 3 are left now" in result["error"]


def test_clients_open_a_round_for_one_set_alone_whatever_the_server_remembers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {
        "min_success": 0.7,
        "node_config": {"state-path": str(tmp_path / "nodes")},
    }
    whole = interrupted(tmp_path / "run", **keys)
    memory = RunDirectory(tmp_path / "run").unmasking_file
    memory.unlink()
    result, _ = federate(tmp_path / "run", lost={1: Stage.SETUP}, resume=True, rounds=2, **keys)
    why = "this node has handed out its shares of round 2 for other nodes (one that was registered"
    assert (
        f"round 2: too few shares came to unmask: 0 clients answered; clients 0, 2, 3: {why}"
        in result["error"]
    )
    assert all(why in reasons(tmp_path / "run")[client] for client in (0, 2, 3))
    assert caplog.text.count(why) >= 3
    memory.unlink()
    result, _ = federate(tmp_path / "run", resume=True, rounds=2, **keys)
    assert (result["status"], result["shared_sha256"]) == ("completed", whole["shared_sha256"])


def older_version(told: FitIns) -> None:
    told.config["version"] = 0


def another_download(told: FitIns) -> None:
    first, *others = (wire.decode(blob, len(blob)) for blob in told.parameters.tensors)
    told.parameters = ndarrays_to_parameters([first + np.float32(0.01), *others])


@pytest.mark.parametrize("change", [older_version, another_download])
def test_a_server_that_repeats_a_round_for_the_same_clients_gets_no_other_update(
    tmp_path: Path, change: Callable[[FitIns], None]
) -> None:
    """It leaves client 1 out of the first unmasking, which the others' shares suffice for, so that
    it has handed out none."""

    def ask(stage: str, client: int, message: Message) -> None:
        if stage == UPLOAD and client == 1:
            told, record = wire.fit_instruction(message), record_of(message)
            change(told)
            message.content = fitins_to_recorddict(told, True)
            message.content.config_records[RECORD_KEY_CONFIGS] = record  # type: ignore[assignment]

    keys: dict[str, Any] = {
        "min_success": 0.7,
        "node_config": {"state-path": str(tmp_path / "nodes")},
    }
    interrupted(tmp_path / "run", lost={1: Stage.UNMASK}, **keys)
    result, grid = federate(tmp_path / "run", down=ask, resume=True, rounds=2, **keys)
    assert "and 0, 2, 3 are left now" in result["error"]
    assert reasons(tmp_path / "run") == {
        1: "this node has already masked another update in round 2: two such sums reveal it"
    }
    assert not any(b"shares" in seen for seen in grid.seen)


def test_a_node_without_a_state_path_remembers_while_the_run_lasts() -> None:
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    unmasked.begin(context, "run", 1, b"update")
    unmasked.begin(context, "run", 1, b"update")
    with pytest.raises(UserError, match="already masked another update in round 1"):
        unmasked.begin(context, "run", 1, b"another")
    unmasked.hand_out(context, [4, 3, 2])
    unmasked.hand_out(context, [2, 3, 4])
    with pytest.raises(UserError, match="of round 1 for other nodes"):
        unmasked.hand_out(context, [2, 3, 5])
    unmasked.begin(context, "run", 2, b"another")
    unmasked.hand_out(context, [2, 3, 5])
    with pytest.raises(UserError, match="no folder's name"):
        unmasked.begin(context, "../run", 1, b"update")


def test_what_a_node_remembers_does_not_grow_and_what_it_forgot_it_refuses(tmp_path: Path) -> None:
    for config in ({}, {"state-path": str(tmp_path)}):
        context = Context(
            run_id=1, node_id=2, node_config=config, state=RecordDict(), run_config={}
        )
        for number in range(1, unmasked.ROUNDS + 3):
            unmasked.begin(context, "run", number, b"update")
        with pytest.raises(
            UserError,
            match=(
                "the server asks for round 2, and this node remembers its masked rounds from 3 on"
            ),
        ):
            unmasked.begin(context, "run", 2, b"another")
        unmasked.begin(context, "run", 3, b"update")
        with pytest.raises(UserError, match="already masked another update in round 3"):
            unmasked.begin(context, "run", 3, b"another")
    assert len(json.loads((tmp_path / "run" / "unmasked.json").read_text())) == unmasked.ROUNDS
