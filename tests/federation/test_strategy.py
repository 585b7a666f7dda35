"""The strategy as Flower sees it: its own `start` drives it too, and comes to the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from pfedlora_flwr.client_app import app
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
    """Nodes 10, 11, … that run the ClientApp in this process, and answer at once."""

    def __init__(self, plain: Plain, silent: int | None = None) -> None:
        self.keys, self.clients = plain.config.flat(), plain.experiment.clients
        self.silent = silent  # a client that answers nothing but who it is
        self.replies: list[Message] = []

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=10 + k, name="") for k in range(self.clients)]

    def push_messages(self, messages: Iterable[Message]) -> None:
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"to-{node}"
            config = {"partition-id": node - 10, "num-partitions": self.clients}
            if node - 10 != self.silent or message.metadata.message_type != TRAIN:
                self.replies.append(
                    app(message, Context(1, node, config, RecordDict(), dict(self.keys)))
                )

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
        came, self.replies = self.replies, []
        return came

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


def test_a_model_that_has_trained_since_has_no_further_predictors() -> None:
    """They read what a client received, so that an evaluation without a visit cannot tell them."""
    state = ServerState({}, other_accuracies={0: {"global": 0.5}, 1: {"global": 0.7}})
    state.keep_evaluations()
    state.train(0, 3, "a")
    assert state.mean_other_accuracies() == {"global": 0.7}
    state.other_accuracies[0] = {"global": 0.9}
    state.drop_last_evaluation()
    assert state.mean_other_accuracies() == {"global": 0.7}
