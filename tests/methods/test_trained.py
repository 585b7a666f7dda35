"""What a client trains: under every method, in every form of a model, exactly what `train` promises
moves. What is promised is told here by names, not by what the models say of themselves."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pfedlora_flwr.config import run_config
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.trainable import check_trainable
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.kept import kept
from tests import plain
from tests.conftest import made_once, needs
from tests.models.bases import base, documents, text_base
from tests.plain import Plain

pytestmark = needs("peft")
OWN = "tests.methods.own_forms"
FORMS: dict[str, dict[str, Any]] = {
    "parted": {"models": f"{OWN}:Parted"},
    "parts": {"models": f"{OWN}:Parts"},
    "whole": {"models": f"{OWN}:Whole"},
    "parted-neck": {"models": f"{OWN}:Parted", "neck": "always"},
    "whole-neck": {"models": f"{OWN}:Whole", "neck": "always"},
    "parted-normed": {"models": f"{OWN}:Parted", "representation-norm": "layer"},
    "partly-frozen": {"models": f"{OWN}:PartlyFrozen"},
    "two-widths": {"models": f"{OWN}:Parted,{OWN}:Wide", "setting": "heterogeneous"},
    "cnn": {"models": "cnn5"},
    "vit": {},
    "efficientnet": {},
    "text": {"data.text-column": "message", "max-tokens": 16, "lora.targets": "value"},
}
KINDS = (
    "standalone pfedlora fedproto fedavg fedrep fedbabu fedrod ditto apfl fml fedmrl pfedafm fedit"
    " ffa_lora rolora flora feddpa fedalt"
)
"""One method of each kind, by what it trains."""
FEW = "standalone fedrep apfl fml feddpa"
"""Of those: one whose parts take turns, and three with a second model, a smaller one and a second
LoRA."""
REFUSED = (
    "exchanges LoRA, and train is|needs images|nothing of it is trained|begins at random|"
    "needs the same model at all clients|LoRA's products inside one base|peft's files have no place"
)
"""What a method and a form say that are not for each other."""
APART = ("small.", "gate.", "projector.", "projection.", "personal.", "adapter.")
"""Parts beside the client's own model: trained as a whole whatever `train` is."""
_HEAD = re.compile(r"(^|\.)(head|last|neck|fc3)\.(weight|bias)$")
_OWN_FROZEN = re.compile(r"\.encoder\.2\.(base_layer\.)?(weight|bias)$")
NOT_JUDGED = ("alpha", "visits", "weights.", "lora_gate.there", "num_batches_tracked")


LIBRARY = ("vit", "efficientnet", "text")
SUITE = {"parted": KINDS, "whole": KINDS} | dict.fromkeys(LIBRARY, "standalone")
"""By form, where those of the suite are not FEW."""


def _cells() -> list[Any]:
    """Quick: LoRA in an encoder with its head, and a part that a user froze, under all methods.
    Slow: those of the suite. The rest by `make methods-test`, of a library's models each kind
    alone. Methods of sums train nothing."""
    cells = []
    trained = [name for name in registry.NAMES if name not in plain.SUMS]
    for form, train, name in itertools.product(FORMS, ("all", "head", "lora"), trained):
        if form in LIBRARY and name not in KINDS.split():
            continue
        slow = name in SUITE.get(form, FEW).split()
        marks = [pytest.mark.slow if slow else pytest.mark.methods]
        quick = form == "parted" and (train == "lora" or name == "standalone")
        quick |= (form, train) == ("partly-frozen", "all")
        cells.append(pytest.param(form, train, name, marks=[] if quick else marks))
    return cells


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The keys of the forms whose weights are files."""
    found: dict[str, dict[str, Any]] = {}

    def make(folder: Path) -> None:
        for name in ("test_vit", "test_efficientnet"):
            base(folder, name)
        text_base(folder)
        documents(folder / "docs.csv")

    folder = made_once(tmp_path_factory, "frozen-forms", make)
    for name in ("vit", "efficientnet"):
        found[name] = {"models": f"timm:test_{name}:weights={folder}/test_{name}-0.safetensors"}
    found["text"] = {"models": f"hf:{folder}/bert-32-3", "dataset": f"csv:{folder}/docs.csv"}
    return found


def keys_of(form: str, train: str, method: str, weights: dict[str, dict[str, Any]]) -> Any:
    keys = {"dataset": "synthetic:40", "partition.kind": "iid", "clients": 2, "device": "cpu"}
    keys |= {"batch-size": 8, "local-epochs": 2, "setting": "homogeneous", "lr": 0.05}
    if form not in LIBRARY:
        keys |= {"lora.targets": "encoder.2,encoder.4", "representation-width": 8}
    if form.startswith("whole"):
        keys["lora.targets"] = "body.2,body.4"
    keys |= FORMS[form] | weights.get(form, {}) | {"method": method, "train": train}
    keys |= {"lora.rank": 2, "fedmrl.representation-dim": 4, "adapter.hidden-dim": 4}
    options: dict[str, tuple[str, ...]] = {"fedmrl.representation-dim": ("fedmrl",)}
    options |= {"adapter.hidden-dim": ("pfedlora", "pfedlora_plus")}
    return {k: v for k, v in keys.items() if method in options.get(k, (method,))}


def promised(name: str, form: str, train: str, method: str) -> bool:
    """Whether docs/lora.md and docs/methods.md say that this tensor of a client's module moves."""
    if train == "lora" and method in ("flora", "fedex_lora") and "base_layer" in name:
        return name.endswith(".weight")
    if name.startswith("first_head.") or (form == "partly-frozen" and _OWN_FROZEN.search(name)):
        return False
    if name.startswith(APART) or _HEAD.search(name):
        return True
    if ".lora_" in name:
        return method != "ffa_lora" or "lora_A" not in name
    return train == "all"


@pytest.mark.slow
@pytest.mark.parametrize(("form", "train", "method"), _cells())
def test_exactly_what_is_promised_moves(
    form: str,
    train: str,
    method: str,
    weights: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    keys = keys_of(form, train, method, weights)
    if form == "text":
        monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path))
        monkeypatch.setattr(plain, "make", lambda e: Setup(e).method)
    try:
        of = Plain(keys)
        modules = {k: of.model(k) for k in range(2)}
    except UserError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert re.search(REFUSED, refused), refused
        return
    if form == "cnn":  # its first body is drawn, and may come with the first download
        of.train(1)
    before = {k: {n: t.clone() for n, t in m.state_dict().items()} for k, m in modules.items()}
    flags = {k: [p.requires_grad for p in m.parameters()] for k, m in modules.items()}
    of.train(2)  # a method that trains its parts in turn has had all its turns
    for k, module in modules.items():
        judged = {
            name: not torch.equal(tensor, before[k][name])
            for name, tensor in module.state_dict().items()
            if not any(part in name for part in NOT_JUDGED)
        }
        wanted = {name: promised(name, form, train, method) for name in judged}
        assert judged == wanted
        assert [p.requires_grad for p in module.parameters()] == flags[k]


@pytest.mark.slow
def test_encoder_and_head_have_the_accuracies_of_the_same_layers_as_one_module() -> None:
    """To the bit, and FedIT takes both: their base is the same at all clients."""
    for method in ("standalone", "fedit", "feddpa", "lg_fedavg"):
        found = []
        for form in ("parted", "parts", "whole"):
            keys = keys_of(form, "lora", method, {}) | {"local-epochs": 1}
            check_trainable(run_config(keys))
            of = Plain(keys)
            of.train(2)
            found.append((of.accuracy(), *kept(of.models[0]).values()))
        for other in found[1:]:
            assert other[0] == found[0][0]
            assert all(map(torch.equal, other[1:], found[0][1:]))
