"""Five models for each kind of input, of different size with one width; CNNs for images of any
size."""

from __future__ import annotations

import itertools

import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.models.registry import build, models_of
from pfedlora_flwr.models.task import Task

TASKS = [Task(3, (1, 64, 48)), Task(4, (6, 50)), Task(2, (9,))]
PARAMETERS = {
    "images": {
        "cnn1": (
            13 * 9 * 32 * 2000
            + 2000
            + (1 * 25 * 16 + 16)
            + (16 * 25 * 32 + 32)
            + 2000 * 500
            + 500
            + 500 * 3
            + 3
        )
    },
    "series": {
        "conv1d5": (
            12 * 32 * 128
            + 128
            + (6 * 5 * 16 + 16)
            + (16 * 5 * 32 + 32)
            + 128 * 128
            + 128
            + 128 * 4
            + 4
        )
    },
    "vectors": {"mlp2": 9 * 128 + 128 + 128 * 512 + 512 + 512 * 128 + 128 + 128 * 2 + 2},
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind.name)
def test_a_family_has_five_sizes_one_width_and_two_places_to_part(task: Task) -> None:
    names = models_of(from_flat({}), task)
    models = [build(name, task) for name in names]
    sizes = {
        str(name): sum(p.numel() for p in model.parameters())
        for name, model in zip(names, models, strict=True)
    }
    assert all(larger > smaller for larger, smaller in itertools.pairwise(sizes.values()))
    for name, expected in PARAMETERS[task.kind.name].items():
        assert sizes[name] == expected
    assert len({model.width for model in models}) == 1
    x = torch.randn(3, *task.shape)
    for spec, model in zip(names, models, strict=True):
        logits = model(x)
        assert logits.shape == (3, task.classes)
        assert model.encode(x).shape == (3, model.width)
        assert torch.equal(model.head(model.encode(x)), logits)
        assert model.trunk(x).shape == (3, model.trunk_width)
        assert torch.equal(model.rest(model.trunk(x)), logits)
        assert build(spec, task, 7).encode(x).shape == (3, 7)
    assert models_of(from_flat({"setting": "homogeneous"}), task) == names[:1]


def test_a_reduced_adapter_stands_after_fc1_of_any_family() -> None:
    experiment = from_flat({"setting": "homogeneous", "adapter.hidden-dim": 10})
    assert [PFedLoRA(experiment, task).state_init(0)["down.weight"].shape[1] for task in TASKS] == [
        2000,
        512,
        512,
    ]


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        (
            "cnn1",
            Task(2, (3, 15, 40)),
            "model 'cnn1' takes images of at least 16 × 16, and they are 15 × 40",
        ),
        (
            "conv1d3",
            Task(2, (2, 3)),
            "model 'conv1d3' takes series of at least 4 steps, and they have 3",
        ),
        (
            "mlp1",
            Task(2),
            (
                r"model 'mlp1' is for vectors, and the inputs are images \[3, 32, 32\]; allowed:"
                r" cnn1, cnn2, cnn3, cnn4, cnn5, "
            ),
        ),
        ("cnn2", Task(2, (9,)), r"for images, and the inputs are vectors \[9\]; allowed: mlp1, "),
        ("cnn", Task(2, (2, 90)), "models names 'cnn'; allowed: conv1d1, "),
    ],
)
def test_a_model_that_does_not_fit_the_inputs_is_one_line(
    name: str, task: Task, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        build(name, task)
    for smallest in (Task(2, (3, 16, 16)), Task(2, (2, 4)), Task(2, (1,))):
        for own in models_of(from_flat({}), smallest):
            assert build(own, smallest)(smallest.blank(1)).shape == (1, 2)
