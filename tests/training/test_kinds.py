"""A kind of input: its texts, its arrays and its tensors agree with one another, for all kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfedlora_flwr.data.tables import as_bytes
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.registry import build, models_of
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.report.input_figures import DRAWN
from pfedlora_flwr.training import kinds
from pfedlora_flwr.training.kinds import IMAGES, KINDS, SERIES, TEXT, VECTORS, Kind

SHAPES = {IMAGES: (3, 16, 24), SERIES: (2, 12), VECTORS: (5,), TEXT: (7,)}
every = pytest.mark.parametrize("kind", KINDS, ids=str)
NUMBERS = tuple(kind for kind in KINDS if kind != TEXT)
of_numbers = pytest.mark.parametrize("kind", NUMBERS, ids=str)
"""Kinds that arrays hold, and that models of ours take."""


@every
def test_a_shape_is_read_as_it_is_written(kind: Kind) -> None:
    shape = SHAPES[kind]
    assert kinds.read_shape(kind.write(shape)) == (kind, shape)
    if kind != TEXT:
        assert Task(2, shape, kind) == Task(2, shape), "the number of axes tells the kind"
    assert str(Task(2, shape, kind)) == kind.of(shape) == f"{kind} of {kind.write(shape)}"


@pytest.mark.parametrize(
    "text", ["", "x", "0", "3x7x8", "2x16x16", "1x2x3x4", "-1", "٣", "1x100000001", "9999999999"]
)
def test_what_is_no_shape_of_any_kind_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(UserError, match="CHANNELSxTIME of series, FEATURES of vectors"):
        kinds.read_shape(text)


@of_numbers
def test_an_example_is_of_the_kind_and_of_the_shape(kind: Kind) -> None:
    shape, rest = SHAPES[kind], (1,) * (len(SHAPES[kind]) - 1)
    mean = torch.linspace(0.1, 0.9, shape[0], dtype=kind.program).reshape(-1, *rest)
    std = mean + 1
    raw, given = kind.example(shape, 4, mean, std, torch.Generator().manual_seed(0))
    held = raw.numpy()
    assert kinds.of_inputs(held) == kind
    assert kind.shape_of(held) == shape
    assert given.dtype == kind.program
    assert given.shape == (4, *shape)
    taken = kind.taken(held)
    assert taken is not None
    assert np.array_equal(taken, held)
    assert all(other.taken(held) is None for other in KINDS if other != kind)

    # what a program normalises is what a model was trained on
    samples = kind.samples(raw, torch.zeros(4), mean.flatten().tolist(), std.flatten().tolist())
    seen = samples.batch(slice(None))
    assert seen.dtype == torch.float32
    torch.testing.assert_close(kind.normalised(given, mean, std), seen)


@of_numbers
def test_the_default_family_takes_what_the_kind_makes(kind: Kind) -> None:
    task = Task(3, SHAPES[kind], kind)
    for name in models_of(Experiment(), task):
        model = build(name, task).eval()
        assert model(task.blank(2)).shape == (2, 3)
        assert model(task.random(2, torch.Generator().manual_seed(0))).isfinite().all()


def test_texts_are_bytes_in_a_dataset_and_tokens_for_a_model() -> None:
    shape = SHAPES[TEXT]
    held = as_bytes("here", [" é a\0b ", "x" * 999], shape[0])
    assert kinds.of_inputs(held) == TEXT
    assert TEXT.shape_of(held) == shape
    assert [bytes(row).rstrip(b"\0") for row in held] == ["é a b".encode(), b"x" * 32 * 7]
    assert all(kind.taken(held) is None for kind in (*KINDS,) if kind != VECTORS)
    raw, given = TEXT.example(shape, 4, torch.ones(0), torch.ones(0), torch.Generator())
    assert torch.equal(raw, given)
    assert (given.dtype, given.shape) == (TEXT.program, (4, *shape))
    assert torch.equal(TEXT.samples(given, torch.zeros(4), (), ()).batch(slice(None)), given)
    with pytest.raises(UserError, match="models is auto; allowed for text: hf:FOLDER"):
        models_of(Experiment(), Task(3, shape, TEXT))


def test_every_kind_is_drawn() -> None:
    assert set(DRAWN) == set(KINDS)
