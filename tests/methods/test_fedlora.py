"""The methods that exchange LoRA: the properties that federated LoRA must have, on layers that are
not square, with s ≠ 1, against dense products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import lora_factors, registry
from pfedlora_flwr.methods.lora_factors import A, B
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.models import lora
from pfedlora_flwr.models.kept import kept
from tests.conftest import Call, keys_in, needs, run_locally
from tests.methods.own_forms import MIXED, TARGETS
from tests.models.bases import base
from tests.plain import LORA, Plain, make, of_each, samples, visit

pytestmark = [needs("timm", "peft"), pytest.mark.slow]
DATA = samples([0, 1, 2, 3] * 4)
MEANS = tuple(name for name in LORA if registry.find(name).averages)
"""Methods that average factors."""
ANY_RANK = ("flexlora", "flora")
LAYERS = {MIXED: TARGETS, "test_efficientnet": "conv_stem,conv_pwl"}


@pytest.fixture(scope="module", params=of_each((MIXED, "test_vit", "test_efficientnet"), MIXED))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Linear layers, of a library 3 d × d; convolutions of 1×1 and 3×3."""
    name: str = request.param
    return name if name == MIXED else base(tmp_path_factory.mktemp("bases"), name)


def method(name: str, model: str, **keys: object) -> Any:
    own = {"method": name, "batch-size": 8, "lora.rank": "4", "lora.alpha": 6}
    return make(from_flat(adapted(model) | own | keys))


def adapted(model: str) -> dict[str, object]:
    targets = next((said for name, said in LAYERS.items() if name in model), "auto")
    return {"models": model, "train": "lora", "lora.targets": targets, "clients": 3}


def uploads(of: Any, seed: int = 1, round: int = 1) -> dict[int, Upload]:
    """Random ones of clients with 7, 100 and 13 samples, as round 1 has them."""
    draws = torch.Generator().manual_seed(seed)
    found = {}
    for k, n in enumerate((7, 100, 13)):
        layout = of.renewed(of.layouts[of.model_of(k)], round)
        found[k] = Upload(
            {name: torch.randn(t.shape, generator=draws) for name, t in layout.items()}, n
        )
    return found


def function(of: Any, state: Tensors, client: int = 4, round: int = 2) -> dict[str, torch.Tensor]:
    """ΔW of each layer that a client computes with what it receives, written out; of fedalt, of a
    client that has sent nothing, what it receives of the others."""
    got = {
        n.replace(".rest.", ".default."): t for n, t in of.download(state, client, round).items()
    }
    fixed = of.first_factors if of.experiment.method == "ffa_lora" else {}
    scale = lora_factors.scale_of(of.model_of(client))
    whole = dense({n: t for n, t in (fixed | got).items() if A in n or B in n}, scale)
    for name, tensor in got.items():
        place, _, what = name.rpartition(".")
        if what in ("left", "dense"):
            right = got[f"{place}.right"] if what == "left" else torch.eye(tensor.shape[1])
            at = f"{place}{A}default.weight"
            whole[at] = whole.get(at, 0.0) + tensor.double() @ right.double()
    return whole


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two functions are the same, up to float32."""
    size = distance(other, {name: 0 * tensor for name, tensor in other.items()})
    return one.keys() == other.keys() and distance(one, other) <= 2e-6 * size


def dense(tensors: Tensors, scale: float) -> dict[str, torch.Tensor]:
    """ΔW of each layer, written out."""
    return {
        name: scale
        * tensors[name.replace(A, B)].double().flatten(1)
        @ tensors[name].double().flatten(1)
        for name in tensors
        if A in name
    }


def mean_of(of: Any, sent: dict[int, Upload]) -> dict[str, torch.Tensor]:
    """ΔW* = Σ p_k s_k B_k A_k."""
    every = [
        (one.samples / 120, dense(one.tensors, lora_factors.scale_of(of.model_of(k))))
        for k, one in sent.items()
    ]
    return {name: sum(p * d[name] for p, d in every) for name in every[0][1]}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum((one[n] - other[n]).square().sum() for n in one) ** 0.5)


def test_weights_that_each_client_draws_are_no_base(pfedlora: Call) -> None:
    """Ranks that differ are other models, which begin each by itself."""
    keys = {"models": "timm:test_vit", "train": "lora", "clients": 2, "partition.kind": "iid"}
    keys |= {"dataset": "synthetic:60", "rounds": 1, "output": "run"}
    for more, code in (
        ({"method": "fedit"}, 2),
        ({"method": "fedit", "initial-models": "architecture"}, 0),
        ({"method": "flexlora", "lora.rank": "2,4", "initial-models": "architecture"}, 2),
    ):
        words = [w for name, value in (keys | more).items() for w in ("-o", f"{name}={value}")]
        ended, _, err = pfedlora("run", "--dry-run", *words)
        assert ended == code, err
        said = "are drawn at random: give models weights of others, or all clients one model"
        assert (said in err) == (code == 2)


@pytest.mark.parametrize("name", ["fedit", "flexlora", "fedex_lora"])
def test_a_client_receives_the_lora_of_a_folder_first(
    name: str, model: str, tmp_path: Path
) -> None:
    """With s = 1.5."""
    trained = method(name, model).client_model(0)
    draws = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for one, p in trained.named_parameters():
            if B in one:
                p.copy_(torch.randn(p.shape, generator=draws))
    lora.write(trained, tmp_path, {})
    of = method(name, model, **{"lora.init": f"folder:{tmp_path}"})
    theirs = {n: p.detach() for n, p in trained.named_parameters() if A in n or B in n}
    assert same(function(of, of.state_init(3), client=0, round=1), dense(theirs, 1.5))


def test_what_fedit_misses_is_the_covariance_of_the_factors(model: str) -> None:
    fedit = method("fedit", model)
    sent, state = uploads(fedit), fedit.state_init(3)
    after = fedit.aggregate(sent, state, 1)
    for name, tensor in after.items():
        expected = sum(one.samples * one.tensors[name].double() for one in sent.values()) / 120
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)
    wanted = mean_of(fedit, sent)
    expected = distance(wanted, dense(after, 1.5)) / distance(wanted, dense(state, 1.5))
    assert expected > 0.1
    assert fedit.aggregation_error(sent, state, after) == pytest.approx(expected, rel=1e-5)


def test_the_mean_of_ffa_lora_is_exact(model: str) -> None:
    ffa = method("ffa_lora", model)
    sent, state = uploads(ffa), ffa.state_init(3)
    assert all(B in name for name in state)
    after = ffa.aggregate(sent, state, 1)
    whole = {k: Upload(ffa.first_factors | one.tensors, one.samples) for k, one in sent.items()}
    wanted, got = mean_of(ffa, whole), dense(ffa.first_factors | after, 1.5)
    assert distance(wanted, got) < 1e-5 * distance(wanted, {n: 0 * t for n, t in got.items()})
    assert ffa.aggregation_error(sent, state, after) < 1e-6


@pytest.mark.parametrize("sigma", ["b", "a", "both"])
def test_flexlora_hands_each_rank_its_best_approximation_of_the_mean(
    model: str, sigma: str
) -> None:
    keys = {"lora.rank": "2,4,6", "lora.alpha": 5, "flexlora.sigma": sigma}
    flex = method("flexlora", model, **keys)
    sent, state = uploads(flex), flex.state_init(3)
    after = flex.aggregate(sent, state, 1)
    wanted = mean_of(flex, sent)
    for name in (name for name in after if A in name):
        sizes = [after[name.replace(A, B)].norm(dim=0), after[name].norm(dim=1)]
        ones = torch.ones_like(sizes[0])
        expected = {"b": sizes[1], "a": sizes[0], "both": sizes[0] / sizes[1]}[sigma]
        torch.testing.assert_close(expected, ones, rtol=1e-4, atol=1e-4)
    cut = 0.0
    for k, rank in enumerate((2, 4, 6)):
        got = dense(flex.download(after, k, 2), 5 / rank)
        for name, whole in wanted.items():
            u, s, vt = torch.linalg.svd(whole, full_matrices=False)
            best = u[:, :rank] * s[:rank] @ vt[:rank]
            torch.testing.assert_close(got[name], best, rtol=1e-4, atol=1e-4)
            cut += float(s[6:].square().sum()) if rank == 6 else 0.0
    zero = {name: 0 * whole for name, whole in wanted.items()}
    expected = cut**0.5 / distance(wanted, zero)
    assert flex.aggregation_error(sent, state, after) == pytest.approx(expected, rel=1e-3)


def test_a_low_mean_leaves_the_other_rows_alive(model: str) -> None:
    """Rows of A beyond the mean's rank stay as they were drawn: at 0 they could not learn."""
    flex = method("flexlora", model, **{"lora.rank": "2,8", "lora.alpha": 4})
    state = flex.state_init(3)
    after = flex.aggregate({0: uploads(flex)[0]}, state, 1)
    for name in (name for name in state if A in name):
        assert torch.equal(after[name][2:], state[name][2:])
        assert not after[name.replace(A, B)][:, 2:].any()


@pytest.mark.parametrize("name", LORA)
def test_one_client_and_equal_uploads_leave_the_function(name: str, model: str) -> None:
    of = method(name, model)
    first, state = uploads(of)[0].tensors, of.state_init(3)
    for sent in ({0: Upload(first, 7)}, {0: Upload(first, 7), 2: Upload(first, 90)}):
        after = of.aggregate(sent, state, 1)
        if name == "fedsa_lora":
            torch.testing.assert_close(after, first)
        elif name in ("ffa_lora", "rolora"):
            whole = (of.first_factors if name == "ffa_lora" else state) | first
            assert same(function(of, after), dense(whole, 1.5))
        else:
            assert same(function(of, after), dense(first, 1.5))


@pytest.mark.parametrize("name", LORA)
def test_order_and_a_client_split_in_two_change_nothing(name: str, model: str) -> None:
    of = method(name, model)
    sent, state = uploads(of), of.state_init(3)
    after = of.aggregate(sent, state, 1)
    turned = of.aggregate({k: sent[k] for k in (2, 0, 1)}, state, 1)
    split = {0: sent[0], 1: Upload(sent[1].tensors, 60), 2: sent[2]}
    halved = of.aggregate(split | {3: Upload(sent[1].tensors, 40)}, state, 1)
    for other in (turned, halved):
        if name == "fedsa_lora":
            torch.testing.assert_close(other, after)
        else:
            assert same(function(of, other), function(of, after))


@pytest.mark.parametrize("head", ["private", "shared"])
@pytest.mark.parametrize("name", LORA)
def test_what_is_private_stays_and_what_is_shared_moves(name: str, head: str, model: str) -> None:
    keys = {"lora.head": head, "partition.kind": "iid", "dataset": "synthetic:60"}
    plain = Plain(adapted(model) | {"method": name, "batch-size": 16} | keys)
    plain.play([0])
    before = {n: t.clone() for n, t in kept(plain.models[0]).items()}
    base_before = {n: t.clone() for n, t in plain.models[0].state_dict().items()}
    plain.play([1])
    assert all(torch.equal(before[n], t) for n, t in kept(plain.models[0]).items())  # no leak
    sent = plain.uploads[1].tensors
    one_factor = {"ffa_lora": (B,), "fedsa_lora": (A,), "rolora": (A,)}  # of an even round
    factors = one_factor.get(name, (A, B))
    if name in ("feddpa", "fedalt"):
        factors = (f"{A}default.", f"{B}default.")
    own = kept(plain.models[1])
    heads = plain.models[1].last_names()
    expected = {n for n in own if any(mark in n for mark in factors)}
    assert sent.keys() == expected | (heads if head == "shared" else set())
    received = plain.method.download(plain.state, 0, 3)
    plain.play([0])
    moved = kept(plain.models[0])
    frozen = set(base_before) - set(moved)
    assert frozen
    state = plain.models[0].state_dict()
    assert all(torch.equal(base_before[n], state[n]) for n in frozen)
    if name == "fedalt":
        assert all(torch.equal(t, moved[n]) for n, t in received.items() if ".rest." in n)
    elif name != "flora":  # which begins anew
        assert any(not torch.equal(received[n], moved[n]) for n in received.keys() & moved.keys())
    if name == "ffa_lora":
        assert all(torch.equal(before[n], moved[n]) for n in moved if A in n)


@pytest.mark.parametrize("name", ["fedit", "fedsa_lora", "fedex_lora"])
def test_alone_it_is_local_lora(name: str, model: str) -> None:
    """From the state that it received, a client alone trains as Standalone does, to the bit."""
    ours, alone = method(name, model), method("standalone", model)
    state = ours.state_init(9)
    one, two = ours.private_init(1, 1), alone.private_init(1, 1)
    lora_factors.load_some(two, state)
    assert name != "fedex_lora" or not any(".left" in key for key in state)
    for round in (1, 2):
        sent = ours.local_update(one.train(), state, DATA, visit(ours.experiment, 1, round))
        state = ours.aggregate({1: sent}, state, round)
        alone.local_update(two.train(), {}, DATA, visit(alone.experiment, 1, round))
    assert kept(two).keys() <= kept(one).keys()
    for key, tensor in kept(two).items():
        assert torch.equal(kept(one)[key], tensor)


@pytest.mark.parametrize("name", LORA)
def test_two_ranks_where_they_may_differ_and_a_line_elsewhere(name: str, model: str) -> None:
    keys: dict[str, object] = keys_in("lora.rank=4,16 partition.kind=iid dataset=synthetic:60")
    keys = adapted(model) | keys | {"method": name, "batch-size": 16, "clients": 2}
    if name not in ANY_RANK:
        with pytest.raises(UserError, match=r"needs the same model .* train and lora.rank"):
            from_flat(keys)
        return
    plain = Plain(keys)
    plain.train(2)
    widths = [{len(t) for n, t in plain.uploads[k].tensors.items() if A in n} for k in (0, 1)]
    assert widths == [{4}, {16}]


@pytest.mark.parametrize("name", LORA)
def test_other_training_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"method {name} exchanges LoRA, and train is all"):
        from_flat({"method": name, "models": "cnn5"})


@pytest.mark.parametrize("name", ANY_RANK)
def test_any_ranks_are_of_one_base_alone(name: str, tmp_path: Path) -> None:
    names = ",".join(base(tmp_path, "test_vit", seed) for seed in (0, 1))
    with pytest.raises(UserError, match=r"differ in more than lora\.rank"):
        from_flat({"method": name, "models": names, "train": "lora", "clients": 2})


def test_only_methods_that_average_go_with_masks() -> None:
    keys = {"models": "timm:test_vit:pretrained", "train": "lora", "secagg.enabled": True}
    assert MEANS == ("fedit", "ffa_lora", "fedsa_lora", "rolora", "feddpa")
    for name in LORA:
        if name in MEANS:
            from_flat(keys | {"method": name})
        else:
            with pytest.raises(
                UserError, match=f"{name} does not take a mean of uploads; .* feddpa"
            ):
                from_flat(keys | {"method": name})


@pytest.mark.parametrize("sharing", ["mean", "none"])
def test_a_round_says_what_the_mean_missed(sharing: str, model: str, tmp_path: Path) -> None:
    keys = {"partition.kind": "iid", "dataset": "synthetic:90", "rounds": 2, "sharing": sharing}
    done = run_locally(
        tmp_path / "run", adapted(model) | {"method": "fedit", "batch-size": 16} | keys
    )
    assert done.code == 0, done.stderr
    rows = [row for row in done.rows("rounds.jsonl") if row["round"]]
    if sharing == "none":
        assert [row["aggregation_error"] for row in rows] == [None, None]
    else:
        assert all(0 < row["aggregation_error"] < 1 for row in rows)
