"""The local engine: server and clients in this process, one client at a time, or as many as there
are lanes. For debugging, for short runs, and for a GPU full of clients.

The same ServerApp, Strategy, ClientApp with its mods, NumPyClient and wire encoding as in `flwr
run`, and so the same bits; only the transport is this file. A breakpoint in a model or a method
stops where it stands, and Ctrl-C acts at once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from pfedlora_flwr import client_app, server_app
from pfedlora_flwr.errors import permissions
from pfedlora_flwr.federation.flower_compat import (
    SUPERLINK_NODE_ID,
    ErrorCode,
    OneMachine,
    Run,
    be_task,
    decoded,
    encoded,
    give_id,
)
from pfedlora_flwr.federation.wire import TRAIN
from pfedlora_flwr.launch.flower import LaunchError
from pfedlora_flwr.runs.begin import Begin
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.training.device import find_device
from pfedlora_flwr.training.lanes import Lanes

_RUN_ID, _TASK_ID, _FIRST_NODE = 1, 1, SUPERLINK_NODE_ID + 1


class LocalGrid(OneMachine):
    """A Grid whose nodes are calls of a ClientApp in this process, each with a context of its own.

    node_configs: one for each node. replied: told after each client's visit how many of the
    messages that were sent together are answered, and how many there are. lanes: in which those
    have their visits that are to train."""

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        replied: Callable[[int, int], None] = lambda done, of: None,
        lanes: Lanes | None = None,
    ) -> None:
        be_task(_RUN_ID, _TASK_ID)
        self._app = app
        self._replied = replied
        self._one = Lanes(1, torch.device("cpu"))
        self._lanes = lanes or self._one
        self._contexts = {
            node: _context(node, config, run_config)
            for node, config in enumerate(node_configs, start=_FIRST_NODE)
        }
        self._waiting: list[Message] = []
        self._numbers = count(1)

    def set_run(self, run: Run) -> None:
        """There is one run, and it is set."""

    @property
    def run(self) -> Run:
        return Run.create_empty(_RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Takes the messages in their encoding; their clients' visits come when replies are
        pulled."""
        ids = []
        for message in messages:
            ids.append(str(next(self._numbers)))
            give_id(message, ids[-1])
            self._waiting.append(decoded(encoded(message)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to all messages that wait. Their clients have their visits now, in the order
        in which they were sent."""
        wanted, of = set(message_ids), len(self._waiting)
        waiting, self._waiting = self._waiting, []
        asked = [message for message in waiting if message.metadata.message_id in wanted]
        training = all(message.metadata.message_type == TRAIN for message in asked)
        replies: dict[int, Message] = {}
        with closing((self._lanes if training else self._one).each(self._answer, asked)) as answers:
            for place, reply in answers:
                replies[place] = decoded(encoded(reply))
                self._replied(len(replies), of)
        return [replies[place] for place in sorted(replies)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        """The node's answer; what it raises becomes an error reply, as on a SuperNode."""
        try:
            with permissions.held(permissions.ANYTHING):
                return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}"),
                reply_to=message,
            )


def _context(node: int, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Context:
    """Of a node, or of the server."""
    return Context(_RUN_ID, node, dict(node_config), RecordDict(), dict(run_config))


class _Log(logging.FileHandler):
    """A run's log. Where it cannot be written, as on a full disk, the run's own line says so."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in logging
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class _NotShown(BaseException):
    """The progress could not be shown, as on a closed pipe; why is its cause."""


class LocalRun:
    """One run in this process: an `Engine`."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._directory = begin.run

    def __enter__(self) -> LocalRun:
        self._log = _Log(self._directory.logs / "run.log", mode="w", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        package = logging.getLogger("pfedlora_flwr")
        package.setLevel(logging.INFO)
        package.addHandler(self._log)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("pfedlora_flwr").removeHandler(self._log)
        self._log.close()

    def run(self, show: Callable[[Row | None, SoFar], None]) -> None:
        """All rounds that are left. Raises LaunchError with what the server failed of."""
        directory, rounds = self._directory, self._directory.watched()

        def replied(done: int, of: int) -> None:
            state = directory.doing()
            try:
                show(state | {"done": done, "of": of} if state else None, rounds.look())
            except Exception as error:  # of the display, and none of the client's
                raise _NotShown from error

        e, x = self._begin.wanted.experiment, self._begin.wanted.execution
        device = find_device(e.device)
        client_app.prepare_process(device)
        gone = e.gone(self._begin.after + 1)
        there = (k for k in range(e.clients) if k not in gone)
        nodes = [{"partition-id": k, "num-partitions": e.clients} for k in there]
        config = dict(self._begin.wanted.flat())
        lanes = Lanes(x.lanes, device)
        grid = LocalGrid(client_app.app, nodes, config, replied, lanes)
        try:
            server_app.serve(grid, _context(SUPERLINK_NODE_ID, {}, config))
        except _NotShown as failure:
            raise failure.__cause__ or failure from None
        except Exception as error:  # its one line is in the result
            logging.getLogger(__name__).exception("the run failed")
            raise LaunchError(server_app.reason_of(error)) from None
        show(None, rounds.look())

    def save_log(self) -> None:
        """It is written as it comes."""

    def lost(self) -> str:
        """This process is all there is."""
        return ""
