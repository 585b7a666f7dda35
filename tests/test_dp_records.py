"""Differential privacy of single records: ε beside a second accountant, what a client accounts for,
and whole runs."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp.accountant import record_epsilon, record_noise_for
from pfedlora_flwr.features.dp.plan import plan
from pfedlora_flwr.features.dp.spent import Spent
from pfedlora_flwr.federation import messages
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.federation.messages import Instruction
from pfedlora_flwr.federation.strategy import PersonalisedStrategy
from pfedlora_flwr.federation.wire import to_arrays
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.methods.pfedlora_plus import PFedLoRAPlus
from pfedlora_flwr.runs.begin import find
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.training import entropy
from tests.conftest import Call, keys_in, run_locally
from tests.models.bases import base
from tests.plain import make
from tests.test_dp_run import _kill_in, private

KEYS: dict[str, Any] = keys_in(
    "method=pfedlora_plus train=head representation=pretrained-logits normalise=model "
    "clients=3 rounds=2 dataset=synthetic:150 partition.kind=iid batch-size=16 evaluate-"
    "initial=false device=cpu adapter.predict=sum adapter.rows=samples adapter.hidden-dim=4 "
    "dp.level=record dp.clip=0.5"
)


# ε


def written(z: float, parts: int, steps: int, delta: float) -> float:
    """ε at δ by a privacy loss distribution of a few lines: losses ln(P/Q) on a fine grid, composed
    by one FFT. P and Q: N(0, z²), and its mixture of weight 1/parts with N(1, z²);
    both ways round."""
    q, found, width = 1 / parts, 0.0, 1e-3
    x = np.linspace(-12 * z, 1 + 12 * z, 100_001)
    plain = np.exp(-(x**2) / (2 * z**2))
    mixed = (1 - q) * plain + q * np.exp(-((x - 1) ** 2) / (2 * z**2))
    for p, other in ((plain, mixed), (mixed, plain)):
        loss, mass = np.rint(np.log(p / other) / width).astype(int), p / p.sum()
        size = 2 ** math.ceil(math.log2(120 / width))
        grid = np.zeros(size)
        np.add.at(grid, loss % size, mass)
        composed = np.fft.irfft(np.fft.rfft(grid) ** steps, size)
        losses = np.fft.fftfreq(size, 1 / size) * width
        low, high = 0.0, 60.0
        for _ in range(60):
            middle = (low + high) / 2
            gap = np.clip(-np.expm1(middle - losses[losses > middle]), 0, 1)
            more = float((composed[losses > middle] * gap).sum()) > delta
            low, high = (middle, high) if more else (low, middle)
        found = max(found, high)
    return found


PLANS = [(3.0, 2, 100), (1.2, 3, 30), (2.0, 10, 400), (4.0, 1, 20)]


@pytest.mark.parametrize(("z", "parts", "steps"), PLANS[:2])
def test_epsilon_of_a_record_is_that_of_a_second_accountant(
    z: float, parts: int, steps: int
) -> None:
    found = record_epsilon(z, parts, steps, 1e-5)
    assert found == pytest.approx(written(z, parts, steps, 1e-5), rel=0.01)


@pytest.mark.slow
def test_epsilon_of_a_record_lies_below_renyis_and_near_a_second_accountants() -> None:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    draws = np.random.default_rng(0)
    plans = [
        (math.exp(draws.uniform(-0.2, 2)), *map(int, draws.integers(1, (30, 500))))
        for _ in range(6)
    ]
    for z, parts, steps in [*PLANS, *plans]:
        found = record_epsilon(z, parts, steps, 1e-5)
        renyi = RdpAccountant([*range(2, 64)])
        step: Any = dp.GaussianDpEvent(z)
        if parts > 1:
            step = dp.PoissonSampledDpEvent(1 / parts, step)
        renyi.compose(dp.SelfComposedDpEvent(step, steps))
        assert found <= renyi.get_epsilon(1e-5), (z, parts, steps)
        if found < 30:
            wanted = written(z, parts, steps, 1e-5)
            assert 0.98 * wanted - 0.01 <= found <= 1.02 * wanted + 0.01, (z, parts, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "parts", "steps"),
    [(0.3, 100_000, 10), (0.7, 1000, 100), (1.0, 3, 10**9), (2.0, 10**5, 10**7), (1e4, 10, 1)],
)
def test_epsilon_takes_no_second_and_is_not_below_the_exact_value(
    z: float, parts: int, steps: int
) -> None:
    """A step's largest loss may be far above that of the limit of many steps."""
    record_epsilon(1.0, 2, 2, 1e-5)  # which imports
    begun = time.process_time()
    found = record_epsilon(z, parts, steps, 1e-5)
    assert time.process_time() - begun < 1
    if steps <= 1000:
        assert written(z, parts, steps, 1e-5) * 0.98 - 1e-3 <= found
        assert found <= 1.05 * written(z, parts, steps, 1e-5) + 1e-3
    else:  # that of fewer steps, and of the limit of many
        mu = math.sqrt(steps * math.expm1(z**-2)) / parts
        limit = mu * (mu / 2 + 2.5) if mu > 10 else 0.0
        assert found >= max(limit, record_epsilon(z, parts, 100_000, 1e-5))


@pytest.mark.slow
def test_the_noise_for_the_smallest_epsilon_is_found_in_seconds() -> None:
    with pytest.raises(UserError, match=r"dp.epsilon is 1e-13; allowed: .* ≥ 0.001"):
        from_flat(KEYS | {"models": "timm:test_resnet", "dp.epsilon": 1e-13})
    begun = time.process_time()
    z = record_noise_for(1e-3, 10, 180, 1e-12)
    assert record_epsilon(z, 10, 180, 1e-12) <= 1e-3
    assert time.process_time() - begun < 5


@pytest.mark.slow
def test_the_noise_for_a_records_epsilon_spends_it_and_no_more() -> None:
    z = record_noise_for(4.0, 5, 60, 1e-5)
    assert record_epsilon(z, 5, 60, 1e-5) <= 4 < record_epsilon(z * 0.998, 5, 60, 1e-5)
    assert record_epsilon(0.0, 5, 60, 1e-5) == math.inf
    assert record_epsilon(1.0, 5, 0, 1e-5) == 0


# What a client accounts for


def account(folder: Path, samples: int = 40, **keys: Any) -> Spent:
    e = from_flat(KEYS | {"models": "timm:test_resnet"} | keys)
    return Spent(folder, e, 1, samples, 2)


@pytest.mark.slow
def test_a_visit_is_accounted_for_before_its_noise_and_beyond_epsilon_there_is_none(
    tmp_path: Path,
) -> None:
    one = account(tmp_path, **{"dp.epsilon": 4})
    z = record_noise_for(4.0, 3, 12, 1e-5)  # two rounds of two epochs of three steps
    assert one.spend(1, 0).z == z
    assert json.loads((tmp_path / "dp.json").read_text()) == {
        "visits": 1,
        "round": 1,
        "noise": z,
        "samples": 40,
    }
    again = account(tmp_path, **{"dp.epsilon": 4})
    assert again.visits == 1
    assert again.spend(1, 0).z == z  # the same round once more
    assert again.told == record_epsilon(z, 3, 12, 1e-5)
    with pytest.raises(UserError, match=r"one more visit would bring .* to 4\.\d+, dp.eps"):
        account(tmp_path, **{"dp.epsilon": 4}).spend(2, 1)
    assert account(tmp_path, **{"dp.epsilon": 4}).visits == 2
    assert account(tmp_path / "none", **{"dp.noise": 0}).told == 0
    free = account(tmp_path / "free", **{"dp.noise": 0})
    free.spend(1, 0)
    assert free.told is None


def test_an_account_that_is_missing_older_or_damaged_ends_it_and_a_large_delta_too(
    tmp_path: Path,
) -> None:
    keys = {"dp.noise": 2}
    with pytest.raises(UserError, match=r"missing or older than its model of round 3"):
        account(tmp_path, **keys).spend(4, 3)
    account(tmp_path, **keys).spend(1, 0)
    with pytest.raises(UserError, match=r"missing or older than its model of round 2"):
        account(tmp_path, **keys).spend(3, 2)
    (tmp_path / "dp.json").write_text("[")
    with pytest.raises(UserError, match=r"is damaged; restore it"):
        account(tmp_path, **keys)
    with pytest.raises(UserError, match=r"dp.delta is 0.03; .*: below 1/n_k, which is 0.025"):
        account(tmp_path / "none", **keys, **{"dp.delta": 0.03})


def test_visits_that_begin_at_once_are_all_accounted_for(tmp_path: Path) -> None:
    """A round's visit may still wait for its turn when that of the next one is sent."""
    keys = {"dp.noise": 2}
    late, next_one = account(tmp_path, **keys), account(tmp_path, **keys)
    next_one.spend(2, 0)
    late.spend(1, 0)
    assert (late.visits, account(tmp_path, **keys).visits) == (2, 2)
    assert account(tmp_path, **keys).spend(3, 2).z == 2


@pytest.mark.slow
def test_an_account_is_of_one_number_of_records(tmp_path: Path) -> None:
    """Batches of more records take each more seldom: the visits before would cost too little."""
    keys = {"dp.noise": 2}
    first = account(tmp_path, **keys)
    first.spend(1, 0)
    told = first.told
    assert told is not None
    assert told > 3 * record_epsilon(2.0, 63, 2 * 63, 1e-5)
    for samples in (39, 1000):
        with pytest.raises(UserError, match=rf"of visits to 40 of them, .* has {samples} now"):
            account(tmp_path, samples, **keys)
    assert account(tmp_path, **keys).told == told


# Runs


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("timm")
    return KEYS | {"models": base(tmp_path_factory.mktemp("bases"), "test_resnet")}


def steps_of(run: RunDirectory, client: int, visits: int) -> tuple[int, int]:
    """1/q and the number of steps, by the n_k that the run tells."""
    row = next(row for row in run.visits() if row["client"] == client)
    assert row["status"] == "ok"
    assert row["samples"] is not None
    parts = math.ceil(row["samples"] / 16)
    return parts, visits * parts


@pytest.mark.slow
def test_a_run_tells_each_clients_epsilon_and_a_killed_round_counts_twice(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.ndarray] = []
    gaussian = entropy.gaussian

    def watched(count: int) -> np.ndarray:
        drawn.append(gaussian(count))
        return drawn[-1]

    monkeypatch.setattr("pfedlora_flwr.models.private.gaussian", watched)
    output, given = tmp_path / "run", keys | {"dp.noise": 1.5}
    _kill_in(monkeypatch, output, 2, given)
    done = run_locally(output, {**given, "resume": True})
    assert done.code == 0, done.stderr
    run, found = RunDirectory(output), private(done)
    for client in range(3):
        wanted = record_epsilon(1.5, *steps_of(run, client, 3), 1e-5)
        assert found["by_client"][str(client)] == wanted
    assert (found["level"], found["noise"], found["draws"]) == ("record", 1.5, None)
    assert found["epsilon"] == max(found["by_client"].values())
    assert done.rows("rounds.jsonl")[-1]["epsilon"] == found["epsilon"]
    every = np.concatenate(drawn)
    assert len(np.unique(every)) == len(every), "a number was drawn twice"
    for row in done.rows("clients.jsonl"):
        assert row["samples"] > 1
        assert (row["loss"], row["losses"], row["flops_by_phase"]) == (None, None, None)
    told = "\n".join(done.result["privacy"]["not_covered"])
    for word in ("n_k", "accuracies", "adapter.basis", "the server reads every client's upload"):
        assert word in told
    (run.client_store(1).folder / "dp.json").unlink()
    lacking = run_locally(output, {**given, "resume": True, "rounds": 3})
    assert lacking.code == 1
    assert "missing or older than its model of round 2" in lacking.stderr


@pytest.mark.slow
def test_a_run_by_epsilon_is_planned_before_it_starts_and_is_not_extended(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    given = keys | {"dp.epsilon": 3, "sharing": "none"}
    config = run_config({**given, "output": str(tmp_path / "run")})
    first, second = plan(find(RunDirectory(tmp_path / "run"), config))
    assert first.startswith("dp: ε of a record is at most 3 at δ = 1e-05: of client ")
    assert "(50 numbers, " in second
    done = run_locally(tmp_path / "run", given)
    found = private(done)
    assert found["noise"] is None
    assert all(2.99 < epsilon <= 3 for epsilon in found["by_client"].values())
    with pytest.raises(UserError, match=r"rounds is 3; with dp.level=record and dp.epsilon each"):
        run_locally(tmp_path / "run", {**given, "resume": True, "rounds": 3})


# Beside an audit


@pytest.mark.slow
def test_a_run_does_not_begin_from_another_one(keys: dict[str, Any], tmp_path: Path) -> None:
    noised = keys | {"dp.noise": 1.5}
    assert run_locally(tmp_path / "one", noised).code == 0
    more = {"start-from": str(tmp_path / "one"), "rounds": 4}
    with pytest.raises(UserError, match="what single records spend is counted in one run alone"):
        run_locally(tmp_path / "two", noised | more)


DIGITS = {"dataset": "digits", "clients": 10, "rounds": 4, "local-epochs": 1, "adapter-epochs": 1}
"""Without noise no more canaries than an audit has would show a visit's ε of 4.9."""


@pytest.mark.slow
@pytest.mark.parametrize(("level", "budget"), [("record", 0), ("user", 0.5), ("user", 6)])
def test_an_audit_passes_honest_noise_and_fails_for_less(
    keys: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pfedlora: Call,
    level: str,
    budget: float,
) -> None:
    """Records: a visit's ε is 4.9, and the audit draws visits of its own. Whole clients: by z."""
    spend = {"dp.noise": budget} if budget else {"dp.epsilon": 8}
    given = (
        keys
        | (DIGITS if level == "record" else {"rounds": 3})
        | spend
        | {"dp.level": level, "audit.uploads": True}
    )
    output = tmp_path / "run"
    for share in (1.0, 0.5, 0.0):
        for place in ("models.private", "features.dp.link"):
            monkeypatch.setattr(
                f"pfedlora_flwr.{place}.gaussian",
                lambda count, share=share: share * entropy.gaussian(count),
            )
        if level == "user" or share == 1:
            run = run_locally(output, given | {"overwrite": share < 1, "adapter.hidden-dim": 19})
            assert run.code == 0, run.stderr
        code, out, err = pfedlora("audit", str(output))
        assert code == (share < 1), (out, err)
        told = json.loads((output / "audit.json").read_text())["dp"]
        assert f"at least {told['lower']:.4g} by canaries" in out
        assert f"the drawn noise is {told['deviation']:.4g} of what the keys say" in out
        assert ("the noise is not what the keys say" in err) == (share < 1)
        assert told["deviation"] == pytest.approx(share, rel=0.25, abs=1e-6)
        assert (told["chance"] < 1e-6) == (share < 1)
        assert share < 1 or told["lower"] <= told["epsilon"]
        assert ("they can show no fault" in out) == (told["ceiling"] <= told["epsilon"])
        if level == "record":
            assert told["ceiling"] > told["epsilon"] > 4
            assert share or told["lower"] > told["epsilon"]
        assert (told["level"], told["trials"]) == (level, 200 if level == "record" else 600)


@pytest.mark.slow
def test_a_replaced_run_stays_listed_and_held_out_clients_are_adapted(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    keys = keys | {"dp.noise": 1.0, "clients": 4, "clients-held-out": 1}
    first = run_locally(tmp_path / "run", keys | {"held-out.rounds": 1})
    assert first.code == 0, first.stderr
    assert len(first.rows("held_out.jsonl")) == 1
    assert private(first)["earlier"] == []
    again = run_locally(first.output, keys | {"held-out.rounds": 1, "overwrite": True})
    (earlier,) = private(again)["earlier"]
    assert (earlier["participations_max"], earlier["noise"], earlier["draws"]) == (2, 1.0, None)
    assert (earlier["level"], earlier["epsilon"]) == ("record", private(first)["epsilon"])
    user = keys | {"dp.level": "user", "held-out.rounds": 1, "overwrite": True}
    third = run_locally(first.output, user)
    assert [row["draws"] for row in private(third)["earlier"]] == [None, None]


@pytest.mark.slow
def test_a_run_that_failed_in_its_first_round_has_spent(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients drew noise, and may have sent what they trained."""
    keys, honest = keys | {"dp.noise": 1.0}, PFedLoRAPlus.local_update

    def failing(self: PFedLoRAPlus, *args: Any) -> Upload:
        upload = honest(self, *args)
        if args[-1].client == 2 and args[-1].noise:
            raise RuntimeError("no disk")
        return upload

    with monkeypatch.context() as patched:
        patched.setattr(PFedLoRAPlus, "local_update", failing)
        assert run_locally(tmp_path / "run", keys).code
    with pytest.raises(UserError, match="exists; continue it with resume"):
        run_locally(tmp_path / "run", keys)


@pytest.mark.slow
def test_a_run_that_stopped_before_its_first_round_was_told_has_spent(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All uploads were here, and no line of `clients.jsonl` tells of them."""
    keys = keys | {"dp.noise": 1.0}

    def gone(*_: object) -> None:
        raise RunFailed("the SuperLink is gone")

    with monkeypatch.context() as patched:
        patched.setattr(PersonalisedStrategy, "_merge", gone)
        first = run_locally(tmp_path / "run", keys)
    assert (first.code, first.rows("clients.jsonl")) == (1, [])
    assert (private(first)["epsilon"], private(first)["by_client"]) == (None, {})
    with pytest.raises(UserError, match="exists; continue it with resume"):
        run_locally(tmp_path / "run", keys)
    again = run_locally(tmp_path / "run", keys | {"overwrite": True})
    (earlier,) = private(again)["earlier"]
    assert (earlier["level"], earlier["epsilon"]) == ("record", None)


@pytest.mark.slow
def test_a_site_has_one_account_whatever_its_number(keys: dict[str, Any], tmp_path: Path) -> None:
    """It comes back with another number where others took its own while it was away."""
    e = from_flat(keys | {"dp.noise": 1.0})
    demands = {"dp": "record", "epsilon-cap": 1e4}
    own = {"dataset": "synthetic:150", "state-path": str(tmp_path)}
    site = PersonalisedClient(e, own | demands)
    state = make(e).state_init(0)
    told = []
    for number in (0, 2):
        asked = Instruction(1, number, 0, "token", "", False, [*state])
        _, samples, metrics = site.fit(to_arrays(state), messages.written(asked))
        assert samples, metrics
        told.append(metrics["epsilon"])
    assert told[1] > told[0]
    assert json.loads((tmp_path / "token" / "dp.json").read_text())["visits"] == 2
    # with those, and over all runs, before it draws
    site = PersonalisedClient(e, own | {"epsilon-cap": 1.9 * told[1]})
    again = messages.written(Instruction(1, 0, 0, "new", "", False, [*state]))
    trained = [bool(site.fit(to_arrays(state), again)[1]) for _ in range(2)]
    assert trained == [True, False]
    assert json.loads((tmp_path / "new" / "dp.json").read_text())["visits"] == 1
