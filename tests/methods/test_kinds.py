"""Every method on every kind of input, with models of several widths, some of them with batch
normalisation."""

from __future__ import annotations

import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Upload
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import TEXT
from pfedlora_flwr.training.loop import Samples
from tests.plain import ANY_MODEL, SUMS, visit

LIBRARY = "timm:test_resnet,timm:test_efficientnet,cnn5"
KINDS = {
    "images": (Task(3, (1, 32, 32)), LIBRARY),
    "series": (Task(3, (6, 20)), "conv1d2,conv1d5,tests.models.modules:Recurrent"),
    "vectors": (Task(3, (9,)), "mlp2,mlp5,tests.models.modules:Normalised"),
}
REFUSED = {
    ("pfedes", "series"): r"method pfedes needs images, and the inputs are series \[6, 20\]",
    ("pfedes", "vectors"): r"method pfedes needs images, and the inputs are vectors \[9\]",
}
"""What a method does not take, and the line that says so."""


TRAINED = [name for name in ANY_MODEL if name not in SUMS]
"""The others: tests/methods/test_sums.py."""
SUITE = {
    "images": "pfedlora fedkd",
    "series": "pfedlora fedkd pfedmoe fedavg pfedes",
    "vectors": " ".join(TRAINED),
}
"""Methods that stand for the others but in `make methods-test`."""
CELLS = [
    pytest.param(name, kind, marks=() if name in names.split() else pytest.mark.methods)
    for name in TRAINED
    for kind, names in SUITE.items()
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_a_method_trains_on_a_kind_or_says_in_a_line_why_not(name: str, kind: str) -> None:
    task, models = KINDS[kind]
    keys = {
        "method": name,
        "models": models,
        "clients": 3,
        "batch-size": 4,
        "fedtgp.server-epochs": 2,
        "fedmrl.representation-dim": 7,
    }
    if registry.find(name).one_model:
        with pytest.raises(UserError, match=f"{name} needs the same model at all clients"):
            from_flat(keys)
        keys["models"] = models.split(",")[-3 if kind == "images" else -1]
    if (name, kind) in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name, kind]):
            registry.make(from_flat(keys), task)
        return
    two_rounds(registry.make(from_flat(keys), task))


def two_rounds(method: Method) -> None:
    """All clients train, what they send is admitted, what they keep can be taken up again, and
    every predictor gives its scores."""
    task, clients = method.task, range(method.experiment.clients)
    state = method.state_init(1)
    models = {k: method.private_init(k, 2) for k in clients}
    for round in (1, 2):
        uploads: dict[int, Upload] = {}
        for k in clients:
            data = samples(task, 8, seed=k)
            received = method.download(state, k, round)
            uploads[k] = method.local_update(
                models[k].train(), received, data, visit(method.experiment, k, round)
            )
            method.check(uploads[k], state, k)
            for predict in (
                lambda x, k=k: method.predictor(models[k])(x),
                *method.other_predictors(models[k].eval(), received).values(),
            ):
                assert predict(data.inputs).shape == (8, task.classes)
        state = method.aggregate(uploads, state, round)
    for tensors in [
        state,
        *(upload.tensors for upload in uploads.values()),
        *map(tensors_of, models.values()),
    ]:
        assert all(bool(t.isfinite().all()) for t in tensors.values())
    for k, model in models.items():
        method.private_init(k, 3).load_state_dict(model.state_dict())
        assert method.shared_width == method.predictor(model).width or not method.one_width


def samples(task: Task, n: int, seed: int) -> Samples:
    inputs = torch.randn(n, *task.shape, generator=torch.Generator().manual_seed(seed))
    return Samples(inputs, torch.arange(n) % task.classes)


@pytest.mark.parametrize("name", [name for name in registry.NAMES if registry.find(name).one_width])
def test_necks_stand_where_a_method_needs_one_width_and_models_have_another(name: str) -> None:
    keys = {
        "method": name,
        "models": "cnn5,tests.methods.narrow:Narrow",
        "adapter.kind": "decomposed",
    }
    for width in (500, 40):
        method = registry.make(from_flat(keys | {"representation-width": width}), Task(10))
        own = [method.predictor(method.private_init(k, 0)) for k in range(2)]
        locals_ = [getattr(model, "local", model) for model in own]
        assert [model.width for model in locals_] == [width, width] == [method.shared_width] * 2
        assert locals_[0].description == "cnn5"  # made at that width, without a neck
        assert (
            locals_[1].description == f"tests.methods.narrow:Narrow with a neck from 16 to {width}"
        )
        added = sum(p.numel() for p in locals_[1].parameters()) - (3072 * 16 + 16)
        assert added == 16 * width + width + width * 10 + 10
    alike = registry.make(from_flat(keys | {"models": "tests.methods.narrow:Narrow"}), Task(10))
    assert alike.built_width is None
    assert alike.shared_width == 16


@pytest.mark.parametrize("name", ["fedgh", "fedre", "fedssa", "lg_fedavg"])
def test_one_last_layer_has_a_bias_with_all_or_with_none(name: str) -> None:
    keys = {"method": name, "models": "tests.models.modules:Unbiased,mlp5", "clients": 2}
    with pytest.raises(
        UserError,
        match=(
            r"cannot fit some with a bias and some without \(tests.models.modules:Unbiased without,"
            r" mlp5 with\)"
        ),
    ):
        registry.make(from_flat(keys), Task(3, (9,))).state_init(0)
    alike = registry.make(
        from_flat(keys | {"models": "tests.models.modules:Unbiased"}), Task(3, (9,))
    )
    two_rounds(alike)


def test_what_cannot_be_shared_or_weighed_is_said() -> None:
    for name in ("pfedmoe", "pfedafm"):
        with pytest.raises(
            UserError,
            match=r"smallest client model, tests.*:Logistic, trains its last layer alone",
        ):
            registry.make(
                from_flat({"method": name, "models": "tests.models.modules:Logistic"}),
                Task(3, (9,)),
            ).state_init(0)
    with pytest.raises(
        UserError, match="method pfedmoe normalises each input by itself, and these have 1 number"
    ):
        registry.make(from_flat({"method": "pfedmoe"}), Task(3, (1,))).state_init(0)
    method = registry.make(from_flat({"method": "pfedmoe"}), Task(3, (16,)))
    method.task = Task(3, (16,), TEXT)  # models of texts are in a folder
    with pytest.raises(UserError, match=r"method pfedmoe .* tokens are no quantities; allowed"):
        method.state_init(0)
