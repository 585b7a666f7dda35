"""Differential privacy, piece by piece: ε beside its closed form, the noise that is really drawn,
clipping, and an attack on the released states beside ε."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp import accountant
from pfedlora_flwr.features.dp import link as dp
from pfedlora_flwr.features.dp.audit import RARE, beside_normal, ceiling, lower_bound
from pfedlora_flwr.features.dp.budget import Budget, replaced, spent_by_lines
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.federation.secure.uplink import moved_by
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.rng import sample_clients

STANDARD_ERRORS = 4.5
"""Beyond which a statistic of honest noise lies once in 150,000 times."""
KEYS = {"dp.clip": 0.5, "dp.noise": 1.5, "adapter.down": "fixed"}


def exact(z: float, participations: int, delta: float) -> float:
    """ε of the composed Gaussian mechanism in closed form (Balle and Wang 2018, Theorem 8; Dong,
    Roth and Su 2022, Corollary 3.3): μ = √n / z, δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    mu = math.sqrt(participations) / z

    def above(epsilon: float) -> float:
        second = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - second - delta

    high = 1.0
    while above(high) > 0:
        high *= 2
    return 0.0 if above(0) <= 0 else float(brentq(above, 0, high, xtol=1e-13))


def changed(name: str, by: float) -> Tensors:
    return {name: torch.full((4,), by)}


# ε


@pytest.mark.slow
def test_epsilon_is_never_below_the_exact_value_and_at_most_a_tenth_above() -> None:
    draws = np.random.default_rng(0)
    for _ in range(100):
        z, delta = math.exp(draws.uniform(-1.5, 4.5)), 10 ** draws.uniform(-9, -3)
        participations = int(draws.integers(1, 200))
        found, wanted = (f(z, participations, delta) for f in (accountant.epsilon, exact))
        assert wanted * (1 - 1e-9) <= found <= 1.1 * wanted + 1e-6, (z, participations, delta)


def test_epsilon_of_one_plan_is_the_closed_form() -> None:
    assert accountant.epsilon(1.9, 10, 1e-5) == pytest.approx(exact(1.9, 10, 1e-5), rel=1e-3)
    assert accountant.epsilon(1.9, 10, 1e-5) >= exact(1.9, 10, 1e-5)
    assert accountant.epsilon(1.9, 0, 1e-5) == 0
    assert accountant.epsilon(0.0, 1, 1e-5) == math.inf


@pytest.mark.parametrize("z", [1e-3, 1e-9, 1e-200])
def test_where_next_to_no_noise_is_drawn_epsilon_is_large_and_no_error(z: float) -> None:
    """The grid of losses cannot be computed there."""
    found = accountant.record_epsilon(z, 3, 20, 1e-5)
    assert found >= 20 / (2 * z) / z
    assert accountant.epsilon(z, 20, 1e-5) == found
    assert 0 < accountant.noise_for(1e9, 20, 1e-5) < 1e-3


def test_the_closed_form_is_just_above_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = accountant.epsilon(0.05, 25, 1e-5)
    monkeypatch.setattr(accountant, "_LARGE", 99.0)
    accountant.record_epsilon.cache_clear()
    closed = accountant.epsilon(0.05, 25, 1e-5)
    accountant.record_epsilon.cache_clear()
    assert grid <= closed <= 1.02 * grid


@pytest.mark.parametrize("wanted", [0.5, 8.0])
def test_the_noise_for_an_epsilon_spends_it_and_no_more(wanted: float) -> None:
    z = accountant.noise_for(wanted, 7, 1e-5)
    assert exact(z, 7, 1e-5) <= accountant.epsilon(z, 7, 1e-5) <= wanted
    assert exact(z * 0.999, 7, 1e-5) > wanted


def test_planned_participations_are_those_of_the_sampling() -> None:
    e = from_flat({**KEYS, "clients": 9, "participation": 0.4, "rounds": 11, "seed": 3})
    found = accountant.planned(e)
    sampled = [sample_clients(3, t, range(9), 3) for t in range(1, 12)]
    assert found == {
        k: sum(k in s for s in sampled) for k in range(9) if any(k in s for s in sampled)
    }
    assert accountant.planned(e, 12) == {}


def test_without_dp_accounting_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'pfedlora-flwr\[dp\]'"):
        accountant.epsilon(1.234, 5, 1e-5)


# Noise


def test_the_noise_is_standard_normal_and_independent() -> None:
    count = 100_000
    one, other = dp.gaussian(count), dp.gaussian(count)
    error = STANDARD_ERRORS / count**0.5
    for drawn in (one, other):
        assert abs(drawn.mean()) < error
        assert abs(drawn.var() - 1) < error * 2**0.5
        assert stats.kstest(drawn, "norm").pvalue > 1e-5
        for lag in (1, 2, 3, 64):
            assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 1.01 * error
    assert abs(np.corrcoef(one, other)[0, 1]) < error
    assert abs(np.corrcoef(one**2, other**2)[0, 1]) < error
    assert not np.intersect1d(one, other).size


def releases(kind: str, draws: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Three draws of two tensors, as they should be or not."""
    rows = [{"a": draws.normal(size=90), "b": draws.normal(size=60)} for _ in range(3)]
    if kind == "half":
        rows = [{name: x / 2 for name, x in row.items()} for row in rows]
    if kind == "one tensor":
        rows[1]["b"] *= 0
    if kind == "used again":
        rows[2] = {name: x.copy() for name, x in rows[1].items()}
    if kind == "in pairs":
        rows[0]["a"][1::2] = rows[0]["a"][::2]
    if kind == "not known":
        rows[0]["a"] = np.full(90, np.nan)
    return rows


@pytest.mark.parametrize("kind", ["half", "one tensor", "used again", "in pairs"])
def test_a_test_of_the_drawn_noise_finds_what_is_too_small(kind: str) -> None:
    deviation, chance = beside_normal(releases(kind, np.random.default_rng(0)))
    assert (chance < RARE, deviation < 0.6) == (True, True)


@pytest.mark.slow
def test_a_test_of_the_drawn_noise_passes_honest_noise() -> None:
    draws = np.random.default_rng(1)
    chances = [beside_normal(releases("honest", draws))[1] for _ in range(300)]
    # by Bonferroni's correction
    assert [sum(c < level for c in chances) <= 300 * level + 6 for level in (0.01, 0.05)] == [
        True
    ] * 2
    assert min(chances) > 1e-5
    deviation, chance = beside_normal(releases("not known", draws))
    assert 0.8 < deviation < 1.2
    assert chance > 1e-5
    assert beside_normal([{"a": np.full(3, np.nan)}])[1] == 1


@pytest.mark.parametrize(("trials", "most"), [(100, 2.19), (500, 3.84), (1700, 5.07), (3660, 5.84)])
def test_the_ceiling_is_what_so_many_trials_can_show(trials: int, most: float) -> None:
    assert ceiling(trials, trials, 1e-5) == pytest.approx(most, abs=0.01)


def test_noise_is_drawn_neither_by_the_seed_nor_by_any_generator_of_ours() -> None:
    draws = []
    for _ in range(2):
        np.random.seed(0)
        torch.manual_seed(0)
        draws.append(dp.gaussian(8))
    assert not np.intersect1d(draws[0], draws[1]).size


@pytest.mark.parametrize("word", [b"\xff", b"\x00"])
def test_the_noise_is_finite_for_every_word_of_entropy(
    monkeypatch: pytest.MonkeyPatch, word: bytes
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", lambda count: word * count)
    found = dp.gaussian(3)
    assert np.isfinite(found).all()
    assert (found > 0).all() == (word == b"\xff")


def test_a_masked_mean_is_not_rounded_before_its_noise() -> None:
    """Rounding it first may make more of two neighbours' difference than the clip allows."""
    state = {"a": torch.full((4,), 1e6)}  # whose neighbours are 1/16 away
    mean = moved_by(state, np.full(4, 0.01))
    assert mean["a"].dtype == torch.float64
    found = dp.noised({-1: Upload(mean, 1)}, state, 50, 0.0, 1)["a"]
    assert (found.dtype, found.tolist()) == (torch.float32, [1e6 + 0.5] * 4)


@pytest.mark.parametrize("uploads", [3, 8])
def test_a_release_has_noise_of_z_times_the_clip_over_the_sampled_clients(uploads: int) -> None:
    size, sampled, deviation = 40_000, 10, 0.3
    state = {
        "a": torch.zeros(size // 4, dtype=torch.float64),
        "b": torch.zeros(3, size // 4).double(),
    }
    same = {k: Upload(state, 1) for k in range(uploads)}
    moved = dp.noised(same, state, 1, deviation, sampled)
    found = torch.cat([t.flatten() for t in moved.values()]).numpy() * sampled / deviation
    assert abs(found.mean()) < STANDARD_ERRORS / size**0.5
    assert abs(found.var() - 1) < STANDARD_ERRORS * (2 / size) ** 0.5
    parts = found.reshape(4, -1)
    assert np.abs(np.corrcoef(parts) - np.eye(4)).max() < STANDARD_ERRORS / (size / 4) ** 0.5


def test_without_noise_a_release_is_the_sum_over_the_sampled_clients_whoever_is_there() -> None:
    state = changed("a", 1.0)
    uploads = {k: Upload(changed("a", 1.0 + k), 1) for k in (1, 2, 5)}
    assert dp.noised(uploads, state, 1, 0.0, 10)["a"].tolist() == pytest.approx([1.8] * 4)
    mean = {-1: Upload(changed("a", 1.0 + 8 / 3), 1)}
    assert dp.noised(mean, state, 3, 0.0, 10)["a"].tolist() == pytest.approx([1.8] * 4)


# Clipping


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_a_clipped_update_is_within_the_bound_and_keeps_its_direction(scale: float) -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(20):
        state = {"a": torch.randn(7, generator=draws), "b": torch.randn(2, 3, generator=draws)}
        sent = {n: t + scale * torch.randn(t.shape, generator=draws) for n, t in state.items()}
        found = dp.clipped(Upload(sent, 77), state, 0.5)
        before, after = (
            torch.cat([(t[n].double() - state[n].double()).flatten() for n in state])
            for t in (sent, found.tensors)
        )
        assert found.samples == 1
        assert float(after.norm()) <= 0.5
        if float(before.norm()) <= 0.5:
            assert all(torch.equal(found.tensors[n], sent[n]) for n in state)
        else:
            assert float(after.norm()) == pytest.approx(0.5, rel=2e-3)
            assert float(before @ after) == pytest.approx(
                float(before.norm() * after.norm()), rel=1e-5
            )


def test_a_zero_update_stays_zero_and_one_without_a_finite_length_becomes_zero() -> None:
    state = changed("a", 3.0)
    assert torch.equal(dp.clipped(Upload(state, 5), state, 0.5).tensors["a"], state["a"])
    assert torch.equal(dp.clipped(Upload(state, 5), state, 0.0).tensors["a"], state["a"])
    for value in (math.nan, math.inf):
        sent = dp.clipped(Upload(changed("a", value), 5), state, 0.5)
        assert (sent.tensors["a"].tolist(), sent.samples) == (state["a"].tolist(), 1)
    long = {"a": torch.full((4,), 1e200, dtype=torch.float64)}  # finite, and its square is not
    zero = {"a": torch.zeros(4, dtype=torch.float64)}
    assert dp.clipped(Upload(long, 5), zero, 0.5).tensors["a"].tolist() == [0] * 4


def test_the_resolution_is_what_rounding_changes_at_most() -> None:
    draws = torch.Generator().manual_seed(0)
    exact = torch.randn(1000, generator=draws, dtype=torch.float64) * 1e6
    rounded = exact.float()
    most = dp.resolution({"a": rounded})
    assert 0.2 * most < float((rounded.double() - exact).norm()) <= most
    assert dp.resolution({"a": torch.zeros(3)}) == 0


def test_an_update_of_another_layout_than_its_download_is_no_difference() -> None:
    state = changed("a", 3.0) | changed("b", 3.0)
    with pytest.raises(UserError, match=r"dp can clip: its tensors are \['a'\], expected"):
        dp.clipped(Upload(changed("a", 3.0), 5), state, 0.5)


def test_under_masks_the_bound_leaves_room_for_what_rounding_adds() -> None:
    state = {"a": torch.zeros(10_000)}
    plain, masked = (from_flat({**KEYS, "secagg.enabled": on}) for on in (False, True))
    assert dp.bound(plain, state) == 0.5
    left = dp.bound(masked, state)
    draws = np.random.default_rng(0)
    update = draws.normal(size=10_000)
    update *= left / np.linalg.norm(update)
    step = 2 * masked.secagg.clip / (LEVELS - 1)
    rounded = np.sign(update) * np.ceil(np.abs(update) / step) * step  # all of them outwards
    assert left < np.linalg.norm(rounded) <= 0.5


# What is spent


def test_what_is_spent_is_on_disk_before_it_is_used_and_adds_up(tmp_path: Path) -> None:
    e, path = from_flat(KEYS), tmp_path / "dp.json"
    Budget(path, e).spend([0, 2])
    Budget(path, e).spend([2, 3])
    found = Budget(path, e)
    assert (found.participations, found.draws) == ({0: 1, 2: 2, 3: 1}, 2)
    assert found.beyond([2]) is None
    path.write_bytes(replaced(path) or b"")
    after = Budget(path, e)
    assert (after.participations, after.draws) == ({}, 0)
    assert [(row["participations_max"], row["noise"], row["draws"]) for row in after.earlier] == [
        (2, 1.5, 2)
    ]
    assert after.earlier[0]["level"] == "user"
    assert after.earlier[0]["epsilon"] == accountant.epsilon(1.5, 2, e.dp.delta)
    path.write_bytes(replaced(path) or b"")
    assert Budget(path, e).earlier == after.earlier
    path.write_text("{")
    with pytest.raises(UserError, match=r"is damaged; restore it"):
        Budget(path, e)


def test_of_records_a_replaced_run_lists_the_largest_epsilon_that_clients_told() -> None:
    e = from_flat(KEYS)
    e = replace(e, dp=replace(e.dp, level="record"))
    rows: list[Any] = [
        {"client": 0, "status": "ok", "epsilon": 1.5},
        {"client": 1, "status": "ok", "epsilon": 1.25},
        {"client": 0, "status": "ok", "epsilon": 2.5},
        {"client": 1, "status": "failed"},
    ]
    found = spent_by_lines(e, rows)
    assert (found["level"], found["epsilon"], found["participations_max"]) == ("record", 2.5, 2)
    assert spent_by_lines(e, rows[3:])["epsilon"] is None, "it may have spent, and told nothing"


@pytest.mark.slow
def test_a_plan_is_not_exceeded_by_one_participation_and_no_extension(tmp_path: Path) -> None:
    e = from_flat({"dp.clip": 0.5, "dp.epsilon": 2, "adapter.down": "fixed", "rounds": 3})
    budget = Budget(tmp_path / "dp.json", e)
    everyone = range(e.clients)
    for done in range(3):
        assert budget.beyond(everyone) is None
        assert budget.beyond_with(3, done) is None
        budget.spend(everyone)
    after = budget.beyond(everyone)
    assert after is not None
    assert after > 2
    assert budget.beyond_with(4, 3) == after
    assert budget.epsilon(3) <= 2


# An attack on what is released


@pytest.mark.slow
@pytest.mark.parametrize(("share", "holds"), [(1.0, True), (0.25, False)])
def test_an_attack_shows_less_than_epsilon_and_notices_noise_that_is_too_small(
    share: float, holds: bool
) -> None:
    """Its canary is a client of the longest update in a known direction, among two others."""
    z, clip, size, sampled = 1.0, 0.5, 6, 3
    draws = np.random.default_rng(0)
    canary = draws.normal(size=size)
    canary *= clip / np.linalg.norm(canary)
    state = {"a": torch.zeros(size, dtype=torch.float64)}
    others = {k: Upload({"a": torch.from_numpy(draws.normal(size=size))}, 1) for k in (1, 2)}
    others = {k: dp.clipped(upload, state, clip) for k, upload in others.items()}
    known = sum(upload.tensors["a"] for upload in others.values())

    def scores(there: bool) -> np.ndarray:
        uploads = others | ({0: Upload({"a": torch.from_numpy(canary)}, 1)} if there else {})
        return np.array(
            [
                float(
                    (dp.noised(uploads, state, 1, share * z * clip, sampled)["a"] * sampled - known)
                    @ torch.from_numpy(canary)
                )
                for _ in range(3000)
            ]
        )

    thresholds = np.quantile(scores(True), np.linspace(0.02, 0.98, 20))
    found = lower_bound(thresholds, scores(True), scores(False), 1e-5)
    assert found > 1.0
    assert (found <= accountant.epsilon(z, 1, 1e-5)) == holds
