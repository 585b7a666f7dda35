"""A kind of input: its texts, its arrays and its tensors agree with one another, for all kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.registry import build, names_of
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.report.input_figures import DRAWN
from pfedlora_flwr.training import kinds
from pfedlora_flwr.training.kinds import IMAGES, KINDS, SERIES, VECTORS, Kind

SHAPES = {IMAGES: (3, 16, 24), SERIES: (2, 12), VECTORS: (5,)}
every = pytest.mark.parametrize("kind", KINDS, ids=str)


@every
def test_a_shape_is_read_as_it_is_written(kind: Kind) -> None:
    shape = SHAPES[kind]
    assert kinds.read_shape(kind.write(shape)) == (kind, shape)
    assert Task(2, shape, kind) == Task(2, shape), "the number of axes tells the kind"
    assert str(Task(2, shape)) == kind.of(shape) == f"{kind} of {kind.write(shape)}"


@pytest.mark.parametrize(
    "text", ["", "x", "0", "3x7x8", "2x16x16", "1x2x3x4", "-1", "٣", "1x100000001", "9999999999"]
)
def test_what_is_no_shape_of_any_kind_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(UserError, match="CHANNELSxTIME of series, FEATURES of vectors"):
        kinds.read_shape(text)


@every
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


@every
def test_the_default_family_takes_what_the_kind_makes(kind: Kind) -> None:
    task = Task(3, SHAPES[kind], kind)
    for name in names_of(Experiment(), task):
        model = build(name, task).eval()
        assert model(task.blank(2)).shape == (2, 3)
        assert model(task.random(2, torch.Generator().manual_seed(0))).isfinite().all()


def test_every_kind_is_drawn() -> None:
    assert set(DRAWN) == set(KINDS)
