"""What the server makes of an answer that Ray could not bring, by the names that Ray's errors
have."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray.exceptions
from flwr.app import Error, Message

from pfedlora_flwr.federation.clients import Clients, RunFailed
from pfedlora_flwr.federation.flower_compat import is_lost
from pfedlora_flwr.federation.wire import properties_message

pytestmark = pytest.mark.usefixtures("in_a_run")


def failed(error: Exception) -> Message:
    """The error reply of Flower's simulation (`vce_api.worker`)."""
    return Message(
        Error(2, str(type(error)) + ":<'" + str(error) + "'>"), reply_to=properties_message(1, 60.0)
    )


def test_a_worker_that_is_gone_ends_the_round_and_a_client_that_raises_does_not() -> None:
    raised = ray.exceptions.RayTaskError(
        "run", "Traceback: ray.exceptions.ActorDiedError", ValueError("no images")
    ).as_instanceof_cause()
    lost = ray.exceptions.ActorDiedError()
    assert [
        is_lost(failed(error))
        for error in (
            lost,
            ray.exceptions.NodeDiedError("gone"),
            raised,
            ValueError("ray.exceptions."),
        )
    ] == [
        True,
        True,
        False,
        False,
    ]
    simulation = SimpleNamespace(_simulated=True, _nodes=frozenset())
    with pytest.raises(
        RunFailed, match=r"a process that trains clients is gone .*; resume=true goes on"
    ):
        Clients.notice(simulation, failed(lost))
    Clients.notice(simulation, failed(raised))
    # of a real node, which may say what it likes
    Clients.notice(SimpleNamespace(_simulated=False, _nodes=frozenset()), failed(lost))
