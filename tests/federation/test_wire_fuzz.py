"""What strangers send and users write: thousands of random cases, and no exception but the
documented ones."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import RecordDict
from flwr.common import Code, FitRes, Parameters, Status
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pfedlora_flwr import config
from pfedlora_flwr.config import all_keys, from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.admission import admit
from pfedlora_flwr.federation.claim import Claim
from pfedlora_flwr.federation.messages import Instruction, Report, written
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.method import Refused
from pfedlora_flwr.rng import derive
from pfedlora_flwr.version import WIRE
from tests.plain import make

pytestmark = pytest.mark.slow

MANY = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(MANY, max_examples=150)
ALL = {field.name for field in fields(Report)}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    JSON.map(json.dumps),
)


@contextmanager
def documented(*kinds: type[Exception]) -> Iterator[None]:
    """Nothing is raised but these, with one line that says something."""
    said = ""
    try:
        yield
    except kinds as error:
        said = str(error)
        assert said
    assert len(said) < 2000
    assert "\n" not in said


def blob(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def good_blob() -> bytes:
    return blob(np.arange(12, dtype=np.float32).reshape(3, 4))


@MANY
@given(
    st.binary(max_size=300) | st.binary(max_size=100).map(lambda tail: b"\x93NUMPY\x01\x00" + tail)
)
def test_decode_takes_any_bytes(data: bytes) -> None:
    with suppress(ValueError):
        assert wire.decode(data, 10**6).dtype.kind in "fiu"


@MANY
@given(st.data())
def test_decode_takes_an_array_with_any_bytes_changed(data: st.DataObject) -> None:
    whole = bytearray(good_blob())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with suppress(ValueError):
        assert wire.decode(bytes(whole[:cut]), 10**6).nbytes <= len(whole)


HEADERS = st.fixed_dictionaries(
    {
        "descr": (
            st.sampled_from(
                ["<f4", ">f8", "|O", "<U5", "|V8", "<c8", "|b1", "<i8", "<M8[s]", "f4,i4", "", "x"]
            )
            | st.text(max_size=6)
            | JSON
        ),
        "fortran_order": st.booleans() | JSON,
        "shape": st.lists(st.integers(-(2**70), 2**70), max_size=4).map(tuple) | JSON,
    }
)


@pytest.mark.slow
@MANY
@given(HEADERS, st.binary(max_size=64), st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]))
def test_decode_takes_any_header(
    header: dict[str, Any], body: bytes, version: tuple[int, int]
) -> None:
    text = repr(header).encode("utf-8", "replace")
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    with suppress(ValueError):
        wire.decode(b"\x93NUMPY" + bytes(version) + length + text + body, 10**6)


@SOME
@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.int32, np.uint8]),
        arrays.array_shapes(min_dims=0, min_side=0),
    )
)
def test_decode_gives_back_what_was_encoded(array: np.ndarray[Any, Any]) -> None:
    found = wire.decode(blob(array), array.nbytes)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@pytest.fixture(scope="module")
def server() -> SimpleNamespace:
    """A method with its state, and an honest reply to round 1 of client 0."""
    method = make(from_flat({"adapter.hidden-dim": 1}))
    state = method.state_init(derive(0, "state"))
    told = {
        "losses": '{"model": 1.5}',
        "flops_by_phase": '{"model": 10}',
        "seconds": '{"train": 0.1}',
        "other_accuracies": "{}",
        "model": "cnn1",
        "worker": "1",
        "epsilon": 0.5,
    }
    counts = {
        "test": 10,
        "test_correct": 5,
        "validation": 10,
        "validation_correct": 5,
        "scores": '{"balanced_accuracy": 0.5, "macro_f1": 0.4, "validation_log_loss": 1.5}',
        "confusion": "[[3, 2], [3, 2]]",
    }
    honest = {
        "round": 1,
        "client": 0,
        "names": json.dumps(list(state)),
        "model_sha256": "0" * 64,
        "loss": 1.5,
        "lost": False,
        **told,
        **counts,
    }
    return SimpleNamespace(
        method=method,
        state=state,
        metrics=honest,
        blobs=[blob(array) for array in wire.to_arrays(state)],
    )


def read(content: RecordDict) -> wire.Reply:
    metadata = SimpleNamespace(message_type=wire.TRAIN)
    return wire.read_reply(
        SimpleNamespace(has_error=lambda: False, metadata=metadata, content=content)
    )


def test_the_honest_reply_is_admitted(server: SimpleNamespace) -> None:
    result = FitRes(
        Status(Code.OK, ""), Parameters(server.blobs, "numpy.ndarray"), 480, server.metrics
    )
    visit, upload = admit(
        read(fitres_to_recorddict(result, True)), server.method, server.state, 0, 1, 1000, told=ALL
    )
    assert tensors_sha256(upload.tensors) == tensors_sha256(server.state)
    assert visit.report.counts is not None
    assert visit.report.flops_by_phase == {"model": 10}


@pytest.mark.slow
@MANY
@given(st.data())
def test_a_reply_with_anything_changed_is_admitted_failed_or_refused(
    server: SimpleNamespace, data: st.DataObject
) -> None:
    names = st.sampled_from([*server.metrics, "other"])
    metrics = server.metrics | data.draw(st.dictionaries(names, SCALARS, max_size=3))
    for name in data.draw(st.lists(names, max_size=2)):
        metrics.pop(name, None)
    blobs = [
        data.draw(st.one_of(st.just(b), st.just(b), st.binary(max_size=40))) for b in server.blobs
    ]
    blobs = blobs[: data.draw(st.sampled_from([len(blobs)] * 4 + [1]))]
    samples = data.draw(st.one_of(st.just(480), st.integers(-(2**63), 2**63 - 1), st.floats()))
    content = fitres_to_recorddict(
        FitRes(Status(Code.OK, ""), Parameters(blobs, "numpy.ndarray"), samples, metrics), True
    )
    dropped = data.draw(st.sampled_from([None, None, None, *content]))
    if dropped is not None:
        del content[dropped]
    with documented(wire.Failed, Refused):
        visit, _ = admit(read(content), server.method, server.state, 0, 1, 1000, told=ALL)
        assert 0 < visit.samples <= 1000
        json.dumps(asdict(visit.report), allow_nan=False)


@SOME
@given(
    st.dictionaries(
        st.sampled_from(["partition_id", "partition", "name", "classes", "versions", "x"]), SCALARS
    )
)
def test_a_node_may_say_anything_of_itself(said: dict[str, Any]) -> None:
    with suppress(ValueError):
        claim = Claim.from_metrics(said | {"wire": WIRE}, 5, 3)
        assert claim.partition_id < 5
        assert len(claim.classes) <= 3


@SOME
@given(st.data())
def test_an_instruction_is_read_as_it_was_written_or_refused(data: st.DataObject) -> None:
    told = Instruction(
        round=3,
        client=1,
        version=2,
        token="ab12",
        run="/r",
        evaluate=True,
        names=["w", "b"],
        origin="cd34",
        keep=[1],
    )
    config = written(told)
    assert Instruction.from_config(config) == told
    config |= data.draw(st.dictionaries(st.sampled_from([*config, "other"]), SCALARS, max_size=3))
    with documented(Refused):
        Instruction.from_config(config)


KEYS = st.sampled_from(sorted(all_keys()))


@pytest.mark.slow
@MANY
@given(st.dictionaries(KEYS | st.text(max_size=10), SCALARS | JSON, max_size=4))
def test_any_configuration_is_taken_or_a_clear_line(flat: dict[str, Any]) -> None:
    with documented(UserError):
        experiment = from_flat(flat)
        assert from_flat(experiment.flat()) == experiment


@SOME
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(str.encode),
        st.dictionaries(KEYS, JSON, max_size=3).map(lambda d: yaml.safe_dump(d).encode()),
    )
)
def test_any_file_is_read_or_a_clear_line(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conf.yaml"
        path.write_bytes(content)
        with documented(UserError):
            config.load(path)


@SOME
@given(
    st.lists(st.text(max_size=20) | st.tuples(KEYS, st.text(max_size=12)).map("=".join), max_size=3)
)
def test_any_override_is_read_or_a_clear_line(overrides: list[str]) -> None:
    with documented(UserError):
        config.load(None, overrides)
