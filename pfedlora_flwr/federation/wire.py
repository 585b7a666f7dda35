"""Flower's messages: the only module that knows the keys of its records. What the messages say is
in `messages.py`.

A `NumPyClient` speaks the records of `flwr.compat`; the server's Strategy is on the current Message
API. Tensors travel as a plain list of arrays in order; their names are a part of what is said
beside them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from pfedlora_flwr.errors.log_lines import exception_line, lines_of
from pfedlora_flwr.federation.flower_compat import (
    Code,
    ErrorCode,
    EvaluateIns,
    FitIns,
    FitRes,
    GetPropertiesIns,
    MessageTypeLegacy,
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    fitres_to_recorddict,
    getpropertiesins_to_recorddict,
    ndarrays_to_parameters,
    recorddict_to_evaluateres,
    recorddict_to_fitins,
    recorddict_to_fitres,
    recorddict_to_getpropertiesres,
)
from pfedlora_flwr.federation.messages import ANCHORS, DATA, Config, failure_in

COUNT = "num-partitions"
"""What a simulation's node-configs say, and what a node is asked for under `clients=auto`."""
BEST = "best"
"""Says in a question that it names the version of a model to take."""
NO_ANSWER = "no answer in time"
_TOO_LATE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Flower's errors in the place of an answer that did not come while the question was valid."""
TRAIN, EVALUATE, PROPERTIES = "train", "evaluate", MessageTypeLegacy.GET_PROPERTIES


@dataclass(frozen=True)
class Reply:
    """What a client sent back: serialised arrays (not yet decoded), n_k, metrics, and the bytes of
    the whole message content."""

    arrays: list[bytes]
    samples: int
    metrics: Mapping[str, Any]
    wire_bytes: int


class Failed(Exception):
    """A client that answered with an error, or not at all; the text says why.

    name: by which the server knows its node, or its client's number, where it says one."""

    def __init__(self, why: str, name: str | int = "") -> None:
        super().__init__(why)
        self.name = name


def to_arrays(tensors: Mapping[str, Tensor]) -> list[npt.NDArray[Any]]:
    """The tensors as plain arrays, in order."""
    return [np.ascontiguousarray(t.cpu().numpy()).reshape(t.shape) for t in tensors.values()]


def to_tensors(names: Sequence[str], arrays: list[npt.NDArray[Any]]) -> dict[str, Tensor]:
    """Named tensors from what travelled."""
    return {
        name: torch.from_numpy(np.array(array)) for name, array in zip(names, arrays, strict=True)
    }


def train_message(
    node: int, round: int, tensors: Mapping[str, Tensor], config: Config, ttl: float
) -> Message:
    """The instruction to train: `fit` of the client."""
    content = fitins_to_recorddict(FitIns(ndarrays_to_parameters(to_arrays(tensors)), config), True)
    return _message(content, node, TRAIN, round, ttl)


def train_with(content: RecordDict, node: int, round: int, ttl: float) -> Message:
    """A message to train with this content: a stage of secure aggregation."""
    return _message(content, node, TRAIN, round, ttl)


def evaluate_message(
    node: int, round: int, config: Config, ttl: float, tensors: Mapping[str, Tensor] | None = None
) -> Message:
    """The instruction to evaluate: `evaluate` of the client, on its current model, with which
    nothing is sent; or on a new one that is adapted to these tensors."""
    arrays = ndarrays_to_parameters(to_arrays(tensors or {}))
    content = evaluateins_to_recorddict(EvaluateIns(arrays, config), True)
    return _message(content, node, EVALUATE, round, ttl)


def properties_message(node: int, ttl: float, data: str = "", anchors: bytes = b"") -> Message:
    """The question who a node is: `get_properties` of the client. data: what the dataset is known
    by that it must have, if that is known. anchors: the file of the run's, where it is sent."""
    said: Config = {DATA: data, ANCHORS: anchors}
    asked = GetPropertiesIns({name: value for name, value in said.items() if value})
    return _message(getpropertiesins_to_recorddict(asked), node, PROPERTIES, 0, ttl)


def best_message(node: int, config: Config, ttl: float) -> Message:
    """What a node is told at a run's end: which version of its model is the best round's."""
    asked = GetPropertiesIns({BEST: True} | config)
    return _message(getpropertiesins_to_recorddict(asked), node, PROPERTIES, 0, ttl)


def count_message(node: int, ttl: float) -> Message:
    """The question how many nodes a simulation has."""
    asked = GetPropertiesIns({COUNT: True})
    return _message(getpropertiesins_to_recorddict(asked), node, PROPERTIES, 0, ttl)


def _message(content: RecordDict, node: int, kind: str, round: int, ttl: float) -> Message:
    return Message(
        content=content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=str(round)
    )


def fit_instruction(message: Message) -> FitIns:
    """The instruction to train as a client reads it."""
    return recorddict_to_fitins(message.content, keep_input=True)


def fit_answer(message: Message) -> FitRes:
    """The answer to it as a client writes it."""
    return recorddict_to_fitres(message.content, keep_input=True)


def fit_content(result: FitRes) -> RecordDict:
    """The content of a message with this answer."""
    return fitres_to_recorddict(result, keep_input=False)


def asked_in(content: RecordDict) -> Mapping[str, Any]:
    """What an instruction or a question says, any of ours."""
    return _record(content, "fitins.config", "evaluateins.config", "getpropertiesins.config") or {}


def told_in(content: RecordDict) -> MutableMapping[str, Any] | None:
    """What an answer to it says beside its arrays; None where it says nothing."""
    return _record(content, "fitres.metrics", "evaluateres.metrics", "getpropertiesres.properties")


def tell_size(content: RecordDict, size: int) -> None:
    """Says this number of samples in the content of an answer to `evaluate`."""
    if (record := content.metric_records.get("evaluateres.num_examples")) is not None:
        record["num_examples"] = size


def _record(content: RecordDict, *names: str) -> MutableMapping[str, Any] | None:
    return next((content.config_records[n] for n in names if n in content.config_records), None)


def unanswered(message: Message | None) -> bool:
    """Whether no answer came in time, which Flower may tell by an error of its own."""
    return message is None or (message.has_error() and message.error.code in _TOO_LATE)


def answered(message: Message | None) -> Message:
    """The message, if it is there and no error. Raises Failed with the reason."""
    if message is None or unanswered(message):
        raise Failed(NO_ANSWER)
    if message.has_error():
        why = _first_line(message.error.reason)
        if message.error.code == ErrorCode.NODE_UNAVAILABLE:
            why = "its node is gone (no sign of life)"
        elif "Invalid message type: " in str(message.error.reason):  # Flower's own words
            why = "its ClientApp is not one of app_of"
        raise Failed(why)
    return message


def read_reply(reply: Message | None) -> Reply:
    """A client's reply to any of the three. Raises Failed when it is missing, an error or no such
    reply."""
    message = answered(reply)
    kind = message.metadata.message_type
    try:
        size, said = size_of(message.content), _READ[kind](message.content)
        arrays = said.parameters.tensors if kind == TRAIN else []
        if kind == PROPERTIES:
            read = Reply(arrays, 0, said.properties, size)
        else:
            read = Reply(arrays, said.num_examples, said.metrics, size)
    except Exception as error:  # whatever a stranger's message makes Flower's parser raise
        raise Failed(
            f"a malformed reply ({type(error).__name__}: {_first_line(str(error))})"
        ) from None
    if said.status.code != Code.OK:
        raise Failed(_first_line(said.status.message))
    failed = failure_in(read.metrics)
    if failed is not None:
        why, name = failed
        raise Failed(_first_line(why), name)
    return read


_READ: dict[str, Callable[[RecordDict], Any]] = {
    TRAIN: partial(recorddict_to_fitres, keep_input=True),
    EVALUATE: recorddict_to_evaluateres,
    PROPERTIES: recorddict_to_getpropertiesres,
}
"""What opens a reply of each kind."""


def size_of(content: RecordDict) -> int:
    """The bytes of a message's content, by Flower's count, which itself cannot count an empty text
    or list. Its encoding and the envelope, some hundred bytes more, are not in it."""
    records: tuple[Mapping[str, Any], ...] = (
        *content.config_records.values(),
        *content.metric_records.values(),
    )
    return sum(record.count_bytes() for record in content.array_records.values()) + sum(
        len(name) + _bytes_of(value) for record in records for name, value in record.items()
    )


def _bytes_of(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_of, value))
    return len(value) if isinstance(value, str | bytes) else 1 if isinstance(value, bool) else 8


def decode(blob: bytes, largest: int) -> npt.NDArray[Any]:
    """One serialised array of numbers or booleans. Its header is checked first, so a lie about the
    shape costs nothing. Raises ValueError."""
    if len(blob) > largest + 4096:
        raise ValueError(f"an array of {len(blob)} bytes, at most {largest} are expected")
    stream = io.BytesIO(blob)
    try:
        if np.lib.format.read_magic(stream) == (1, 0):
            read_header = np.lib.format.read_array_header_1_0
        else:
            read_header = np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
    # the header is a Python literal, and its parser raises whatever it likes
    except Exception as error:
        raise ValueError(f"no array: {type(error).__name__}: {_first_line(str(error))}") from None
    if dtype.kind not in "fiub" or dtype.hasobject:
        raise ValueError(f"an array of dtype {dtype}")
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(blob) - stream.tell():
        raise ValueError(f"an array of shape {list(shape)} in {len(blob)} bytes")
    stream.seek(0)
    try:
        return np.load(stream, allow_pickle=False)
    except Exception as error:  # a header that the two readers take differently
        raise ValueError(f"no array: {type(error).__name__}: {_first_line(str(error))}") from None


def _first_line(text: str | None) -> str:
    """The first line that says something, of a traceback the exception's; without what a terminal
    would act on."""
    line = exception_line(text or "") or next(iter(lines_of(text or "")), "no reason given")
    return line[:500]
