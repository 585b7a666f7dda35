"""Differential privacy in whole runs, in this process: what is released, what is spent, and what a
kill, a resumed run, masks and drop-outs change in that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import Message

from pfedlora_flwr import server_app
from pfedlora_flwr.audit.seen import Seen
from pfedlora_flwr.commands.display import stopped_code, summary
from pfedlora_flwr.config import run_config
from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp import link as dp
from pfedlora_flwr.features.dp.accountant import epsilon, noise_for
from pfedlora_flwr.features.dp.budget import Budget, file_of
from pfedlora_flwr.features.records import privacy_of
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.chain import Chain
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.flower_compat import Key, Stage
from pfedlora_flwr.federation.link import Server
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.observers.observer import RunStopped
from pfedlora_flwr.runs import directory
from pfedlora_flwr.runs.begin import find
from pfedlora_flwr.runs.checkpoint import Checkpoints, ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.training.loop import Samples, Visit
from tests.conftest import Call, Done, key_words, keys_in, result_of, run_locally
from tests.models.bases import base
from tests.plain import Plain
from tests.served import state_of
from tests.test_secagg import arrays, federate, record_of

pytestmark = pytest.mark.slow
CLIP = 0.05
KEYS = keys_in(
    "clients=4 rounds=3 dataset=synthetic:300 partition.kind=iid batch-size=16 device=cpu"
    " evaluate-initial=false models=tests.methods.narrow:Narrow adapter.hidden-dim=4"
    f" adapter.down=fixed dp.clip={CLIP}"
)
MASKED = {"secagg.enabled": True}
OVER_GRID = {"dp__clip": CLIP, "dp__noise": 0, "adapter__down": "fixed", "adapter__hidden_dim": 4}
"""Of a run by the federation of test_secagg.py."""


def vector(tensors: Tensors) -> npt.NDArray[np.float64]:
    return torch.cat([t.double().flatten() for t in tensors.values()]).numpy()


def spent(output: Path) -> dict[str, Any]:
    return json.loads(file_of(RunDirectory(output)).read_text())


def private(done: Done | dict[str, Any]) -> dict[str, Any]:
    result = done if isinstance(done, dict) else done.result
    return result["privacy"]["dp"]


def expected(of: list[int], **keys: Any) -> npt.NDArray[np.float64]:
    """θ after round 1 of these clients without noise, from a plain federation."""
    plain = Plain(KEYS | keys)
    first = vector(plain.state)
    plain.play(of)
    total = np.zeros_like(first)
    for upload in plain.uploads.values():
        delta = vector(upload.tensors) - first
        assert np.linalg.norm(delta) > CLIP, "this test would pass without clipping"
        total += delta * CLIP / np.linalg.norm(delta)
    return first + total / 4


@pytest.mark.parametrize("masks", [{}, MASKED])
def test_a_round_is_the_sum_of_clipped_updates_over_k_and_fresh_noise_of_the_size_of_the_keys(
    tmp_path: Path, masks: dict[str, Any]
) -> None:
    keys = {**KEYS, **masks, "rounds": 1, "adapter.hidden-dim": 64}
    done = run_locally(tmp_path / "run", {**keys, "dp.noise": 0})
    plain = vector(state_of(done.output))
    wanted = expected([0, 1, 2, 3], **{"dp.noise": 0, "adapter.hidden-dim": 64})
    np.testing.assert_allclose(plain, wanted, atol=2e-6)
    found = private(done)
    assert (found["epsilon"], found["by_client"]["2"], found["draws"]) == (None, None, 1)
    assert done.rows("rounds.jsonl")[0]["epsilon"] is None
    assert "dp.noise is 0" in done.result["privacy"]["not_covered"][-1]
    for row in done.rows("clients.jsonl"):
        assert [row[name] for name in ("samples", "loss", "losses", "flops_by_phase")] == [None] * 4
    drawn = [run_locally(tmp_path / name, {**keys, "dp.noise": 40}).output for name in "ab"]
    noises = [(vector(state_of(output)) - plain) * 4 / (40 * CLIP) for output in drawn]
    size = plain.size
    for noise in noises:
        assert abs(noise.mean()) < 4.5 / size**0.5
        assert abs(noise.var() - 1) < 4.5 * (2 / size) ** 0.5
    assert abs(np.corrcoef(noises[0], noises[1])[0, 1]) < 4.5 / size**0.5


KINDS = ("pfedlora", "lg_fedavg", "fedmrl", "rolora")
"""An adapter, a part of the model, a second model, and a part of what is shared. The other methods
are in `make methods-test`."""
AVERAGING = [name for name in registry.NAMES if registry.find(name).averages]


def keys_of(method: str, folder: Path) -> dict[str, Any]:
    """A small federation of a method, one round; the adapters' keys only where it has them."""
    keys = {k: v for k, v in KEYS.items() if not k.startswith("adapter.")} | {"method": method}
    if "lora" in method and method.startswith("pfed"):
        keys |= {"adapter.hidden-dim": 4, "adapter.down": "fixed"}
        keys |= {"adapter.rows": "samples"} if method == "pfedlora_plus" else {}
    if registry.find(method).shares_lora:
        pytest.importorskip("timm")
        pytest.importorskip("peft")
        keys |= {"models": base(folder, "test_vit"), "train": "lora", "lora.rank": "2"}
    if method == "fedmrl":
        keys |= {"models": "cnn5"}
    return keys | {"rounds": 1, "dataset": "synthetic:90"}


@pytest.mark.parametrize(
    ("method", "masks"),
    [
        pytest.param(method, masks, marks=() if method in KINDS else pytest.mark.methods)
        for method in AVERAGING
        for masks in ({}, MASKED)
    ],
)
def test_every_averaging_method_is_clipped_and_noised_in_what_a_round_renews(
    tmp_path: Path, method: str, masks: dict[str, Any]
) -> None:
    """Without noise beside a plain federation; with noise, what a round leaves stays as it is."""
    keys = keys_of(method, tmp_path)
    plain = Plain(keys | {"dp.noise": 0})
    first, part = plain.state, plain.method.renewed(plain.state, 1)
    plain.play(range(4))
    total = {name: torch.zeros_like(tensor).double() for name, tensor in part.items()}
    for upload in plain.uploads.values():
        delta = {name: upload.tensors[name].double() - part[name].double() for name in part}
        length = np.linalg.norm(vector(delta))
        for name in part:
            total[name] += delta[name] * min(1, CLIP / max(length, 1e-30))
    for noise in (0, 1):
        done = run_locally(tmp_path / f"{noise}", keys | masks | {"dp.noise": noise})
        assert done.code == 0, done.stderr
        found = state_of(done.output)
        assert list(found) == list(first)
        for name, tensor in found.items():
            if name not in part:
                assert torch.equal(tensor, first[name])
            elif noise:
                assert not torch.isclose(tensor, first[name], rtol=0, atol=1e-9).all()
            else:
                wanted = (first[name].double() + total[name] / 4).to(tensor.dtype)
                torch.testing.assert_close(tensor, wanted, rtol=0, atol=3e-6)
    assert (method == "rolora") == (len(part) < len(first))


@pytest.mark.parametrize("masks", [{}, MASKED])
def test_an_update_that_is_not_finite_counts_as_no_change_and_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masks: dict[str, Any]
) -> None:
    """A refusal would leave the state as it was, to the bit: that would tell of one client."""
    honest = PFedLoRA.local_update

    def diverged(
        self: PFedLoRA, model: Any, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        found = honest(self, model, received, data, visit)
        if visit.client != 2:
            return found
        return Upload({n: t * torch.nan for n, t in found.tensors.items()}, found.samples)

    monkeypatch.setattr(PFedLoRA, "local_update", diverged)
    done = run_locally(tmp_path / "run", {**KEYS, **masks, "rounds": 1, "dp.noise": 0})
    assert done.code == 0, done.stderr
    monkeypatch.setattr(PFedLoRA, "local_update", honest)
    np.testing.assert_allclose(
        vector(state_of(done.output)), expected([0, 1, 3], **{"dp.noise": 0}), atol=2e-6
    )
    assert spent(done.output)["participations"] == {str(k): 1 for k in range(4)}


class _Killed(BaseException):
    pass


def _kill_in(
    monkeypatch: pytest.MonkeyPatch, output: Path, round: int, keys: dict[str, Any]
) -> Tensors:
    """A run that dies in this round, when its state is made and before it is on disk: that
    state."""
    made: list[Tensors] = []
    save = Checkpoints.save

    def die(self: Checkpoints, state: ServerState) -> None:
        if state.round == round:
            made.append(state.tensors)
            raise _Killed
        save(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", die)
        with pytest.raises(_Killed):
            run_locally(output, keys)
    return made[0]


@pytest.mark.parametrize("masks", [{}, MASKED])
def test_a_killed_round_is_repeated_with_fresh_noise_and_counts_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masks: dict[str, Any]
) -> None:
    drawn: list[npt.NDArray[np.float64]] = []
    gaussian = dp.gaussian

    def watched(count: int) -> npt.NDArray[np.float64]:
        record = spent(tmp_path / "run")
        drawn.append(gaussian(count))
        assert record["draws"] == (len(drawn) + 1) // 2, "it is recorded before it is drawn"
        return drawn[-1]

    monkeypatch.setattr(dp, "gaussian", watched)
    keys = {**KEYS, **masks, "dp.noise": 30}
    lost = vector(_kill_in(monkeypatch, tmp_path / "run", 2, keys))
    assert spent(tmp_path / "run")["participations"] == {str(k): 2 for k in range(4)}
    done = run_locally(tmp_path / "run", {**keys, "resume": True})
    assert done.code == 0, done.stderr
    found = private(done)
    assert (found["draws"], found["participations_max"]) == (4, 4)
    assert found["epsilon"] == epsilon(30.0, 4, 1e-5)
    assert len(drawn) == 8  # two tensors a release
    every = np.concatenate(drawn)
    assert len(np.unique(every)) == len(every), "a number was drawn twice"
    assert not np.isclose(lost, vector(state_of(done.output))).any()


def test_a_run_ends_before_its_epsilon_would_be_exceeded_and_cannot_be_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, keys = tmp_path / "run", {**KEYS, "dp.epsilon": 2}
    _kill_in(monkeypatch, output, 2, keys)
    done = run_locally(output, {**keys, "resume": True})
    result, found = done.result, private(done)
    assert (result["status"], result["stopped_by"], result["rounds"]) == ("stopped", "dp", 2)
    assert not result["resumable"]
    assert found["noise"] == noise_for(2.0, 3, 1e-5)
    assert found["epsilon"] == epsilon(found["noise"], 3, 1e-5) <= 2
    assert result["error"] == (
        f"round 3 would bring ε to {epsilon(found['noise'], 4, 1e-5):.4g}, dp.epsilon is 2"
    )
    whole = run_locally(tmp_path / "whole", keys)
    assert whole.result["status"] == "completed"
    by_round = [row["epsilon"] for row in whole.rows("rounds.jsonl")]
    assert by_round == [epsilon(private(whole)["noise"], count, 1e-5) for count in (1, 2, 3)]
    with pytest.raises(
        UserError, match=r"rounds is 4; they would bring ε to 2\.\d+, dp.epsilon is 2"
    ):
        run_locally(whole.output, {**keys, "resume": True, "rounds": 4})
    assert private(whole)["draws"] == 3


def test_what_was_spent_must_be_there_and_a_replaced_run_stays_listed(tmp_path: Path) -> None:
    output, keys = tmp_path / "run", {**KEYS, "dp.noise": 5, "rounds": 1}
    assert private(run_locally(output, keys))["earlier"] == []
    again = run_locally(output, {**keys, "overwrite": True})
    (earlier,) = private(again)["earlier"]
    assert (earlier["participations_max"], earlier["level"]) == (1, "user")
    assert earlier["epsilon"] == private(again)["epsilon"] == epsilon(5.0, 1, 1e-5)
    assert private(again)["draws"] == 1
    longer = run_locally(output, {**keys, "resume": True, "rounds": 2})
    assert (private(longer)["draws"], len(private(longer)["earlier"])) == (2, 1)
    assert private(longer)["epsilon"] == epsilon(5.0, 2, 1e-5)
    file_of(RunDirectory(output)).unlink()
    with pytest.raises(UserError, match=r"dp\.json is missing, which counts what was spent"):
        run_locally(output, {**keys, "resume": True, "rounds": 3})


@pytest.mark.usefixtures("no_figures")
def test_a_replaced_run_without_dp_counts_as_infinite_whatever_came_between(
    tmp_path: Path, pfedlora: Call
) -> None:
    output = tmp_path / "run"
    plain = {k: v for k, v in KEYS.items() if not k.startswith("dp.")} | {"rounds": 1}
    noised = {**KEYS, "dp.noise": 5, "rounds": 1}
    run_locally(output, noised)
    for _ in range(2):  # two equal ones are listed once
        assert run_locally(output, plain | {"overwrite": True}).code == 0
    void = run_locally(output, plain | {"overwrite": True, "method": "tests.failing:ClientRaises"})
    assert void.code == 1
    RunDirectory(output).clear_void()
    again = run_locally(output, noised)  # what has not begun needs no --overwrite
    assert again.code == 0, again.stderr
    first, other = private(again)["earlier"]
    assert (first["level"], first["epsilon"]) == ("user", epsilon(5.0, 1, 1e-5))
    assert (other["level"], other["epsilon"], other["noise"]) == ("none", None, 0)
    assert other["fingerprint"] == run_config(plain).experiment.fingerprint()
    assert private(again)["epsilon"] == epsilon(5.0, 1, 1e-5)
    assert "adds to it, which is infinite: one had no noise" in summary(again.result)
    _, out, _ = pfedlora("report", str(output))
    assert "without dp, ε=∞" in (output / "report" / "report.md").read_text(), out


def test_an_older_copy_of_what_was_spent_is_refused(tmp_path: Path) -> None:
    output, keys = tmp_path / "run", {**KEYS, "dp.noise": 5, "rounds": 1}
    run_locally(output, keys)
    record = file_of(RunDirectory(output))
    older = record.read_bytes()
    run_locally(output, {**keys, "resume": True, "rounds": 2})
    for copy, found in ((older, 1), (b"{}", 0)):
        record.write_bytes(copy)
        with pytest.raises(
            UserError, match=rf"counts client 0 in {found} noised sums, and clients.jsonl in 2"
        ):
            run_locally(output, {**keys, "resume": True, "rounds": 3})


def test_a_kill_while_a_run_is_replaced_keeps_what_it_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, keys = tmp_path / "run", {**KEYS, "dp.noise": 5, "rounds": 1}
    run_locally(output, keys)
    config = run_config({**keys, "output": str(output), "overwrite": True})

    def die(path: Path, data: bytes) -> None:
        raise _Killed

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(directory, "write_atomically", die)
            run = RunDirectory(output)
            with pytest.raises(_Killed):
                find(run, config).claim()
            run.close()
    again = run_locally(output, {**keys, "overwrite": True})
    assert [row["participations_max"] for row in private(again)["earlier"]] == [1]


def test_a_sum_whose_weights_are_not_1_each_is_refused_under_masks(tmp_path: Path) -> None:
    """A hostile client's smaller weight would make the others' updates count for more."""

    def act(stage: str, client: int, reply: Message) -> None:
        if stage == Stage.COLLECT_MASKED_VECTORS and client == 1:
            record = record_of(reply)
            weight, *rest = (
                wire.decode(blob, len(blob)).copy() for blob in record[Key.MASKED_PARAMETERS]
            )
            weight -= np.uint32(1)
            record[Key.MASKED_PARAMETERS] = arrays(weight, *rest)

    result, _ = federate(tmp_path / "run", up=act, **OVER_GRID)
    assert result["error"].startswith("round 1: the weights in the sum are not 1 each, as this")
    assert not file_of(RunDirectory(tmp_path / "run")).exists()


def test_an_audit_takes_the_states_that_were_released(tmp_path: Path) -> None:
    done = run_locally(tmp_path / "run", {**KEYS, "dp.noise": 30, "audit.uploads": True})
    run = RunDirectory(done.output)
    seen = Seen(run)
    assert seen.source == "uploads"
    for number in (1, 2):
        after = seen.round(number).result()
        assert vector(after).tolist() == vector(run.uploads.state(number + 1)).tolist()
    assert vector(seen.round(3).result()).tolist() == vector(state_of(done.output)).tolist()


def test_what_is_not_covered_is_what_this_run_has(tmp_path: Path) -> None:
    def told(simulated: bool = True, own_data: bool = False, **keys: Any) -> str:
        config = run_config({**KEYS, "dp.noise": 1} | keys)
        run = RunDirectory(tmp_path / f"{simulated} {own_data}")
        (run.clients if simulated else run.server).mkdir(parents=True, exist_ok=True)
        if own_data:
            run.write_partition(OWN)
        found = privacy_of(config, run)
        return "\n".join(found["not_covered"])

    assert "the mean and standard deviation of the inputs" in told()
    # nodes with a partition-id normalise by all parts, too
    assert "the mean and standard deviation of the inputs" in told(simulated=False)
    assert "the mean and standard deviation" not in told(simulated=False, own_data=True)
    assert "the mean and standard deviation" not in told(normalise="model")
    assert "what a node says of itself" in told(**MASKED)
    assert ("audit.uploads" in told(**{"audit.uploads": True}), "audit.uploads" in told()) == (
        True,
        False,
    )
    assert ("edge of secagg.clip" in told(**MASKED), "edge of" in told()) == (True, False)
    assert "lost its state-path" in told(simulated=False)
    assert "whether a round was merged" in told()
    of_records = keys_in(
        "method=pfedlora_plus adapter.down=auto adapter.predict=sum adapter.rows=samples "
        "models=timm:test_resnet train=head normalise=model dp.level=record"
    )
    for line in (
        "what a node says of itself",
        "which are taken to be public",
        "when to end or extend this one by what it gave",
    ):
        assert line in told()
        assert line in told(**of_records)


def test_drop_outs_under_masks_change_neither_denominator_nor_who_pays(tmp_path: Path) -> None:
    keys = OVER_GRID | {"min_success": 0.7}
    lost = {1: Stage.COLLECT_MASKED_VECTORS}
    result, _ = federate(tmp_path / "run", lost=lost, **keys)
    assert result["status"] == "completed"
    np.testing.assert_allclose(
        vector(state_of(tmp_path / "run")), expected([0, 2, 3], **{"dp.noise": 0}), atol=2e-6
    )
    assert spent(tmp_path / "run")["participations"] == {"0": 1, "2": 1, "3": 1}
    noised, _ = federate(tmp_path / "noised", lost=lost, **{**keys, "dp__noise": 30})
    one = private(noised)
    assert set(one["by_client"]) == {"0", "2", "3"}
    assert one["epsilon"] == epsilon(30.0, 1, 1e-5)


def test_a_client_that_weighs_itself_by_its_samples_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp.Clipped, "client_out", lambda self, upload, received, visit: upload)
    done = run_locally(tmp_path / "run", {**KEYS, "dp.noise": 1, "rounds": 1})
    assert done.code == 1
    assert "its sample count n_k is" in done.stderr
    assert "allowed: an integer from 1 to 1" in done.stderr
    assert not file_of(RunDirectory(tmp_path / "run")).exists()


def test_the_server_clips_what_a_client_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        dp.Clipped,
        "client_out",
        lambda self, upload, received, visit: dp.Upload(upload.tensors, 1),
    )
    done = run_locally(tmp_path / "run", {**KEYS, "rounds": 1, "dp.noise": 0})
    np.testing.assert_allclose(
        vector(state_of(done.output)), expected([0, 1, 2, 3], **{"dp.noise": 0}), atol=2e-6
    )


def test_a_dry_run_says_epsilon_and_the_noise_beside_the_clip(pfedlora: Call) -> None:
    keys = {**KEYS, "dp.epsilon": 8, "adapter.down": "trained", "dp.trained-down": True}
    code, out, err = pfedlora("run", "--dry-run", *key_words(keys), "-o", "output=out")
    assert (code, err) == (0, "")
    z = noise_for(8.0, 3, 1e-5)
    size = 16 * 4 + 4 + 4 * 10 + 10
    assert f"dp: ε = 8 at δ = 1e-05 for 3 planned participations of a client, by z = {z:.4g}" in out
    norm = z * CLIP * size**0.5 / 4
    assert f"the noise of a round's mean has the norm {norm:.3g}, the clip is 0.05" in out
    assert f"the two are equal with {int(np.ceil(z * size**0.5))} clients a round" in out
    assert f"shares {size} numbers, fixed 50: the noise is {(size / 50) ** 0.5:.2g} times" in out


@pytest.mark.parametrize(
    ("delta", "told"),
    [
        (0.25, "error: dp.delta is 0.25; allowed: below 1/clients, which is 0.25"),
        (0.025, "of the 4 clients whole, by chance, has δ = 0.25: take less than 0.025"),
        (0.024, ""),
    ],
)
def test_a_delta_near_one_over_the_clients_is_refused_or_warned_of(
    pfedlora: Call, delta: float, told: str
) -> None:
    keys = {**KEYS, "dp.noise": 1, "dp.delta": delta, "output": "out"}
    code, out, err = pfedlora("run", "--dry-run", *key_words(keys))
    assert code == (2 if delta == 0.25 else 0)
    assert told in out + err
    assert ("warning: dp.delta is" in out) == (delta == 0.025)


def test_a_dry_run_of_a_resumed_run_counts_what_is_done_and_one_of_another_run_does_not(
    tmp_path: Path, pfedlora: Call
) -> None:
    output, keys = tmp_path / "run", {**KEYS, "dp.noise": 20, "rounds": 2}
    run_locally(output, keys)
    Budget(file_of(RunDirectory(output)), run_config(keys).experiment).spend([1])  # a killed round

    def told(*more: str, **other: Any) -> str:
        given = key_words(keys | other | {"output": output})
        code, out, err = pfedlora("run", "--dry-run", *given, *more)
        assert (code, err) == (0, "")
        return next(line for line in out.splitlines() if line.startswith("dp: ε"))

    assert told("--resume", rounds=3) == (
        f"dp: ε = {epsilon(20.0, 4, 1e-5):.4g} at δ = 1e-05 for 4 past and planned participations"
        " of a client, by z = 20"
    )
    assert told("--overwrite", **{"dp.noise": 30, "rounds": 3}) == (
        f"dp: ε = {epsilon(30.0, 3, 1e-5):.4g} at δ = 1e-05 for 3 planned participations of a"
        " client, by z = 30"
    )


def test_a_dry_run_says_that_two_matrices_are_noised_and_that_a_clip_is_too_fine(
    tmp_path: Path, pfedlora: Call
) -> None:
    def told(method: str, **more: Any) -> str:
        keys = keys_of(method, tmp_path) | {"dp.noise": 1} | more
        given = key_words(keys | {"output": tmp_path / "new"})
        code, out, err = pfedlora("run", "--dry-run", *given)
        assert (code, err) == (0, "")
        return out

    assert "fedit shares both matrices of LoRA, and their noise multiplies" in told("fedit")
    assert "both matrices" not in told("ffa_lora")
    assert "warning: dp.clip is" not in told("lg_fedavg")
    assert "warning: dp.clip is 1e-09, and the shared" in told("lg_fedavg", **{"dp.clip": 1e-9})


def test_a_server_says_before_its_first_round_what_dp_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real nodes no checks come before it."""

    def begin(**more: Any) -> None:
        keys = {**KEYS, "dp.noise": 1.125, "output": str(tmp_path / "run"), "overwrite": True}
        with server_app.strategy_of(run_config(keys | more)):
            raise AssertionError("it began")

    with pytest.raises(UserError, match=r"dp.clip is 1e-09; allowed with secagg.enabled: above"):
        begin(**{"secagg.enabled": True, "dp.clip": 1e-9})
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'pfedlora-flwr\[dp\]'"):
        begin()


def test_a_server_app_of_ones_own_that_does_not_all_is_stopped(tmp_path: Path) -> None:
    keys = {"rounds": 2, "clients": 4, "models": "cnn5", "output": str(tmp_path / "run")}
    with server_app.strategy_of(run_config(keys)) as strategy:
        assert strategy.state.round == 0
    result = RunDirectory(tmp_path / "run").result()
    assert result is not None
    assert (result["status"], result["error"], result["resumable"]) == (
        "stopped",
        "the ServerApp ended after round 0 of 2",
        True,
    )


def test_a_server_app_of_ones_own_ends_at_the_budget_as_stopped(tmp_path: Path) -> None:
    keys = {**KEYS, "dp.epsilon": 2, "output": str(tmp_path / "run")}

    def drive() -> None:
        with server_app.strategy_of(run_config(keys)) as strategy:
            e, x, run = strategy.experiment, strategy.execution, strategy.run
            for _ in range(3):
                Budget(file_of(run), e).spend(range(4))
            Chain(e, strategy.method, Server(x, run, strategy.state)).begin(
                Round(4, [0, 1], Clock())
            )

    with pytest.raises(RunStopped, match="round 4 would bring"):
        drive()
    result = result_of(tmp_path / "run")
    assert (result["status"], result["stopped_by"], result["resumable"]) == ("stopped", "dp", False)
    assert stopped_code(result) == 1
