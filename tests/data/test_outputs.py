"""What frozen encoders make of a client's samples: computed once, kept, and the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import outputs
from pfedlora_flwr.data.local import LocalData, Site
from pfedlora_flwr.data.outputs import with_outputs_kept
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import evaluate, visit
from pfedlora_flwr.files import cache_root
from pfedlora_flwr.models import encoded, pretrained
from pfedlora_flwr.models.kept import base_of, kept
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops import evaluate as evaluating
from pfedlora_flwr.ops.card import card
from pfedlora_flwr.runs.trained import load_trained
from pfedlora_flwr.training.flops import count_operations
from pfedlora_flwr.training.loop import known_output
from tests.conftest import keys_in, needs, run_locally
from tests.models.bases import base
from tests.plain import make

pytestmark = needs("timm")
CPU = torch.device("cpu")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A small federation of frozen encoders, with a cache of its own."""
    names = ",".join(base(tmp_path, name) for name in ("test_resnet", "test_efficientnet"))
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    return keys_in(
        "train=head neck=always representation-width=20 clients=2 dataset=synthetic:60 "
        "partition.kind=iid batch-size=16"
    ) | {"models": names}


def refuse(*_: object) -> Tensor:
    raise AssertionError("the encoder ran")


@pytest.mark.slow
def test_outputs_are_computed_once_and_taken_from_the_cache(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    e = from_flat(keys)
    method, data = make(e), Site.find(e, 0, {}).load(CPU)
    model = method.initial_model(0)
    first = with_outputs_kept(model, data, e)
    encoder = pretrained.frozen_encoder(model)
    assert encoder is not None
    expected = encoder.encode(data.train.batch(slice(None)))
    assert torch.equal(first.train.known[1], expected)
    batch = first.train.batch(torch.tensor([3, 1]))
    assert torch.equal(known_output(encoder.module, batch), expected[[3, 1]])
    assert known_output(model, batch) is None
    assert known_output(encoder.module, batch + 0) is None, "of another tensor nothing is known"
    assert torch.equal(batch, data.train.batch(torch.tensor([3, 1])))
    assert len([*cache_root().glob("outputs/*/*.npy")]) == 3, "a file for each part"
    assert cache_root().stat().st_mode & 0o777 == 0o700, "private data is its user's alone"
    monkeypatch.setattr(encoded, "infer", refuse)
    again = with_outputs_kept(method.initial_model(0), data, e)
    for part in ("train", "validation", "test"):
        left, right = getattr(first, part).known[1], getattr(again, part).known[1]
        assert torch.equal(left, right)


@pytest.mark.slow
def test_whatever_decides_the_outputs_gives_them_another_file(
    keys: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = from_flat(keys)
    data = Site.find(e, 0, {}).load(CPU)
    model = make(e).initial_model(0)
    with_outputs_kept(model, data, e)
    monkeypatch.setattr(encoded, "infer", refuse)
    with_outputs_kept(model, data, e)

    def others() -> dict[str, tuple[torch.nn.Module, LocalData]]:
        def changed(part: dict[str, object]) -> torch.nn.Module:
            return make(from_flat(keys | part)).initial_model(0)

        said = {"representation": "pretrained-logits"}
        inputs = replace(data.train, inputs=data.train.inputs.flip(1))
        scale = replace(data.train, scale=data.train.scale * 2)
        other = base(tmp_path, "test_resnet", seed=9)
        return {
            "size": (changed({"model-input": 40}), data),
            "representation": (changed(said), data),
            "weights": (changed({"models": other}), data),
            "inputs": (model, replace(data, train=inputs)),
            "normalisation": (model, replace(data, train=scale)),
        }

    for what, (its, parts) in others().items():
        with pytest.raises(AssertionError, match="the encoder ran"):
            with_outputs_kept(its, parts, e)
        assert what
    with pytest.raises(AssertionError, match="the encoder ran"):
        with_outputs_kept(model, data, e.replace(precision="bf16"))
    for place, value in (("timm.__version__", "0"), ("torch.__version__", "0")):
        with monkeypatch.context() as patch:
            patch.setattr(place, value)
            with pytest.raises(AssertionError, match="the encoder ran"):
                with_outputs_kept(model, data, e)
    monkeypatch.setattr(encoded, "maker_of_cpu", lambda: "another")
    with pytest.raises(AssertionError, match="the encoder ran"):
        with_outputs_kept(model, data, e)


def test_a_users_own_class_is_not_known_by_its_tensors() -> None:
    """Its outputs are by its code, too, of which the base does not tell."""
    model = build("tests.models.modules:StillBody", Task(3, (6,)))
    assert model.given
    assert base_of(model)
    assert len(model.still) == 1, "it would be an encoder, were it a library's"
    assert pretrained.frozen_encoder(model) is None


@pytest.mark.parametrize(
    "method",
    [
        "standalone",
        "pfedlora",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("fml", "fedmrl", "pfedmoe")),
    ],
)
def test_a_visit_gives_the_same_bits_and_counts_with_kept_outputs_and_without(
    method: str, keys: dict[str, object]
) -> None:
    e = from_flat(keys | {"method": method, "local-epochs": 2, "representation-width": 100})
    made, data = make(e), Site.find(e, 1, {}).load(CPU)
    received = made.download(made.state_init(1), 1, 1)
    found: list[tuple[Any, ...]] = []
    for _ in range(3):  # computed in the visit, computed and kept, read
        model = made.initial_model(1)
        parts = with_outputs_kept(model, data, e) if found else data
        upload, spent = visit(made, model, received, parts.train, 1, 1)
        counts = evaluate(made, model, parts)
        found.append((upload.tensors, kept(model), spent.flops, spent.losses, counts))
    for other in found[1:]:
        for left, right in zip(found[0][:2], other[:2], strict=True):
            assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())
        assert found[0][2:] == other[2:]


def test_operations_are_the_encoders_once_and_what_runs_in_a_visit(keys: dict[str, object]) -> None:
    e = from_flat(keys | {"method": "standalone", "local-epochs": 3})
    method, data = make(e), Site.find(e, 0, {}).load(CPU)
    model = method.initial_model(0)
    encoder = pretrained.frozen_encoder(model)
    with torch.no_grad(), count_operations() as ours:
        encoder.encode(data.train.batch(slice(None)))
    assert outputs.operations(model, data, e) == {"features": ours.forward}
    _, spent = visit(method, model, {}, data.train, 0, 1)
    n, width, classes = len(data.train), encoder.width, method.classes
    neck, last = 2 * width * 20, 2 * 20 * classes
    assert spent.flops == {"model": 3 * n * (2 * neck + 3 * last)}


@pytest.mark.slow
def test_nothing_is_kept_where_images_are_augmented_or_the_encoder_is_trained(
    keys: dict[str, object],
) -> None:
    for part in ({"augment": True}, {"train": "all"}, {"models": "cnn1", "train": "head"}):
        e = from_flat(keys | part)
        data = Site.find(e, 0, {}).load(CPU)
        model = make(e).initial_model(0)
        assert with_outputs_kept(model, data, e) is data
        assert outputs.operations(model, data, e) == {}
    assert not [*cache_root().glob("outputs/*")]


def test_augmented_images_go_through_the_encoder(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    e = from_flat(keys | {"method": "standalone", "augment": True})
    method, data = make(e), Site.find(e, 0, {}).load(CPU)
    visit(method, method.initial_model(0), {}, data.train, 0, 1)  # what is known of models is kept
    ran = []
    real = Whole.encode
    monkeypatch.setattr(Whole, "encode", lambda self, x: (ran.append(len(x)), real(self, x))[1])
    visit(method, method.initial_model(0), {}, data.train, 0, 1)
    assert sum(ran) == len(data.train)


def test_a_cache_that_cannot_be_written_is_a_line(
    keys: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = from_flat(keys)
    data, model = Site.find(e, 0, {}).load(CPU), make(e).initial_model(0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set PFEDLORA_CACHE to a writable folder"):
        with_outputs_kept(model, data, e)


@pytest.mark.slow
def test_runs_end_alike_with_kept_outputs_and_without(
    keys: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Flower, too: tests/models/test_text.py."""
    ended = []
    more = keys | {"rounds": 2, "method": "pfedlora"}
    for place, cache in (("one", "a"), ("two", "a"), ("three", "b")):
        monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / cache))
        done = run_locally(tmp_path / place, more)
        assert done.code == 0, done.stderr
        ended.append(done)
    first = ended[0].result
    for done in ended[1:]:
        for what in ("accuracy", "flops", "shared_sha256", "models_sha256"):
            assert first[what] == done.result[what]


@pytest.mark.slow
def test_evaluate_counts_what_a_run_in_bf16_counted_and_the_card_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder's outputs in fp32 decide another sample of client 0's."""
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    keys: dict[str, object] = {"models": base(tmp_path), "train": "head", "precision": "bf16"}
    keys |= {"method": "standalone"}
    keys |= {"clients": 2, "rounds": 1, "partition.kind": "iid", "batch-size": 16, "lr": 0.01}
    keys |= {"evaluate-initial": False, "device": "cpu"}
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    models = [load_trained(done.output, k) for k in (0, 1)]
    found = {str(one["client"]): one["accuracy"] for one in evaluating.evaluate(models, None)}
    assert found == {k: row["accuracy"] for k, row in done.result["per_client"].items()}
    text = card(models[0], "onnx", "model.onnx", 0.0)
    assert " %), counted with the encoder in bf16; this file computes in fp32 |" in text
