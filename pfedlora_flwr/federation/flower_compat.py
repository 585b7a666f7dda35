"""Flower's inside: all that we use of it beside `flwr.app`, `flwr.clientapp` and `flwr.serverapp`,
which alone it promises. A port to another version of Flower is this file.

`tests/federation/test_flower_compat.py` has a test for each thing used (`make flower-test`)."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    FitRes,
    GetPropertiesIns,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, MessageTypeLegacy
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    fitres_to_recorddict,
    getpropertiesins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitins,
    recorddict_to_fitres,
    recorddict_to_getpropertiesres,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

logger = logging.getLogger(__name__)
Draw = Callable[[bytes, int, Sequence[tuple[int, ...]]], list[npt.NDArray[Any]]]
"""Masks: from a seed, whole numbers below the second in arrays of these shapes."""
MASKERS = (
    "flwr.client.mod.secure_aggregation.secaggplus_mod",
    "flwr.server.workflow.secure_aggregation.secaggplus_workflow",
)
"""Modules that draw masks; the packages above them export functions of the same names."""
_GENERATOR = "pseudo_rand_gen"
_LOST, _RAISED = "<class 'ray.exceptions.", "<class 'ray.exceptions.RayTaskError"
"""How the reason of a simulation's error reply begins: Ray could not carry the client to its end;
its code raised something."""


# Messages


def hide_samples(content: RecordDict) -> None:
    """Says 0 for n_k in the content of an answer to `fit`."""
    content.metric_records["fitres.num_examples"]["num_examples"] = 0


def give_id(message: Message, number: str) -> None:
    """Names a message, as Flower's own InMemoryGrid does when it is pushed."""
    message.metadata.__dict__["_message_id"] = number


def encoded(message: Message) -> bytes:
    """The message as it travels."""
    return message_to_proto(message).SerializeToString()


def decoded(blob: bytes) -> Message:
    """The message that travelled."""
    return message_from_proto(ProtoMessage.FromString(blob))


def encoded_context(context: Context) -> bytes:
    """The context as it travels."""
    return context_to_proto(context).SerializeToString()


def decoded_context(blob: bytes) -> Context:
    """The context that travelled."""
    return context_from_proto(ProtoContext.FromString(blob))


# Grids and runs


def this_task() -> tuple[int, int, int]:
    """The task of a node that Flower started this process for, by run, number and node."""
    return TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id


def be_node_task(run_id: int, task_id: int, node_id: int) -> None:
    """Tells Flower that this process is that task."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, task_id, node_id


def be_task(run_id: int, task_id: int) -> None:
    """Tells Flower that this process is the server's task of a run, which new messages name."""
    TaskIdentity.run_id, TaskIdentity.task_id = run_id, task_id
    TaskIdentity.node_id = SUPERLINK_NODE_ID


def is_simulation(grid: Grid) -> bool:
    """Whether Flower's simulation is behind the grid."""
    return _is(grid, "InMemoryGrid")


def in_one_machine(grid: Grid) -> bool:
    """Whether a simulation is behind the grid, Flower's or that of our local engine."""
    return is_simulation(grid) or isinstance(grid, OneMachine)


class OneMachine(Grid):
    """A grid whose nodes are in this process."""


def is_lost(reply: Message) -> bool:
    """Whether a client of a simulation has no answer because the process that trained it is
    gone."""
    reason = (reply.error.reason or "") if reply.has_error() else ""
    return reason.startswith(_LOST) and not reason.startswith(_RAISED)


def bound_retries(grid: Grid, seconds: float) -> None:
    """Flower's grid tries to reach a SuperLink that is gone for ever, and would hold the run's
    directory as long.

    How often it tries is a private part of Flower's: where it has another name, the log says what
    is missing."""
    if not _is(grid, "HttpGrid"):  # no SuperLink to wait for
        return
    invoker: Any = getattr(grid, "_retry_invoker", None)
    if not hasattr(invoker, "max_time"):
        logger.warning(
            "this version of Flower hides its retries: should the SuperLink go, this process waits"
            " for it without end"
        )
        return
    invoker.max_time = seconds


def nodes_known_to(connection: str) -> list[Any]:
    """The registered nodes of a SuperLink, by its name in Flower's config.toml, as Flower's own
    client gives them: `node_id`, `name`, `status`, `registered_at`, `last_activated_at`,
    `last_deactivated_at`, `public_key`. Raises whatever Flower does."""
    # takes a second, which no run need spend
    from flwr.cli.utils import init_http_client_from_connection, read_superlink_connection
    from flwr.proto.control_pb2 import ListNodesRequest

    with redirect_stdout(StringIO()):  # it says which SuperLink it uses
        client = init_http_client_from_connection(read_superlink_connection(connection))
        try:
            found = client.ListNodes(ListNodesRequest()).nodes_info
        finally:
            client.close()
    return [node for node in found if node.status != "unregistered"]


def _is(grid: Grid, name: str) -> bool:
    """Whether it is one of Flower's own grids. Their module takes a second to import; who has one
    has imported it."""
    module = sys.modules.get("flwr.superlink.grid")
    return module is not None and isinstance(grid, getattr(module, name))


# SecAgg+


def secagg_record(content: RecordDict) -> MutableMapping[str, Any] | None:
    """What a message says of secure aggregation; None of a plain one."""
    return content.config_records.get(RECORD_KEY_CONFIGS)


def kept_for(context: Context, name: str) -> set[int] | None:
    """The nodes that a dictionary in the state of Flower's mod is about; None where an earlier
    stage has not been."""
    state = context.state.config_records.get(RECORD_KEY_STATE)
    if state is None or f"{name}:K" not in state:
        return None
    return set(cast(list[int], state[f"{name}:K"]))


def kept_threshold(context: Context) -> int:
    """How many shares unmask, in the state of Flower's mod."""
    return int(cast(int, context.state.config_records[RECORD_KEY_STATE]["threshold"]))


def all_are_neighbours(context: Context) -> bool:
    """Whether each client of the round adds the masks of all others, in the state of Flower's
    mod."""
    state = context.state.config_records[RECORD_KEY_STATE]
    return state["share_num"] == state["sample_num"]


def forget_keys(context: Context) -> None:
    """Drops the state of Flower's mod, with its keys and the shares of others'."""
    context.state.config_records.pop(RECORD_KEY_STATE, None)


def draw_masks_by(draw: Draw) -> None:
    """Makes Flower's client and server draw these masks. Raises RuntimeError where a version of
    Flower draws them by another name."""
    for name in MASKERS:
        module = import_module(name)
        if not hasattr(module, _GENERATOR):
            raise RuntimeError(
                f"{name} has no {_GENERATOR}: with this version of Flower the masks of secagg"
                " cannot be made secret"
            )
        setattr(module, _GENERATOR, draw)


class MaskedSum:
    """A round of SecAgg+ on the server, stage by stage, by Flower's workflow. A client that drops
    out before it has shared its keys is forgotten: no mask of it is in any sum.

    grid: takes a stage's messages, and gives back the replies that are as they should be. nodes:
    who takes part. agreed: the protocol's settings, by `Key`. ring: the seed of who is whose
    neighbour. A round that is done again has the same, or its clients would refuse it."""

    def __init__(
        self,
        grid: Any,
        nodes: Sequence[int],
        round: int,
        agreed: Mapping[str, int | float],
        ring: int,
    ) -> None:
        shares = int(agreed[Key.SHARE_NUMBER])
        self._workflow = SecAggPlusWorkflow(
            shares,
            # a share of the shares: as a count it might not be all of them
            agreed[Key.THRESHOLD] / shares,
            max_weight=agreed[Key.MAX_WEIGHT],
            clipping_range=agreed[Key.CLIPPING_RANGE],
            quantization_range=int(agreed[Key.TARGET_RANGE]),
            modulus_range=int(agreed[Key.MOD_RANGE]),
        )
        self.weight = 0
        """Of the unmasked sum, in levels: the clients' weights added up."""
        self.figures = np.zeros(0, np.int64)
        """The last array of the unmasked sum as it is, modulo `MOD_RANGE`."""
        self._complete = shares == agreed[Key.SAMPLE_NUMBER]
        self._state, self._ring = WorkflowState(), ring
        self._strategy = _Strategy(nodes)
        self._asked = grid, _legacy_context(round, self._strategy), self._state

    @property
    def left(self) -> set[int]:
        """The nodes that have answered so far."""
        return self._state.active_node_ids

    @property
    def members(self) -> set[int]:
        """The nodes that share each other's masks, once keys are shared; empty where each shares
        those of some alone."""
        return set(self._state.sampled_node_ids) if self._complete else set()

    def share_keys(self) -> bool:
        """The first two stages; whether enough nodes are left."""
        with _seeded(self._ring):
            done = self._workflow.setup_stage(*self._asked)
        if not done:
            return False
        self._workflow.share_keys_stage(*self._asked)
        state, there = self._state, self.left
        state.sampled_node_ids = set(there)
        state.nid_to_neighbours = {
            node: near & there for node, near in state.nid_to_neighbours.items() if node in there
        }
        return bool(there) and self._workflow._check_threshold(state)

    def collect(self, instructions: Mapping[int, RecordDict]) -> bool:
        """The third stage: by node what it is to train by, and its masked upload comes; whether
        enough nodes are left."""
        self._state.nid_to_fitins |= instructions
        return self._workflow.collect_masked_vectors_stage(*self._asked)

    def unmask(self) -> list[npt.NDArray[np.float64]] | None:
        """The last stage: the weighted means of the nodes that are left, or None where too few
        shares came. Raises what Flower makes of shares that are none."""
        with _told_sums() as sums:
            if not self._workflow.unmask_stage(*self._asked):
                return None
        ((self.weight, self.figures),) = sums
        return parameters_to_ndarrays(self._strategy.mean)


class _Strategy:
    """What the workflow asks of a legacy strategy and of its client manager."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.mean = Parameters([], "")
        self._nodes = nodes

    def configure_fit(self, *_: object) -> list[tuple[Any, FitIns]]:
        return [
            (SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self._nodes
        ]

    def aggregate_fit(
        self, round: int, results: list[tuple[Any, FitRes]], failures: object
    ) -> tuple[None, dict[str, Any]]:
        self.mean = results[0][1].parameters
        return None, {}

    def num_available(self) -> int:
        return len(self._nodes)


def _legacy_context(round: int, strategy: _Strategy) -> LegacyContext:
    """As much of one as the workflow looks at."""
    state = SimpleNamespace(
        config_records={MAIN_CONFIGS_RECORD: {WorkflowKey.CURRENT_ROUND: round}},
        array_records={MAIN_PARAMS_RECORD: ArrayRecord()},
    )
    found = SimpleNamespace(state=state, strategy=strategy, client_manager=strategy)
    return cast(LegacyContext, found)


def silence_workflow() -> None:
    """Keeps what Flower's workflow logs out of the log: whatever it says is said by us."""
    logging.getLogger("flwr").addFilter(_is_not_workflows)


def _is_not_workflows(record: logging.LogRecord) -> bool:
    return record.module != "secaggplus_workflow"


@contextmanager
def _told_sums() -> Iterator[list[tuple[int, npt.NDArray[np.int64]]]]:
    """What the workflow takes of a sum as its total weight, and the last array of the rest, both of
    which it keeps to itself."""
    module, sums = import_module(MASKERS[1]), list[tuple[int, npt.NDArray[np.int64]]]()
    extract = module.factor_extract

    def told(parameters: list[npt.NDArray[Any]]) -> tuple[int, list[npt.NDArray[Any]]]:
        weight, rest = extract(parameters)
        sums.append((int(weight), rest[-1].copy()))
        return weight, rest

    module.factor_extract = told  # type: ignore[attr-defined]
    try:
        yield sums
    finally:
        module.factor_extract = extract  # type: ignore[attr-defined]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's own generator, from which the workflow draws who is whose neighbour."""
    drawn = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(drawn)
