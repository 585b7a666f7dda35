"""What reaches a prediction: two different downloads leave two different models, or a line says
that they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.reach import reaches, unreached
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.kept import kept
from tests.models.bases import base
from tests.plain import LORA, SUMS, Plain, make

THROUGH_THE_ENCODER = {"pfedlora", "fedproto", "fedtgp", "fedorgp"}
"""Methods whose shared part acts on an encoder, or on what stands before the head, alone."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("timm")
    return base(tmp_path_factory.mktemp("bases"), "test_efficientnet")


ONE_OF_EACH = ("standalone", "pfedlora", "fedtgp", "fedrep", "fml", "fedit", "fedncm")
"""One method of each kind is tried in every way, the others by `make methods-test`."""
CELLS = [
    pytest.param(
        name, trained, marks=pytest.mark.slow if name in ONE_OF_EACH else pytest.mark.methods
    )
    for name in registry.NAMES
    for trained in ("all", "head", "neck", "logits", "lora")
]


@pytest.mark.parametrize(("name", "trained"), CELLS)
def test_two_downloads_leave_two_models_or_it_is_said(name: str, trained: str, model: str) -> None:
    keys: dict[str, object] = {"method": name, "models": model, "clients": 3, "local-epochs": 2}
    keys |= {"train": trained if trained in ("all", "lora") else "head"}
    if trained == "neck":
        keys |= {"neck": "always", "representation-width": 128}
    if trained == "logits":
        keys |= {"representation": "pretrained-logits"}
    if name == "pfedlora_plus":
        keys |= {"adapter.hidden-dim": 16}
    if name == "fedmrl":
        keys |= {"fedmrl.representation-dim": 16}
    if name in LORA and trained != "lora":
        with pytest.raises(UserError, match="exchanges LoRA, and train is"):
            from_flat(keys)
        return
    if name in SUMS and trained in ("all", "lora", "neck"):
        with pytest.raises(UserError, match=f"allowed with {name}: (head|auto), because"):
            from_flat(keys)
        return
    method = make(from_flat(keys))
    if trained in ("head", "logits") and name in ("fedper", "fedrep", "fedbabu"):
        with pytest.raises(UserError, match="nothing of it is trained"):
            reaches(method, 0)
        return
    silent = trained in ("head", "logits") and name in THROUGH_THE_ENCODER
    assert reaches(method, 0) == (not silent and name != "standalone")
    said = (
        f"{model.split('weights=')[0]}weights={Path(model.split('weights=')[1]).name} (train=head"
    )
    assert [line.startswith(said) for line in unreached(method)] == ([True] if silent else [])


@pytest.mark.slow
def test_pfedlora_is_then_standalone_at_half_the_rate_to_the_bit(model: str) -> None:
    """μ = 0.5 scales the head's gradient by a power of two."""
    keys = {"models": model, "train": "head", "partition.kind": "iid", "clients": 2}
    keys |= {"dataset": "synthetic:60", "batch-size": 8, "local-epochs": 2}
    shared = Plain(keys, method="pfedlora", lr=0.2, mu=0.5)
    alone = Plain(keys, method="standalone", lr=0.1)
    for federation in (shared, alone):
        federation.train(2)
    for client, own in alone.models.items():
        trained = kept(own)
        assert set(trained) == {"last.weight", "last.bias"}
        same = kept(shared.models[client])
        assert all(torch.equal(tensor, same[name]) for name, tensor in trained.items())


def test_standalone_and_models_that_train_more_than_their_head_are_not_tried(model: str) -> None:
    for keys in ({"method": "standalone", "train": "head"}, {"method": "pfedlora"}):
        assert unreached(make(from_flat({"models": model, **keys}))) == []


@pytest.mark.slow
def test_only_the_clients_whose_head_learns_alone_are_named(model: str) -> None:
    method = make(from_flat({"models": f"{model},cnn1", "train": "head,all"}))
    names = unreached(method)
    assert names == [], "the neck that a method needs is trained"
    assert unreached(make(from_flat({"models": model, "train": "lora"}))) == []
    method = make(from_flat({"models": "cnn1,cnn2", "train": "head,all"}))
    assert unreached(method) == ["cnn1 (train=head)"]


@pytest.mark.slow
def test_a_run_says_so_before_it_starts(pfedlora, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = ("-o", "train=head", "-o", "dataset=synthetic:200", "-o", "models=cnn5")
    code, out, err = pfedlora("run", "--dry-run", *words)
    assert code == 0, err
    assert (
        "warning: pfedlora trains clients of cnn5 (train=head) as standalone does: nothing before"
        " their head is trained, and what is shared cannot reach a prediction; the ways out:"
        " neck=always, "
    ) in out
    code, out, _ = pfedlora("run", "--dry-run", *words, "-o", "neck=always")
    assert code == 0
    assert "warning" not in out
