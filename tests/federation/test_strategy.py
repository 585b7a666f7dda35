"""The strategy as Flower sees it: its own `start` drives it too, and comes to the same bits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message, Metadata, RecordDict, UserConfig

from pfedlora_flwr.client_app import app
from pfedlora_flwr.federation import clients
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.strategy import PersonalisedStrategy, RunFailed
from pfedlora_flwr.federation.wire import TRAIN
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.begin import find
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from tests.federation.malice import KEYS
from tests.plain import Plain, make

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_a_run")]


class Grid:
    """Nodes 10, 11, … that run the ClientApp in this process, and answer at once.

    late: by round, a client whose answer to its training comes a second later."""

    def __init__(self, plain: Plain, late: Mapping[int, int], state: Path) -> None:
        self.keys, self.clients = plain.config.flat(), plain.experiment.clients
        self.late, self.begun, self.state = late, 0.0, state
        self.replies: list[Message] = []

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=10 + k, name="") for k in range(self.clients)]

    def push_messages(self, messages: Iterable[Message]) -> None:
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"to-{node}"
            config: UserConfig = {"partition-id": node - 10, "num-partitions": self.clients}
            config["state-path"] = str(self.state / f"state{node}")
            self.replies.append(
                app(message, Context(1, node, config, RecordDict(), dict(self.keys)))
            )
        self.begun = time.monotonic()

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
        come = time.monotonic() > self.begun + 1
        held = [] if come else [reply for reply in self.replies if self.is_late(reply.metadata)]
        came = [reply for reply in self.replies if reply not in held]
        self.replies = held
        return came

    def is_late(self, reply: Metadata) -> bool:
        late = self.late.get(int(reply.group_id or 0))
        return reply.message_type == TRAIN and reply.src_node_id - 10 == late

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self.push_messages(messages)
        return self.pull_messages([])


def begun(tmp_path: Path, **keys: object) -> tuple[Plain, RunDirectory, PersonalisedStrategy]:
    """A run of three clients in its directory, and the same without Flower."""
    path = tmp_path / "run"
    plain = Plain(KEYS | {"clients": 3, "dataset": "synthetic:300", "output": str(path)} | keys)
    run = RunDirectory(path)
    find(run, plain.config).claim()
    state = ServerState(plain.method.state_init(derive(0, "state")))
    own = make(plain.experiment)
    strategy = PersonalisedStrategy(plain.experiment, plain.config.execution, own, run, state)
    return plain, run, strategy


def test_a_round_that_fails_twice_counts_once(tmp_path: Path) -> None:
    _, run, strategy = begun(tmp_path, **{"max-failed-rounds": 2})
    round = Round(1, [0, 1, 2], Clock())
    for what in ("round 1", "the evaluation of round 1"):
        assert not strategy._enough(round, what, 0, 3)
    assert strategy.state.failed_rounds == 1
    with pytest.raises(RunFailed, match="0 of 3 clients succeeded"):
        strategy._enough(Round(2, [0, 1, 2], Clock()), "round 2", 0, 3)
    run.close()


def test_a_round_that_failed_names_all_who_did_or_the_first_reasons(tmp_path: Path) -> None:
    _, run, strategy = begun(tmp_path)
    round = Round(1, [0, 1, 2], Clock())
    round.failures |= {2: "not connected", 0: "no answer", 1: "not connected"}
    with pytest.raises(RunFailed) as failed:
        strategy._enough(round, "round 1", 0, 3, "0 of 3 clients are left")
    assert str(failed.value) == (
        "round 1: 0 of 3 clients are left; client 0: no answer; clients 1, 2: not connected"
    )
    round.failures = {client: f"{client % 5} labels" for client in range(10)}
    assert round.told_failures()[2:] == ["clients 2, 7: 2 labels", "and 4 more failed"]
    run.close()


def test_a_client_that_answers_much_later_than_all_others_is_a_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In rounds 1, 2 and 4, and another one in round 5."""
    monkeypatch.setattr(clients, "_SLOW", 1.1)
    monkeypatch.setattr(clients, "_LATER", 0.3)
    plain, run, strategy = begun(tmp_path, rounds=5, models="cnn5")
    with caplog.at_level("WARNING"):
        strategy.complete(Grid(plain, {1: 2, 2: 2, 4: 2, 5: 0}, tmp_path))
    run.close()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" is slow: ")[0] for line in lines] == [
        "round 1: client 2",
        "round 4: client 2",
        "round 5: client 0",
    ]
    told = r"its answer took \d+ s, \d+ of them its visit; the others took \d+ s at most"
    assert all(re.search(told, line) for line in lines)


def test_a_model_that_has_trained_since_has_no_further_predictors() -> None:
    """They read what a client received, so that an evaluation without a visit cannot tell them."""
    state = ServerState({}, other_accuracies={0: {"global": 0.5}, 1: {"global": 0.7}})
    state.keep_evaluations()
    state.train(0, 3, "a")
    assert state.mean_other_accuracies() == {"global": 0.7}
    state.other_accuracies[0] = {"global": 0.9}
    state.drop_last_evaluation()
    assert state.mean_other_accuracies() == {"global": 0.7}
