"""Encoders that share no classifier are mapped onto one reference by public inputs
(`representation=anchors:FILE`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError, permissions
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.models import anchored
from pfedlora_flwr.models.anchored import Anchors
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.pretrained import frozen_encoder, with_outputs
from pfedlora_flwr.models.registry import build, check_allowed, facts
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from pfedlora_flwr.site.policy import Policy
from pfedlora_flwr.training.loop import Samples, infer
from tests.conftest import Call, keys_in, run_locally
from tests.models.bases import base
from tests.test_joining import serve, sites  # noqa: F401

pytest.importorskip("timm")
NAMES = "test_resnet", "test_efficientnet"


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(pfedlora: Call, models: str, *more: str) -> str:
    """The representation by anchors of which the first model is the reference."""
    words = ("--anchors", "synthetic:150", "--reference", models.split(",")[0])
    code, out, err = pfedlora("align", *words, "--samples", "90", "--output", "a.anchors", *more)
    assert code == 0, err
    assert "90 anchors written" in out
    return f"anchors:{Path('a.anchors').absolute()}"


@pytest.mark.parametrize("n", [30, 200], ids=["fewer than wide", "more"])
def test_the_map_is_the_ridge_regression_of_scikit_learn(n: int) -> None:
    draws = np.random.default_rng(0)
    own, reference = draws.normal(2, 1, (n, 60)), draws.normal(size=(n, 40))
    shift, matrix = anchored.mapped(torch.tensor(own), torch.tensor(reference), 0.3)
    centred = own - own.mean(0)
    strength = 0.3 * np.diag(centred @ centred.T).mean()
    wanted = Ridge(alpha=strength, fit_intercept=False).fit(centred, reference - reference.mean(0))
    np.testing.assert_allclose(matrix.numpy(), wanted.coef_.T, atol=1e-10)
    np.testing.assert_allclose(shift.numpy(), own.mean(0))


@pytest.mark.slow
def test_representations_of_all_models_are_the_reference_s_as_far_as_anchors_tell(
    where: Path, pfedlora: Call
) -> None:
    models = [base(where, name) for name in NAMES]
    kind = written(pfedlora, ",".join(models), "--licence", "CC0")
    found = anchored.read(anchored.stamp_at(Path("a.anchors")))
    assert found.about["licence"] == "CC0"
    assert found.about["reference"] == "timm:test_resnet:weights=test_resnet-0.safetensors"
    task = Task(10, (3, 32, 32))
    reference = found.reference - found.reference.mean(0)
    inputs = torch.from_numpy(found.inputs).permute(0, 3, 1, 2) / 255
    away = {}
    for name in models:
        spec = ModelSpec(name, "head", kind, anchors_ridge=1e-6)
        model = build(spec, task).eval()
        assert model.width == facts(spec, task).width == reference.shape[1]
        made = anchored.named.made_with(name)
        assert made is not None
        mean, std = (torch.tensor(v)[:, None, None] for v in (made.mean, made.std))
        with torch.no_grad():
            got = model.encode((inputs - mean) / std)
        away[name] = float((got - reference).norm() / reference.norm())
        assert {*kept(model)} == {"last.weight", "last.bias"}, "the map is part of the base"
        assert [n for n, p in model.named_parameters() if p.requires_grad] == [
            "last.weight",
            "last.bias",
        ]
    assert max(away.values()) < 0.05, away


@pytest.mark.slow
def test_the_command_shows_how_common_coordinates_are_afterwards(
    where: Path, pfedlora: Call
) -> None:
    models = ",".join(base(where, name) for name in NAMES)
    words = ("-o", f"models={models}", "-o", "dataset=synthetic:200", "--json")
    alone = json.loads(pfedlora("align", *words, "--samples", "100")[1])
    assert alone["accuracy"][0][1] is None, "features of two widths"
    # of seven classes, by which no default partition can be made; anchors need none
    labels = np.arange(150) % 7
    images = np.zeros((150, 32, 32, 3), np.uint8)
    np.savez("alike.npz", images=images, labels=labels)
    images[:] = np.random.default_rng(0).integers(0, 256, images.shape)
    np.savez("own.npz", images=images, labels=labels)
    for name, fails in (("own", 0), ("alike", 1)):
        told = ("--reference", models.split(",")[0], "--output", name, "--samples", "100")
        code, _, err = pfedlora("align", "--anchors", f"npz:{name}.npz", *told)
        assert bool(code) == fails == ("error: the anchors' features are all alike" in err)
    told = ("--anchors", "synthetic:150", "--reference", models.split(",")[0], "--output", "a")
    code, out, err = pfedlora("align", *words, *told, "--samples", "100")
    assert code == 0, err
    found = json.loads(out)
    assert found["anchors"] == 100
    assert found["widths"] == [alone["widths"][0]] * 2
    assert found["correlation"][0][1] > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedlda", "fedproto", "pfedlora_plus"])
def test_methods_of_one_width_train_on_them_and_models_come_back(
    where: Path, pfedlora: Call, method: str
) -> None:
    models = ",".join(base(where, name) for name in NAMES)
    kind = written(pfedlora, models)
    keys: dict[str, Any] = keys_in(
        "train=head dataset=synthetic:120 clients=4 partition.kind=iid rounds=2 "
        "representation=anchors:a.anchors representation-norm=layer"
    ) | {"models": models, "method": method}
    if method == "pfedlora_plus":
        keys["adapter.down"] = "fixed"
    done = run_locally(where / "run", keys)
    assert done.code == 0, done.stderr
    run = RunDirectory(where / "run")
    assert run.experiment().representation == kind, "an absolute path"
    assert str(where) not in json.dumps(run.result())
    trained = load_trained(where / "run", 1)
    again = load_trained(where / "run", 1)
    pixels = np.zeros((3, 32, 32, 3), np.uint8)
    assert torch.equal(trained.logits(pixels), again.logits(pixels))
    # other anchors are another base
    anchors = anchored.read(anchored.stamp_at(Path("a.anchors")))
    anchored.write(Path("a.anchors"), Anchors(anchors.inputs[:50], anchors.reference[:50], {}))
    with pytest.raises(UserError, match=r"was trained on the base timm:.*anchors sha256:"):
        load_trained(where / "run", 1)


@pytest.fixture
def by_anchors(where: Path, pfedlora: Call) -> dict[str, Any]:
    """The keys of a run by anchors that are written."""
    models = base(where, "test_resnet")
    kind = written(pfedlora, models)
    return {"models": models, "train": "head", "representation": kind, "method": "fedlda"}


@pytest.mark.slow
def test_a_node_has_its_own_copy_of_the_anchors_and_no_other_file(
    where: Path,
    by_anchors: dict[str, Any],
    sites: list[dict[str, Any]],  # noqa: F811
) -> None:
    keys, nodes = by_anchors, sites
    for k, node in enumerate(nodes):
        own = where / f"copy{k}"
        shutil.copy("a.anchors", own)
        node |= {"anchors": str(own), "weights-root": str(where), "policy": str(where / "rules")}
    (where / "rules").write_text("")
    here, there = (serve(where / name, nodes, **keys) for name in ("one", "two"))
    assert here["models_sha256"] == there["models_sha256"]
    found = anchored.read(anchored.stamp_at(Path("copy2")))
    anchored.write(Path("copy2"), Anchors(found.inputs[:50], found.reference[:50], {}))
    with pytest.raises(RunFailed, match="1 turned away: its base is 'anchors sha256:"):
        serve(where / "three", nodes, **keys | {"node-timeout": 1})


@pytest.mark.slow
def test_outputs_of_the_encoder_before_a_map_are_kept(where: Path, pfedlora: Call) -> None:
    models = base(where, "test_resnet")
    said = ModelSpec(models, "head", written(pfedlora, models), representation_norm="layer")
    model = build(said, Task(10, (3, 32, 32)))
    encoder = frozen_encoder(model)
    assert encoder is not None
    inputs = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    samples = Samples(inputs, torch.zeros(5, dtype=torch.int64))
    fails = mock.patch.object(encoder.module, "forward", side_effect=AssertionError)
    with fails, pytest.raises(AssertionError):
        infer(model.encode, samples)
    wanted = infer(model.encode, samples)
    known = with_outputs(samples, encoder)
    with fails:
        assert torch.equal(infer(model.encode, known), wanted)


@pytest.mark.slow
def test_a_node_takes_the_anchors_that_the_server_sends(
    where: Path,
    by_anchors: dict[str, Any],
    sites: list[dict[str, Any]],  # noqa: F811
) -> None:
    keys, nodes = by_anchors | {"node-timeout": 1}, sites
    here = serve(where / "one", nodes, **keys)
    for k, node in enumerate(nodes):
        of = {"anchors": "sent", "state-path": str(where / f"state{k}")}
        node |= of | {"weights-root": str(where / "weights")}
    with pytest.raises(RunFailed, match=r"the run sends none: set anchors\.send"):
        serve(where / "none", nodes, **keys)
    there = serve(where / "two", nodes, **keys, **{"anchors.send": 1})
    assert here["models_sha256"] == there["models_sha256"]
    kept = sorted((where / "state2" / "anchors").iterdir())
    assert [file.is_symlink() for file in kept] == [False, True]
    assert kept[0].read_bytes() == kept[1].read_bytes() == Path("a.anchors").read_bytes()


@pytest.mark.slow
def test_what_cannot_be_anchors_is_one_line(where: Path, pfedlora: Call) -> None:
    models = base(where, "test_resnet")
    kind = written(pfedlora, models)
    task = Task(10, (3, 32, 32))
    with pytest.raises(UserError, match="are images of 3x32x32, the data images of 3x48x48"):
        build(ModelSpec(models, "head", kind), Task(10, (3, 48, 48)))
    with pytest.raises(UserError, match="anchors 'none': No such file or directory; `pfedlora"):
        build(ModelSpec(models, "head", "anchors:none"), task)
    Path("noise").write_bytes(b"noise" * 100)
    with pytest.raises(UserError, match=r"anchors .*noise' cannot be read"):
        build(ModelSpec(models, "head", "anchors:noise"), task)
    with pytest.raises(UserError, match="model 'cnn1' has no library's weights"):
        build(ModelSpec("cnn1", "head", kind), task)
    for keys, told in (
        ({"train": "all"}, f"train is all; allowed with representation={kind}: head"),
        ({"train": "head", "normalise": "federation"}, "normalise is federation; allowed: auto or"),
        ({"anchors.ridge": 0}, "anchors.ridge is 0"),
    ):
        with pytest.raises(UserError) as error:
            from_flat({"representation": kind, "models": models} | keys)
        assert told in str(error.value).replace("'", "")
    few = ("--anchors", "synthetic:150", "--reference", models, "--output", "b", "--samples", "9")
    assert pfedlora("align", *few)[2] == "error: 9 anchors; allowed: at least 10\n"
    code, _, err = pfedlora("align", "--anchors", "synthetic:150", "--reference", "cnn1")
    assert code == 2
    assert "anchors is set; expected reference=MODEL and output=FILE, too" in err
    with permissions.held(permissions.of_server()), pytest.raises(UserError, match="names"):
        check_allowed(ModelSpec("cnn1", "head", kind))
    there = {"anchors": "sent", "state-path": "/state"}
    with permissions.held(Policy.of_node(there).permissions()):
        check_allowed(ModelSpec("cnn1", "head", "anchors:/state/anchors/run-1"))
        with pytest.raises(UserError, match="representation names"):
            check_allowed(ModelSpec("cnn1", "head", "anchors:/state/run-1"))
    own = Policy.of_node({"data-path": "/state/anchors"}).permissions()
    with permissions.held(own), pytest.raises(UserError, match="representation names"):
        check_allowed(ModelSpec("cnn1", "head", "anchors:/state/anchors/run-1"))
    with pytest.raises(UserError, match="anchors is sent; allowed with it: a state-path"):
        Policy.of_node({"anchors": "sent"})
