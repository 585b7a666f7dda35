"""Methods of sums with differential privacy: what a record changes, what noise there is, and what
it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import product
from math import exp
from pathlib import Path

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import chi2, kstest, norm

from pfedlora_flwr.audit.audit import audit
from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp import link as dp
from pfedlora_flwr.features.dp.audit import RARE
from pfedlora_flwr.features.dp.budget import Budget
from pfedlora_flwr.features.dp.plan import plan
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.sums import OfSums
from pfedlora_flwr.models.summary import Summary
from pfedlora_flwr.runs.begin import find
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.site.policy import Policy
from pfedlora_flwr.training.loop import Samples, Visit
from tests.conftest import keys_in, needs, run_locally
from tests.methods.test_sums import METHODS, Federation, drawn, made, some
from tests.models.bases import base
from tests.plain import Plain

pytestmark = needs("dp_accounting")
RECORD = {"dp.level": "record", "dp.noise": 2.0, "normalise": "model"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Keys of four clients with a pretrained model of twenty logits."""
    pytest.importorskip("timm")
    keys = {"models": base(tmp_path_factory.mktemp("base"), "test_resnet"), "clients": 4}
    return keys | keys_in(
        "representation=pretrained-logits dataset=synthetic:200 partition.kind=iid"
    )


def length(tensors: Tensors) -> float:
    return float(sum(t.square().sum() for t in tensors.values()) ** 0.5)


@pytest.mark.parametrize("masked", [False, True])
def test_a_site_that_demands_noise_of_records_takes_masked_sums_alone(
    run: dict[str, object], masked: bool
) -> None:
    """Without masks the server reads the exact sums, and noises them."""
    masks = {"secagg.enabled": True, "secagg.max-samples": 64} if masked else {}
    config = run_config(run | RECORD | {"method": "fedlda"} | masks)
    found = [*Policy.of_node({"dp": "record"}).objections(config, {}, "train")]
    told = "dp of level record is demanded here, and this run's server reads exact sums"
    assert found == ([] if masked else [told])


@pytest.mark.parametrize("more", [{}, {"secagg.enabled": True, "secagg.max-samples": 64}])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("beyond", [1.0, 3.0])
def test_a_record_changes_what_is_sent_by_one(
    name: str, more: dict[str, object], beyond: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """beyond: the length of its coordinates, which counts as at most 1."""
    monkeypatch.setattr(
        OfSums, "inputs", lambda self, model, data, visit: beyond * unit(model, data, visit)
    )
    method, samples = made(name, **RECORD, **more), drawn(20, 1)
    sent = []
    for part in (samples, some(samples, torch.arange(19))):
        sent.append(Federation(method, 1).play({0: part})[0])
    change = {n: t - sent[1].tensors[n] for n, t in sent[0].tensors.items()}
    moment = 1.0 if method.squares else (1 - 0.09) ** 0.5
    share = length(change) / method.scale
    level = 2 * method.experiment.secagg.clip / 2**22 / method.scale if more else 0.0
    rounding = level * sum(t.numel() for t in change.values()) ** 0.5
    assert share == pytest.approx(moment * (1 - rounding), abs=1e-9)
    assert (rounding > 0) == bool(more)


def unit(model: Summary, data: Samples, visit: Visit) -> torch.Tensor:
    """Coordinates of length 1."""
    x, visit.flops["sums"] = data.inputs.double(), 0
    wide = torch.nn.functional.pad(x, (0, model.model.width - x.shape[1]))
    return torch.nn.functional.normalize(wide, dim=1)


def test_epsilon_is_that_of_one_release_by_hand() -> None:
    e = from_flat({"method": "fedlda", "setting": "homogeneous"} | RECORD)
    assert (e.dp.clip, e.rounds) == (1.0, 2)
    budget = Budget(None, e)

    def by_hand(z: float) -> float:
        def above(found: float) -> float:
            one, two = 1 / (2 * z) - found * z, -1 / (2 * z) - found * z
            return float(norm.cdf(one) - exp(found) * norm.cdf(two)) - e.dp.delta

        return float(brentq(above, 1e-3, 50, xtol=1e-12))

    assert budget.epsilon(1) == pytest.approx(by_hand(2.0), abs=1e-6 * by_hand(2.0) + 1e-6)
    assert budget.epsilon(1) >= by_hand(2.0) - 1e-9
    assert by_hand(1.0) > 2 * by_hand(2.0), "a replaced record costs more than twice"


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["drawn", "zeros"])
def test_a_run_releases_once_and_its_canary_is_below_epsilon_unless_noise_is_missing(
    run: dict[str, object], tmp_path: Path, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = run | RECORD | {"method": "fedlda", "audit.uploads": True}
    if noise == "zeros":
        monkeypatch.setattr(dp, "gaussian", lambda count: 1e-9 * torch.randn(count).numpy())
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    spent = done.result["privacy"]["dp"]
    assert (spent["level"], spent["draws"], spent["participations_max"]) == ("record", 1, 1)
    assert spent["epsilon"] < spent["epsilon_replace"] < 3 * spent["epsilon"]
    told = " ".join(done.result["privacy"]["not_covered"])
    assert "accuracies, which are of models that have the client's own samples" in told
    found = audit(RunDirectory(tmp_path / "run"))["dp"]
    assert found["epsilon"] == pytest.approx(spent["epsilon"])
    if noise == "drawn":
        assert found["lower"] < found["epsilon"]
        assert found["deviation"] == pytest.approx(1, abs=0.2)  # 420 numbers
        assert found["chance"] > RARE
    else:
        assert found["chance"] < RARE
        assert found["lower"] > found["epsilon"]
    again = run_locally(tmp_path / "run", keys | {"resume": True})
    assert again.code == 0, again.stderr


@pytest.mark.slow
def test_under_masks_clients_noise_makes_up_the_sum_s(
    run: dict[str, object], tmp_path: Path
) -> None:
    more = {"secagg.enabled": True, "secagg.max-samples": 128, "sums.honest": 2}
    keys = run | RECORD | {"method": "fedlda"} | more
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    saved = RunDirectory(tmp_path / "run").checkpoints.load()
    assert saved is not None
    plain = Plain(keys)
    method = plain.method
    assert isinstance(method, OfSums)
    plain.train(2)  # without the links that draw
    parts = [(t - plain.state[n]).flatten() for n, t in saved.tensors.items()]
    noise = torch.cat(parts) / method.scale  # 420 numbers
    assert float(noise.std()) == pytest.approx(2.0 * (4 / 2) ** 0.5, rel=0.2)
    assert done.result["privacy"]["dp"]["draws"] == 1


@pytest.mark.slow
def test_noise_in_whole_levels_costs_no_more_than_unrounded() -> None:
    """Rényi divergences of the sum of clients' rounded noise, by convolution in 40 digits, beside
    those of one Gaussian with their variance: α Δ² / (2 k s²) for order α and a change of Δ levels.
    Each client rounds at an offset that whoever knows the seed knows, before the sum is made: so
    this does not follow from what is known of a rounded sum."""

    def mass(s: mpmath.mpf, offset: float) -> list[mpmath.mpf]:
        def above(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / (s * mpmath.sqrt(2))) / 2

        def cell(low: mpmath.mpf) -> mpmath.mpf:
            if low < 0:  # as differences of the smaller tails
                low = -low - 1
            return above(low) - above(low + 1)

        reach = int(14 * s) + 6
        return [cell(mpmath.mpf(m) - offset) for m in range(-reach, reach + 1)]

    def summed(a: list[mpmath.mpf], b: list[mpmath.mpf]) -> list[mpmath.mpf]:
        found = [mpmath.mpf(0)] * (len(a) + len(b) - 1)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                found[i + j] += x * y
        return found

    def ratios(s: float, offsets: tuple[float, ...]) -> Iterator[float]:
        exact = mpmath.mpf(s)
        sum_of = reduce(summed, (mass(exact, offset) for offset in offsets))
        inner = range(len(sum_of) // 8, len(sum_of) - len(sum_of) // 8)
        for order, change in product((1.5, 2, 3, 8), (1, -2)):
            terms = (sum_of[m - change] ** order * sum_of[m] ** (1 - order) for m in inner)
            found = mpmath.log(mpmath.fsum(terms)) / (order - 1)
            yield float(found / (order * change**2 / (2 * len(offsets) * exact**2)))

    with mpmath.workdps(40):
        every = ((0,), (0.5,), (0, 0.5), (0.25, 0.25), (0.1, 0.3, 0.8))
        assert max(max(ratios(s, offsets)) for s in (1, 2) for offsets in every) < 0.99
        assert max(ratios(0.3, (0.5, 0.5, 0.5))) > 1.1, "why less than a level is refused"
    more = {"secagg.enabled": True, "secagg.max-samples": 64, "dp.noise": 1e-5}
    method = made("fedlda", **RECORD | more)
    with pytest.raises(UserError, match="a client's noise is less than a level of the masks"):
        _ = method.units


@pytest.mark.slow
def test_a_client_s_noise_is_gaussian_with_its_share_of_the_deviation() -> None:
    more = {"secagg.enabled": True, "secagg.max-samples": 64, "sums.honest": 2}
    method = made("fedlda", **RECORD, **more)
    link = dp.OwnNoise(method.experiment, method, None)
    state = method.state_init(torch.Generator())
    visit = Visit(method.experiment, 0, 1, torch.Generator())
    found = []
    for _ in range(100):
        sent = link.client_out(Upload({n: t.clone() for n, t in state.items()}, 1), state, visit)
        found += [(t - state[n]).flatten() / method.scale for n, t in sent.tensors.items()]
    drawn_ = torch.cat(found).numpy() / (2.0 / 2**0.5)
    assert len(drawn_) > 10_000
    n = len(drawn_)
    low, high = (chi2.ppf(p, n) / n for p in (1e-8, 1 - 1e-8))
    assert low < (drawn_**2).mean() < high, "within 8 % of its variance, or 1 in 10⁷"
    assert kstest(drawn_, "norm").pvalue > 1e-7
    neighbours = float((drawn_[1:] * drawn_[:-1]).mean())
    assert abs(neighbours) < 6 / n**0.5, "each number has its own"


@pytest.mark.slow
def test_whole_clients_are_clipped(run: dict[str, object], tmp_path: Path) -> None:
    keys = run | {"method": "fedncm", "dp.clip": 0.5, "dp.noise": 1e-4}
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    saved = RunDirectory(tmp_path / "run").checkpoints.load()
    assert saved is not None
    assert 0.5 < length(saved.tensors) <= 4 * 0.5 + 1e-2
    assert done.result["privacy"]["dp"]["level"] == "user"


def test_a_plan_tells_of_replaced_records_and_few_ones(
    run: dict[str, object], tmp_path: Path
) -> None:
    plain = Plain(run | RECORD | {"method": "fedlda"})
    folder = RunDirectory(tmp_path / "run")
    told = " ".join(plan(find(folder, plain.config)))
    assert "is replaced by another" in told
    assert "sums.dp-moment=0 leaves it out" in told
    e = plain.config.experiment
    without = e.replace(options=replace(e.options, dp_moment=0.0))
    told = " ".join(plan(find(folder, replace(plain.config, experiment=without))))
    assert "leaves it out" not in told


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"sums.shrinkage": "validation"}, "allowed with dp: auto, or a number"),
        ({"rounds": 1}, "rounds is 1; allowed with fedlda: at least 2"),
        ({"normalise": "federation"}, "normalise is federation; .* dp.level=record: model"),
        ({"dp.clip": 2}, "dp.clip is 2; allowed with fedlda and dp.level=record: 1"),
        ({"secagg.enabled": True, "sums.honest": 11}, "sums.honest is 11; .*: at most 10"),
        (
            {"secagg.enabled": True, "dp.noise": "auto", "dp.epsilon": 2},
            "dp.epsilon is 2.0; .* secagg.enabled: auto, with dp.noise",
        ),
        ({"dp.epsilon": 2}, "dp needs one of dp.noise and dp.epsilon"),
    ],
)
def test_keys_that_do_not_go_with_it_are_told_in_a_line(keys: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=line):
        from_flat({"method": "fedlda", "setting": "homogeneous"} | RECORD | keys)
