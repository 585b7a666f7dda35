"""The local engine: server and clients in this process, one client at a time. For debugging and for short runs.

The same ServerApp, Strategy, ClientApp with its mods, NumPyClient and wire encoding as in `flwr run`, and so the same bits; only the
transport is this file. A breakpoint in a model or a method stops where it stands, and Ctrl-C acts at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from pfedlora_flwr.experiment import Experiment

_RUN_ID, _TASK_ID, _FIRST_NODE = 1, 1, SUPERLINK_NODE_ID + 1


class LocalGrid(Grid):
    """A Grid of `clients` nodes in this process, each with a context of its own.

    A message waits until its reply is asked for; then its node's turn is run, and one reply is handed back, so that whoever waits can
    show it or stop. replied: called after each.
    """

    def __init__(self, app: ClientApp, experiment: Experiment, replied: Callable[[], None]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = _RUN_ID, _TASK_ID, SUPERLINK_NODE_ID
        self._app = app
        self._replied = replied
        self._contexts = {
            _FIRST_NODE + k: Context(
                run_id=_RUN_ID,
                node_id=_FIRST_NODE + k,
                node_config={"partition-id": k, "num-partitions": experiment.clients},
                state=RecordDict(),
                run_config=dict(experiment.flat()),
            )
            for k in range(experiment.clients)
        }
        self._waiting: deque[bytes] = deque()
        self._numbers = count(1)

    def set_run(self, run: Run) -> None:
        """There is one run, and it is set."""

    @property
    def run(self) -> Run:
        return Run.create_empty(_RUN_ID)

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Takes the messages in their encoding; their nodes' turns come when replies are pulled."""
        ids = []
        for message in messages:
            ids.append(str(next(self._numbers)))
            message.metadata.__dict__["_message_id"] = ids[-1]  # as Flower's own InMemoryGrid names them
            self._waiting.append(message_to_proto(message).SerializeToString())
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to the message that has waited longest; none when nothing waits."""
        if not self._waiting:
            return []
        message = _decoded(self._waiting.popleft())
        if message.metadata.message_id not in set(message_ids):  # nobody wants it any more: it came too late
            return []
        reply = _decoded(message_to_proto(self._turn(message)).SerializeToString())
        self._replied()
        return [reply]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        ids = set(self.push_messages(messages))
        return [reply for _ in range(len(ids)) for reply in self.pull_messages(ids)]

    def _turn(self, message: Message) -> Message:
        """The node's answer; what it raises becomes an error reply, as on a SuperNode."""
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}"), reply_to=message)


def _decoded(blob: bytes) -> Message:
    return message_from_proto(ProtoMessage.FromString(blob))
