"""RoLoRA, FLoRA and FedEx-LoRA lose nothing of the mean of the products, round after round; and
what goes up and down for it."""

from __future__ import annotations

import pytest
import torch

from pfedlora_flwr.commands.dry_run import _costs
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.launch.resources import Resources
from pfedlora_flwr.methods.lora_factors import A, B
from pfedlora_flwr.methods.method import Refused, Upload
from pfedlora_flwr.runs.ledger import payload_bytes
from tests.conftest import needs
from tests.methods.test_fedlora import (
    DATA,
    dense,
    distance,
    function,
    mean_of,
    method,
    model,
    same,
    uploads,
)
from tests.plain import visit

__all__ = ["model"]
pytestmark = [needs("timm", "peft"), pytest.mark.slow]


def test_rolora_renews_one_factor_in_turn_and_exactly(model: str) -> None:
    ro = method("rolora", model)
    state = ro.state_init(3)
    for round, moving, resting in ((1, B, A), (2, A, B), (3, B, A)):
        sent = uploads(ro, seed=round, round=round)
        assert all(moving in name for one in sent.values() for name in one.tensors)
        after = ro.aggregate(sent, state, round)
        assert list(after) == list(state)
        assert all(torch.equal(after[n], state[n]) for n in state if resting in n)
        whole = {k: Upload(state | one.tensors, one.samples) for k, one in sent.items()}
        assert same(function(ro, after), mean_of(ro, whole))
        assert ro.aggregation_error(sent, state, after) < 1e-5
        ro.check(sent[0], ro.renewed(state, round), 0)
        with pytest.raises(Refused):  # the other factor
            ro.check(sent[0], ro.renewed(state, round + 1), 0)
        state = after
    assert ro.download(state, 2, 9).keys() == state.keys()  # for who missed rounds


def test_rolora_alone_trains_b_first_in_whatever_round(model: str) -> None:
    ro = method("rolora", model, sharing="none")
    state, client = ro.state_init(3), ro.private_init(1, 1)
    for round, moving in ((2, B), (4, A), (5, B)):
        sent = ro.local_update(client.train(), state, DATA, visit(ro.experiment, 1, round))
        assert all(moving in name for name in sent.tensors)
        ro.check(sent, ro.renewed(state, round), 1)
        after = ro.aggregate({1: sent}, state, round)
        assert all(t.any() for name, t in after.items() if B in name)
        state = after


def test_rolora_restarted_trains_b_in_every_round(model: str) -> None:
    ro = method("rolora", model, sharing="start")
    state, client = ro.state_init(3), ro.private_init(1, 1)
    sent = ro.local_update(client.train(), state, DATA, visit(ro.experiment, 1, 2))
    assert all(B in name and t.any() for name, t in sent.tensors.items())
    ro.check(sent, ro.renewed(state, 2), 1)


def test_flora_adds_up_what_clients_of_any_rank_trained(model: str) -> None:
    flora = method("flora", model, **{"lora.rank": "2,4,6", "lora.alpha": 5})
    state, ranks = flora.state_init(3), []
    wanted: dict[str, torch.Tensor] = {}
    assert state == {}
    for round in range(1, 6):
        sent = uploads(flora, seed=round)
        after = flora.aggregate(sent, state, round)
        assert flora.aggregation_error(sent, state, after) < 1e-5
        for name, whole in mean_of(flora, sent).items():
            wanted[name] = wanted.get(name, 0.0) + whole
        assert same(function(flora, after), wanted)
        for k, one in sent.items():
            flora.check(one, after, k)
            assert sum(t.numel() * 4 for t in one.tensors.values()) <= flora.largest_upload(after)
        with pytest.raises(Refused):  # of another rank
            flora.check(sent[0], after, 1)
        state = after
        # the stacks, and no more than the matrix
        for name, whole in wanted.items():
            place, (m, n) = name.split(A)[0], whole.shape
            numbers = sum(t.numel() for key, t in state.items() if key.startswith(f"{place}."))
            assert numbers == min(12 * round * (m + n), m * n)
        ranks.append(f"{place}.left" in state)
    assert not ranks[-1]


@pytest.mark.parametrize("name", ["flora", "fedex_lora"])
def test_no_download_exceeds_what_a_dry_run_says(name: str, model: str) -> None:
    """With a growing ΔW, and where it is full."""
    rounds = 5
    one = method(name, model, rounds=rounds)
    state = one.state_init(3)
    for round in range(1, rounds):
        state = one.aggregate(uploads(one, seed=round), state, round)
        e = one.experiment.replace(rounds=round + 1)
        (line,) = [t for t in _costs(RunConfig(e, Execution()), Resources(1)) if "a round:" in t]
        said = float(line.split(" up and ")[1].split(" MB")[0]) * 1e6
        down = payload_bytes(one.download(state, 0, round + 1))
        assert e.sampled * down <= said + 5e3, f"in round {round + 1}, with two decimals"


def test_fedex_adds_what_fedit_misses(model: str) -> None:
    fedex, fedit = method("fedex_lora", model), method("fedit", model)
    state = fedex.state_init(3)
    of_fedit = fedit.state_init(3)
    sent = uploads(fedex)
    after, mean = fedex.aggregate(sent, state, 1), fedit.aggregate(sent, of_fedit, 1)
    assert all(torch.equal(after[n], mean[n]) for n in mean)
    wanted = mean_of(fedex, sent)
    assert same(function(fedex, after), wanted)
    missed = distance(function(fedex, after), dense(mean, 1.5))
    before = distance(wanted, dense(of_fedit, 1.5))
    assert fedit.aggregation_error(sent, of_fedit, mean) == pytest.approx(missed / before, rel=1e-5)
    assert fedex.aggregation_error(sent, state, after) < 1e-5
    for name, whole in wanted.items():  # (K − 1) r (m + n) more
        place, (m, n) = name.split(A)[0], whole.shape
        parts = [t.numel() for key, t in after.items() if key.startswith(f"{place}.")]
        assert sum(parts) == 4 * (m + n) + min(2 * 4 * (m + n), m * n)
    later = uploads(fedex, seed=2)
    last = fedex.aggregate(later, after, 2)
    first = {n: function(fedex, after)[n] - dense(mean, 1.5)[n] for n in wanted}
    assert same(function(fedex, last), {n: first[n] + w for n, w in mean_of(fedex, later).items()})
    assert fedex.aggregation_error(later, after, last) < 1e-5


def test_flora_refuses_what_its_restarts_would_drop(model: str) -> None:
    with pytest.raises(UserError, match="sharing is start; allowed with flora: mean, none"):
        method("flora", model, sharing="start")
    with pytest.raises(UserError, match=r"lora\.init is 'folder:.*'; allowed with flora"):
        method("flora", model, **{"lora.init": "folder:/somewhere"})
